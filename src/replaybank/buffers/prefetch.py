"""Batches drawn ahead by a background thread."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, is_tensor_collection
from torch import Tensor

from replaybank.buffers.ahead_random import GlobalAhead
from replaybank.buffers.locks import renew_after_fork

if TYPE_CHECKING:
    from replaybank.buffers.base import ComposedBuffer


class Batch(NamedTuple):
    """A batch as it is handed out.

    Args:
        data: the sample.
        info: what the sampler says of it, and where the items are.
        ran_out: a pass ended with it.
    """

    data: Any
    info: dict[Any, Any]
    ran_out: bool


class Prefetcher:
    """Keeps ``depth`` batches ready, drawn one after the other in one thread.

    So their order and their random numbers are those of drawing them when they are asked for, as long as
    nothing is written in between. Drawing ahead stops at the end of a pass and at an error, which its batch
    carries to the caller. The thread starts with the first batch and knows the buffer by a weak reference.
    It never touches torch's global generator: see :class:`~replaybank.buffers.ahead_random.GlobalAhead`.

    Thread-safe. The thread takes the buffer's lock first and its own second; a caller of :meth:`next` must
    not hold the buffer's lock.

    Args:
        buffer: whom to draw for.
        depth: number of batches to keep ready. 0: no thread; only what :meth:`load` was given is ready.
    """

    def __init__(self, buffer: ComposedBuffer, depth: int) -> None:
        self._buffer = weakref.ref(buffer)
        self._depth = depth
        self._ready: deque[_Ready] = deque()
        self._random: GlobalAhead | None = None  # where the buffer has no generator of its own
        # Whether somebody has asked since what is in line was replaced: before, it is not known where to
        # draw from.
        self._asked = False
        self._changed = threading.Condition()
        self._halted = False  # the last one drawn ended a pass or failed: wait until somebody asks for more
        self._waiting = 0
        self._told = False
        self._thread: threading.Thread | None = None
        self._stopped = False
        # Also at exit of the interpreter, where a thread left in the middle of native code could crash it.
        weakref.finalize(buffer, Prefetcher.stop, self)
        renew_after_fork(self)

    def next(self) -> Batch:
        """The next batch in the order of drawing; waits for it."""
        if threading.current_thread() is self._thread:
            # A transform that samples: it cannot wait for the thread that it is run by.
            buffer = self._buffer()
            if buffer is not None and buffer.batch_size is not None:
                return buffer._draw(buffer.batch_size, buffer._info_in_sample)
        batch = self._from_the_thread() if self._depth else None
        if batch is None:
            batch = self._drawn_here()
        if isinstance(batch, BaseException):
            raise batch
        self._tell_the_sampler(batch.ran_out)
        return batch

    def _from_the_thread(self) -> Batch | BaseException | None:
        """The next one that the thread drew; None if it was ended while this caller waited."""
        with self._changed:
            buffer = self._buffer()
            if self._random is None and buffer is not None and buffer._generator is None:
                self._random = GlobalAhead(self._depth)
            self._asked = True
            self._start()
            self._waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._ready or self._stopped)
                batch = self._taken() if self._ready else None
            finally:
                self._waiting -= 1
            self._changed.notify_all()
            return batch

    def _drawn_here(self) -> Batch | BaseException:
        """The next one, drawn by the caller itself unless one is ready."""
        buffer = self._buffer()
        if buffer is None or buffer.batch_size is None:
            raise RuntimeError("A buffer that prefetches needs a batch size.")
        # The thread may be at its last batch: with the buffer's lock, which it holds for that, order is kept.
        with buffer._lock.lock:
            with self._changed:
                batch = self._taken() if self._ready else None
                if batch is None and self._random is not None:
                    self._random.before()
            if batch is None:
                drawn, ends = self._one(buffer, buffer.batch_size)
                with self._changed:
                    self._halted = ends
                    self._ready.appendleft(drawn)
                    batch = self._taken()
            if not self._depth and not self._ready and buffer._prefetcher is self:
                buffer._prefetcher = None  # all that was loaded has been handed out
            return batch

    def _taken(self) -> Batch | BaseException:
        """The first in line, for the caller, who holds the condition."""
        batch, moved = self._ready.popleft()
        if moved is not None and self._random is not None:
            self._random.hand_out(*moved)
        return batch

    def _tell_the_sampler(self, ran_out: bool) -> None:
        """Let ``sampler.ran_out`` be that of the batch handed out, not of the last one drawn."""
        if ran_out or self._told:
            buffer = self._buffer()
            if buffer is not None:
                with buffer._lock.lock:
                    self._told = ran_out
                    # Setting it may make an ensemble forget which parts ran out in what was drawn ahead.
                    if buffer._sampler.ran_out != ran_out:
                        buffer._sampler.ran_out = ran_out

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._stopped = False
            self._thread = threading.Thread(
                target=_run, args=(self,), name="replaybank-prefetch", daemon=True
            )
            self._thread.start()

    def drop(self) -> None:
        """Forget what was drawn ahead; the caller holds the buffer's lock."""
        with self._changed:
            self._ready.clear()
            self._random, self._asked = None, False
            # Nothing is drawn from an emptied buffer until somebody asks: it may be filled before that.
            self._halted = True

    def redo(self) -> None:
        """Read what was drawn ahead once more, with other transforms; the caller holds the buffer's lock."""
        state = [{**packed, "data": None} for packed in self.state()]
        with self._changed:
            moved = [moved for batch, moved in self._ready if isinstance(batch, Batch)]
            random = self._random
        self.load(state)
        with self._changed:
            self._ready = deque(
                _Ready(batch, moved) for (batch, _), moved in zip(self._ready, moved, strict=True)
            )
            self._random, self._asked = random, True
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread. What was drawn ahead is kept for the next call of :meth:`next`."""
        with self._changed:
            self._stopped = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def state(self) -> list[dict[str, Any]]:
        """The batches drawn ahead, as copies: who is handed one meanwhile may write into it.

        The caller holds the buffer's lock.
        """
        with self._changed:
            return [_packed(batch) for batch, _ in self._ready if isinstance(batch, Batch)]

    def unpacked(self, state: Sequence[dict[str, Any]]) -> list[Batch]:
        """The batches of :meth:`state`, for :meth:`put`; the caller holds the buffer's lock."""
        buffer = self._buffer()
        return [] if buffer is None else [_unpacked(packed, buffer) for packed in state]

    def put(self, batches: Sequence[Batch]) -> None:
        """Have these come next, in place of what was drawn ahead; the caller holds the buffer's lock."""
        with self._changed:
            self._ready.clear()
            self._ready.extend(_Ready(batch, None) for batch in batches)
            self._random, self._asked = None, False
            self._halted = bool(batches) and batches[-1].ran_out
            self._changed.notify_all()

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Have the batches of :meth:`state` come next; the caller holds the buffer's lock."""
        self.put(self.unpacked(state))

    def renew_after_fork(self) -> None:
        """In a forked child, which has a copy of the batches and no thread: lock and thread anew."""
        self._changed = threading.Condition()
        self._thread = None
        self._waiting = 0

    def _may_draw(self) -> bool:
        if not self._asked:
            return False
        if self._halted:
            return not self._ready and self._waiting > 0
        return len(self._ready) < self._depth

    def _draw(self, buffer: ComposedBuffer) -> None:
        size = buffer.batch_size
        # The batch is put in line under the buffer's lock: whoever empties the buffer finds it there.
        with buffer._lock.lock:
            with self._changed:
                if self._stopped or not self._may_draw():
                    return  # the buffer was emptied or closed while this thread waited for its lock
                if self._random is not None:
                    self._random.before()
            batch, ends = self._one(buffer, size)
            with self._changed:
                self._halted = ends
                self._ready.append(batch)
                self._changed.notify_all()

    def _one(self, buffer: ComposedBuffer, size: int | None) -> tuple[_Ready, bool]:
        """A batch or an error, and whether to wait behind it until somebody asks for more.

        The caller holds the buffer's lock.
        """
        sampler, random = buffer._sampler, self._random
        if random is None:
            return _Ready(batch := _drawn(buffer, size), None), _ends(batch)
        before = random.generator.get_state()
        sampler.generator = random.generator
        try:
            batch = _drawn(buffer, size)
        finally:
            sampler.generator = None
        return _Ready(batch, (before, random.generator.get_state())), _ends(batch)


class _Ready(NamedTuple):
    """A batch in line, or what came instead of it; the random generator's states before and behind it."""

    batch: Batch | BaseException
    moved: tuple[Tensor, Tensor] | None


def _ends(batch: Batch | BaseException) -> bool:
    return batch.ran_out if isinstance(batch, Batch) else True


def _drawn(buffer: ComposedBuffer, size: int | None) -> Batch | BaseException:
    try:
        if size is None:
            raise RuntimeError("A buffer that prefetches needs a batch size.")
        batch = buffer._draw(size, buffer._info_in_sample)
        if batch.ran_out:
            buffer._sampler.ran_out = False
    except BaseException as error:
        return error
    return batch


def _run(prefetcher: Prefetcher) -> None:
    while True:
        with prefetcher._changed:
            prefetcher._changed.wait_for(lambda: prefetcher._stopped or prefetcher._may_draw())
            if prefetcher._stopped:
                return
        buffer = prefetcher._buffer()
        if buffer is None:
            return
        prefetcher._draw(buffer)
        del buffer  # while waiting, nothing here keeps it alive


def _packed(batch: Batch) -> dict[str, Any]:
    info = [
        [list(key) if isinstance(key, tuple) else key, copied(value)]
        for key, value in batch.info.items()
        if key != "index"
    ]
    # What else a transform or a storage of objects made is read again from the same places.
    data = copied(batch.data) if isinstance(batch.data, Tensor) or _is_plain(batch.data) else None
    return {"index": copied(batch.info["index"]), "info": info, "ran_out": batch.ran_out, "data": data}


def _is_plain(data: Any) -> bool:
    """Whether a checkpoint can hold a batch: TensorDicts of tensors, and of texts and other plain values."""
    if type(data) is TensorDict:
        return all(_is_plain(value) for value in data.values())
    if type(data) is NonTensorStack:
        return all(_is_plain(value) for value in data.tensordicts)
    if type(data) is NonTensorData:
        return data.data is None or isinstance(data.data, (bool, int, float, str))
    return type(data) is Tensor


def copied(value: Any) -> Any:
    """A value of a state with no memory in common with it. O(bytes)."""
    if isinstance(value, Tensor) or is_tensor_collection(value):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        items = [copied(item) for item in value]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return copy.deepcopy(value)


def _unpacked(state: dict[str, Any], buffer: ComposedBuffer) -> Batch:
    """A batch out of its state, which stays the caller's."""
    data, index = copied(state["data"]), copied(state["index"])
    _check_index(index, buffer.storage.shape)
    info: dict[Any, Any] = {
        tuple(key) if isinstance(key, list) else key: copied(value) for key, value in state["info"]
    }
    if not all(isinstance(part, str) for key in info for part in (key if isinstance(key, tuple) else (key,))):
        raise TypeError(f"the keys {list(info)} of a batch drawn ahead are not all strings")
    if data is None:
        data, index, info = buffer._read_again(index, info)
    elif not isinstance(data, Tensor) and not _is_plain(data):
        raise TypeError(f"a batch drawn ahead is a {type(data).__name__}")
    info["index"] = index
    batch = Batch(data, info, bool(state["ran_out"]))
    buffer._check_batch(batch)
    return batch


def _check_index(index: Any, shape: Sequence[int]) -> None:
    """See to it that places are int64 numbers of stored items, one tensor or one a dimension."""
    parts = index if isinstance(index, tuple) else (index,)
    good = 0 < len(parts) <= len(shape) and all(
        isinstance(part, Tensor)
        and part.dtype == torch.int64
        and part.ndim > 0
        and bool(((part >= 0) & (part < size)).all())
        for part, size in zip(parts, shape, strict=False)
    )
    if not good:
        raise TypeError(f"a batch drawn ahead is of the places {str(index)[:200]} in a storage {list(shape)}")
