"""Open X-Embodiment: robot episodes read from their published formats."""

from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.replay import OpenXExperienceReplay

__all__ = ["OpenXExperienceReplay", "convert"]
