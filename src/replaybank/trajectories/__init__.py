"""The trajectory index, and splitting batches into trajectories."""

from replaybank.trajectories.index import Slices, TrajectoryIndex
from replaybank.trajectories.signals import ChangeSignal, DoneSignal, EndSignal
from replaybank.trajectories.split import split_trajectories

__all__ = ["ChangeSignal", "DoneSignal", "EndSignal", "Slices", "TrajectoryIndex", "split_trajectories"]
