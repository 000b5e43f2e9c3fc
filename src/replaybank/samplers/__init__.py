"""Samplers: which items are read."""

from replaybank.samplers.base import SampledStorage, Sampler
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.slice import SliceSampler

__all__ = ["RandomSampler", "SampledStorage", "Sampler", "SliceSampler"]
