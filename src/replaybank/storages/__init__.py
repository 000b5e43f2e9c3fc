"""Storages: the data, and the log of what was written."""

from replaybank.storages.base import Batch, Storage
from replaybank.storages.compressed import CompressedListStorage
from replaybank.storages.ensemble import StorageEnsemble
from replaybank.storages.frames import EncodedFrames
from replaybank.storages.lazy_stack import LazyStackStorage
from replaybank.storages.lazy_tensor import LazyTensorStorage
from replaybank.storages.list import ListStorage
from replaybank.storages.memmap import LazyMemmapStorage
from replaybank.storages.tensor import TensorStorage
from replaybank.storages.write_log import LogChanges, LogMark, WriteLog

__all__ = [
    "Batch",
    "CompressedListStorage",
    "EncodedFrames",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "LogChanges",
    "LogMark",
    "Storage",
    "StorageEnsemble",
    "TensorStorage",
    "WriteLog",
]
