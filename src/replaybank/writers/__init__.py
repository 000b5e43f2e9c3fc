"""Writers: where items are written."""

from replaybank.writers.base import Writer
from replaybank.writers.ensemble import WriterEnsemble
from replaybank.writers.immutable import ImmutableDatasetWriter
from replaybank.writers.max_value import TensorDictMaxValueWriter
from replaybank.writers.round_robin import RoundRobinWriter, TensorDictRoundRobinWriter

__all__ = [
    "ImmutableDatasetWriter",
    "RoundRobinWriter",
    "TensorDictMaxValueWriter",
    "TensorDictRoundRobinWriter",
    "Writer",
    "WriterEnsemble",
]
