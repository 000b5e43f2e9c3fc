"""Samplers: which items are read."""

from replaybank.samplers.base import SampledStorage, Sampler
from replaybank.samplers.consuming import ConsumingSampler
from replaybank.samplers.ensemble import SamplerEnsemble
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.prioritized_slice import PrioritizedSliceSampler
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.schedulers import (
    LambdaScheduler,
    LinearScheduler,
    ParameterScheduler,
    SchedulerList,
    StepScheduler,
)
from replaybank.samplers.slice import SliceSampler
from replaybank.samplers.slice_without_replacement import SliceSamplerWithoutReplacement
from replaybank.samplers.staleness import StalenessAwareSampler
from replaybank.samplers.without_replacement import SamplerWithoutReplacement

__all__ = [
    "ConsumingSampler",
    "LambdaScheduler",
    "LinearScheduler",
    "ParameterScheduler",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "SampledStorage",
    "Sampler",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "SchedulerList",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "StalenessAwareSampler",
    "StepScheduler",
]
