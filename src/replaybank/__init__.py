"""Replay buffers and robot-trajectory datasets for PyTorch."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from replaybank import lazily as _lazily

if TYPE_CHECKING:
    from replaybank.buffers import (
        PrioritizedReplayBuffer,
        ReplayBuffer,
        ReplayBufferEnsemble,
        TensorDictPrioritizedReplayBuffer,
        TensorDictReplayBuffer,
        TrajectoryRecorder,
    )
    from replaybank.datasets.openx.convert import convert
    from replaybank.datasets.openx.mixture import OpenXMixture
    from replaybank.datasets.openx.normalize import Normalize
    from replaybank.datasets.openx.replay import OpenXExperienceReplay
    from replaybank.datasets.openx.sources import (
        HubTarSource,
        LeRobotSource,
        RLDSSource,
        RLDSWriter,
        open_source,
    )
    from replaybank.datasets.openx.stats import EntryStats
    from replaybank.datasets.openx.verify import verify
    from replaybank.errors import (
        CorruptRecordError,
        DataFormatError,
        IncompleteDatasetError,
        MissingKeyError,
        ReplaybankError,
        UnsafePickleError,
        UnsupportedFeatureError,
    )
    from replaybank.samplers import (
        ConsumingSampler,
        LambdaScheduler,
        LinearScheduler,
        PrioritizedSampler,
        PrioritizedSliceSampler,
        RandomSampler,
        Sampler,
        SamplerEnsemble,
        SamplerWithoutReplacement,
        SchedulerList,
        SliceSampler,
        SliceSamplerWithoutReplacement,
        StalenessAwareSampler,
        StepScheduler,
    )
    from replaybank.storages import (
        CompressedListStorage,
        EncodedFrames,
        LazyMemmapStorage,
        LazyStackStorage,
        LazyTensorStorage,
        ListStorage,
        Storage,
        StorageEnsemble,
        TensorStorage,
    )
    from replaybank.trajectories import TrajectoryIndex, split_trajectories
    from replaybank.transforms import BurnIn, FrameStack, HindsightRelabel, NStep, SampleTransform
    from replaybank.weights import SumTree
    from replaybank.writers import (
        ImmutableDatasetWriter,
        RoundRobinWriter,
        TensorDictMaxValueWriter,
        TensorDictRoundRobinWriter,
        Writer,
        WriterEnsemble,
    )

    __version__: str

__all__ = [
    "BurnIn",
    "CompressedListStorage",
    "ConsumingSampler",
    "CorruptRecordError",
    "DataFormatError",
    "EncodedFrames",
    "EntryStats",
    "FrameStack",
    "HindsightRelabel",
    "HubTarSource",
    "ImmutableDatasetWriter",
    "IncompleteDatasetError",
    "LambdaScheduler",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "LeRobotSource",
    "LinearScheduler",
    "ListStorage",
    "MissingKeyError",
    "NStep",
    "Normalize",
    "OpenXExperienceReplay",
    "OpenXMixture",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RLDSSource",
    "RLDSWriter",
    "RandomSampler",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "ReplaybankError",
    "RoundRobinWriter",
    "SampleTransform",
    "Sampler",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "SchedulerList",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "StalenessAwareSampler",
    "StepScheduler",
    "Storage",
    "StorageEnsemble",
    "SumTree",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "TrajectoryIndex",
    "TrajectoryRecorder",
    "UnsafePickleError",
    "UnsupportedFeatureError",
    "Writer",
    "WriterEnsemble",
    "__version__",
    "convert",
    "open_source",
    "split_trajectories",
    "verify",
]

# Where each name comes from. They are imported when they are asked for: torch takes seconds, and must find
# the environment as `replaybank.__main__` sets it.
_HOMES = {
    "buffers": [
        "PrioritizedReplayBuffer",
        "ReplayBuffer",
        "ReplayBufferEnsemble",
        "TensorDictPrioritizedReplayBuffer",
        "TensorDictReplayBuffer",
        "TrajectoryRecorder",
    ],
    "datasets.openx": [
        "EntryStats",
        "Normalize",
        "OpenXExperienceReplay",
        "OpenXMixture",
        "OpenXMixture",
        "convert",
        "verify",
    ],
    "datasets.openx.sources": [
        "HubTarSource",
        "LeRobotSource",
        "RLDSSource",
        "RLDSWriter",
        "open_source",
    ],
    "errors": [
        "CorruptRecordError",
        "DataFormatError",
        "IncompleteDatasetError",
        "MissingKeyError",
        "ReplaybankError",
        "UnsafePickleError",
        "UnsupportedFeatureError",
    ],
    "samplers": [
        "ConsumingSampler",
        "LambdaScheduler",
        "LinearScheduler",
        "PrioritizedSampler",
        "PrioritizedSliceSampler",
        "RandomSampler",
        "Sampler",
        "SamplerEnsemble",
        "SamplerWithoutReplacement",
        "SchedulerList",
        "SliceSampler",
        "SliceSamplerWithoutReplacement",
        "StalenessAwareSampler",
        "StepScheduler",
    ],
    "storages": [
        "CompressedListStorage",
        "EncodedFrames",
        "LazyMemmapStorage",
        "LazyStackStorage",
        "LazyTensorStorage",
        "ListStorage",
        "Storage",
        "StorageEnsemble",
        "TensorStorage",
    ],
    "trajectories": ["TrajectoryIndex", "split_trajectories"],
    "transforms": ["BurnIn", "FrameStack", "HindsightRelabel", "NStep", "SampleTransform"],
    "weights": ["SumTree"],
    "writers": [
        "ImmutableDatasetWriter",
        "RoundRobinWriter",
        "TensorDictMaxValueWriter",
        "TensorDictRoundRobinWriter",
        "Writer",
        "WriterEnsemble",
    ],
}
_MODULES = (*{home.partition(".")[0] for home in _HOMES}, "checkpoint")

_lazily.names_from(__name__, _HOMES)


def __getattr__(name: str) -> object:
    """A package of this one, imported when it is first asked for, or the version."""
    if name in _MODULES:
        return _import_module(f"replaybank.{name}")
    if name == "__version__":
        from importlib.metadata import version

        value = globals()[name] = version("replaybank")
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "__version__", *_MODULES]
