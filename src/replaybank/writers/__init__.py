"""Writers: where items are written."""

from replaybank.writers.base import Writer
from replaybank.writers.immutable import ImmutableDatasetWriter
from replaybank.writers.round_robin import RoundRobinWriter, TensorDictRoundRobinWriter

__all__ = ["ImmutableDatasetWriter", "RoundRobinWriter", "TensorDictRoundRobinWriter", "Writer"]
