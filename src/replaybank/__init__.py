"""Replay buffers and robot-trajectory datasets for PyTorch."""

from importlib.metadata import version

from replaybank.buffers import ReplayBuffer, TensorDictReplayBuffer
from replaybank.datasets.openx import OpenXExperienceReplay, convert
from replaybank.datasets.openx.sources import RLDSSource, RLDSWriter
from replaybank.errors import (
    CorruptRecordError,
    DataFormatError,
    IncompleteDatasetError,
    MissingKeyError,
    ReplaybankError,
    UnsupportedFeatureError,
)
from replaybank.samplers import (
    ConsumingSampler,
    RandomSampler,
    Sampler,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
)
from replaybank.storages import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    Storage,
    StorageEnsemble,
    TensorStorage,
)
from replaybank.trajectories import TrajectoryIndex, split_trajectories
from replaybank.writers import ImmutableDatasetWriter, RoundRobinWriter, TensorDictRoundRobinWriter, Writer

__version__ = version("replaybank")

__all__ = [
    "ConsumingSampler",
    "CorruptRecordError",
    "DataFormatError",
    "ImmutableDatasetWriter",
    "IncompleteDatasetError",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "ListStorage",
    "MissingKeyError",
    "OpenXExperienceReplay",
    "RLDSSource",
    "RLDSWriter",
    "RandomSampler",
    "ReplayBuffer",
    "ReplaybankError",
    "RoundRobinWriter",
    "Sampler",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "StalenessAwareSampler",
    "Storage",
    "StorageEnsemble",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "TrajectoryIndex",
    "UnsupportedFeatureError",
    "Writer",
    "__version__",
    "convert",
    "split_trajectories",
]
