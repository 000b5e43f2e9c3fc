"""Open X-Embodiment: robot episodes read from their published formats."""

from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.normalize import Normalize
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.stats import EntryStats
from replaybank.datasets.openx.verify import verify

__all__ = ["EntryStats", "Normalize", "OpenXExperienceReplay", "convert", "verify"]
