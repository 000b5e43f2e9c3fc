"""The errors that are ours alone; everything else is raised as the built-in its users expect.

::

    ReplaybankError
    ├── MissingKeyError (KeyError)        a storage has none of the keys asked for
    └── DataFormatError (ValueError)      a file is not what its format says
        ├── CorruptRecordError            a record's length, bytes or checksum are wrong
        ├── UnsupportedFeatureError       a feature encoding that this version cannot read
        ├── UnsafePickleError             a pickle that names something that is not data
        └── IncompleteDatasetError        a conversion that was started and not finished
"""

from __future__ import annotations


class ReplaybankError(Exception):
    """Base of the errors that replaybank defines."""


class DataFormatError(ReplaybankError, ValueError):
    """A file does not have the form that its format prescribes."""


class CorruptRecordError(DataFormatError):
    """A TFRecord is cut short or fails a checksum.

    Args:
        path: file or URL of the shard.
        record: number of the record in its file, from 0.
        offset: byte offset of the record's first byte in the file.
        reason: what is wrong with it.
    """

    def __init__(self, path: str, record: int, offset: int, reason: str) -> None:
        super().__init__(f"{path}: record {record} at byte {offset}: {reason}")
        self.path = path
        self.record = record
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[CorruptRecordError], tuple[str, int, int, str]]:
        return type(self), (self.path, self.record, self.offset, self.reason)


class UnsupportedFeatureError(DataFormatError):
    """A dataset's feature file asks for something that this version cannot read."""


class UnsafePickleError(DataFormatError):
    """A pickle names a class or function that is not data. Nothing of it has been run."""


class IncompleteDatasetError(DataFormatError):
    """A converted dataset whose conversion has not been finished."""


class MissingKeyError(ReplaybankError, KeyError):
    """None of the keys asked for is in the storage.

    Unlike that of a plain ``KeyError``, the message is printed as it is written.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def add_note(error: BaseException, note: str) -> None:
    """Add a line to an error, as ``BaseException.add_note``, which Python has from 3.11 on."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.args = (f"{error.args[0] if error.args else ''}\n{note}", *error.args[1:])
