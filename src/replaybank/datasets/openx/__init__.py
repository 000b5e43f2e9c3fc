"""Open X-Embodiment: robot episodes read from their published formats."""

from typing import TYPE_CHECKING

from replaybank import lazily

if TYPE_CHECKING:
    from replaybank.datasets.openx.convert import convert
    from replaybank.datasets.openx.mixture import OpenXMixture
    from replaybank.datasets.openx.normalize import Normalize
    from replaybank.datasets.openx.replay import OpenXExperienceReplay
    from replaybank.datasets.openx.stats import EntryStats
    from replaybank.datasets.openx.verify import verify

__all__ = ["EntryStats", "Normalize", "OpenXExperienceReplay", "OpenXMixture", "convert", "verify"]

lazily.names_from(
    __name__,
    {
        "convert": ["convert"],
        "mixture": ["OpenXMixture"],
        "normalize": ["Normalize"],
        "replay": ["OpenXExperienceReplay"],
        "stats": ["EntryStats"],
        "verify": ["verify"],
    },
)
