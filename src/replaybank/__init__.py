"""Replay buffers and robot-trajectory datasets for PyTorch."""

from importlib.metadata import version

__version__ = version("replaybank")

__all__ = ["__version__"]
