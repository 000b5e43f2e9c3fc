"""Open X-Embodiment: robot episodes read from their published formats."""

from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.verify import verify

__all__ = ["OpenXExperienceReplay", "convert", "verify"]
