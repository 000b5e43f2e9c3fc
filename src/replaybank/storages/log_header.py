"""The header of a write log, and what is checked of one that comes from outside."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from replaybank.errors import DataFormatError

# Places in the header, which lies before the ring of events in the same tensor.
EPOCH, TOTAL, CURSOR, LENGTH, EVENTS, CONTINUES, BASE = range(7)
# BASE: the total from which on the events in the ring tell what was appended.
EPOCH_EVENTS, EPOCH_SEEN = 8, 9  # the log's mark when the epoch began
# A write that has begun and not finished: its number of slots (0: there is none), its first slot, and the
# length and cursor before it.
PENDING, PENDING_START, PENDING_LENGTH, PENDING_CURSOR = 7, 10, 11, 12
TOUCHES = 13
HISTORY = 16  # and 17: random numbers, which no other log has
# Whether items may be changed without the log being told, in the lowest bit; above it, the epoch that began
# with the last broken-off write that was made good.
UNSEEN = 18
REPLACING = -1  # for PENDING: slots anywhere, whose bytes in ``cut`` have the bit MARKED
MARKED = 2
SAVED = 16  # so many belong to a state; those behind are this log's own, not of what it says
HEADER = 24
_MOST = 1 << 62  # of a count that is loaded: what comes on top must fit as well


def checked_state(state: object) -> tuple[list[int], Tensor]:
    """The header and the cuts of a log's state. Trusts nothing: native kernels believe them later. O(rows).

    Raises:
        DataFormatError: it is no such state, or its numbers contradict each other.
    """
    parts = [state.get(name) for name in ("header", "cut")] if isinstance(state, Mapping) else [None, None]
    header, cut = parts
    if not (
        isinstance(header, Tensor)
        and isinstance(cut, Tensor)
        and (header.dtype, header.shape) == (torch.int64, (SAVED,))
        and (cut.dtype, cut.ndim) == (torch.bool, 1)
        and len(cut) > 0
        and header.layout is cut.layout is torch.strided
    ):
        found = [f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else part for part in parts]
        raise DataFormatError(
            f"The state's log is damaged: its header is int64 [{SAVED}] and its cuts are bool [rows], got "
            f"{found[0]!r:.80} and {found[1]!r:.80}. Nothing has been changed."
        )
    values, rows = header.tolist(), len(cut)
    cut = cut.cpu().contiguous()
    epoch, total, cursor, length, _, continues = values[: CONTINUES + 1]
    reason = None
    if not 0 <= length <= rows:
        reason = f"{length} of {rows} rows are said to be valid"
    elif not 0 <= cursor < rows or cursor > length:
        reason = f"the cursor is at row {cursor}, and {length} of {rows} rows are valid"
    elif not length <= total < _MOST:
        reason = f"{total} rows are said to have been written, and {length} are valid"
    elif not 0 <= values[TOUCHES] < _MOST:
        reason = f"{values[TOUCHES]} rows are said to have been replaced"
    elif not 0 <= epoch < _MOST:
        reason = f"its epoch is {epoch}"
    elif continues not in (0, 1) or continues > length:
        reason = f"the flag of the last write is {continues} with {length} rows"
    elif bool((cut.view(torch.uint8) > 1).any()):
        reason = "a cut is neither true nor false"
    elif (length < rows and not cut[0]) or (continues and not cut[cursor]):
        reason = "a row is said to continue one that is not there, or the oldest row to continue the newest"
    if reason is not None:
        raise DataFormatError(f"The state's log is damaged: {reason}. Nothing has been changed.")
    return values, cut
