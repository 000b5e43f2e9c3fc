"""Transforms that are applied to a batch with the trajectories that it was drawn from."""

from replaybank.transforms.base import SampleTransform
from replaybank.transforms.burn_in import BurnIn
from replaybank.transforms.frame_stack import FrameStack
from replaybank.transforms.hindsight import HindsightRelabel
from replaybank.transforms.n_step import NStep

__all__ = ["BurnIn", "FrameStack", "HindsightRelabel", "NStep", "SampleTransform"]
