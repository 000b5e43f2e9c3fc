"""Samplers: which items are read."""

from replaybank.samplers.base import SampledStorage, Sampler
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.schedulers import (
    LambdaScheduler,
    LinearScheduler,
    ParameterScheduler,
    SchedulerList,
    StepScheduler,
)
from replaybank.samplers.slice import SliceSampler

__all__ = [
    "LambdaScheduler",
    "LinearScheduler",
    "ParameterScheduler",
    "PrioritizedSampler",
    "RandomSampler",
    "SampledStorage",
    "Sampler",
    "SchedulerList",
    "SliceSampler",
    "StepScheduler",
]
