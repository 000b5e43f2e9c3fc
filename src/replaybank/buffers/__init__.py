"""Replay buffers: a storage, a sampler, a writer and transforms, conducted by one object."""

from replaybank.buffers.ensemble import ReplayBufferEnsemble
from replaybank.buffers.prioritized import PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer
from replaybank.buffers.recorder import TrajectoryRecorder
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer

__all__ = [
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TrajectoryRecorder",
]
