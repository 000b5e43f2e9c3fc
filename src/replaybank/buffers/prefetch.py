"""Batches drawn ahead by a background thread."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from tensordict import TensorDict
from torch import Tensor

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

    Thread-safe. The thread takes the buffer's lock first and its own second; a caller of :meth:`next` must
    not hold the buffer's lock.

    Args:
        buffer: whom to draw for.
        depth: number of batches to keep ready.
    """

    def __init__(self, buffer: ComposedBuffer, depth: int) -> None:
        self._buffer = weakref.ref(buffer)
        self._depth = depth
        self._ready: deque[Batch | BaseException] = deque()
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
        with self._changed:
            self._start()
            self._waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._ready)
                batch = self._ready.popleft()
            finally:
                self._waiting -= 1
            self._changed.notify_all()
        if isinstance(batch, BaseException):
            raise batch
        self._tell_the_sampler(batch.ran_out)
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
            # Nothing is drawn from an emptied buffer until somebody asks: it may be filled before that.
            self._halted = True

    def redo(self) -> None:
        """Read what was drawn ahead once more, with other transforms; the caller holds the buffer's lock."""
        self.load([{**packed, "data": None} for packed in self.state()])

    def stop(self) -> None:
        """End the thread. What was drawn ahead is kept for the next call of :meth:`next`."""
        with self._changed:
            self._stopped = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def state(self) -> list[dict[str, Any]]:
        """The batches drawn ahead, as tensors and plain values; the caller holds the buffer's lock."""
        with self._changed:
            return [_packed(batch) for batch in self._ready if isinstance(batch, Batch)]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Have the batches of :meth:`state` come next; the caller holds the buffer's lock."""
        buffer = self._buffer()
        batches = [] if buffer is None else [_unpacked(packed, buffer) for packed in state]
        with self._changed:
            self._ready.clear()
            self._ready.extend(batches)
            self._halted = bool(batches) and batches[-1].ran_out
            self._changed.notify_all()

    def renew_after_fork(self) -> None:
        """In a forked child, which has a copy of the batches and no thread: lock and thread anew."""
        self._changed = threading.Condition()
        self._thread = None
        self._waiting = 0

    def _may_draw(self) -> bool:
        if self._halted:
            return not self._ready and self._waiting > 0
        return len(self._ready) < self._depth

    def _draw(self, buffer: ComposedBuffer) -> None:
        size = buffer.batch_size
        # The batch is put in line under the buffer's lock: whoever empties the buffer finds it there.
        with buffer._lock.lock:
            batch: Batch | BaseException
            with self._changed:
                if self._stopped or not self._may_draw():
                    return  # the buffer was emptied or closed while this thread waited for its lock
            try:
                if size is None:
                    raise RuntimeError("A buffer that prefetches needs a batch size.")
                batch = buffer._draw(size, buffer._info_in_sample)
                ends = batch.ran_out
                if ends:
                    buffer._sampler.ran_out = False
            except BaseException as error:
                batch, ends = error, True
            with self._changed:
                self._halted = ends
                self._ready.append(batch)
                self._changed.notify_all()


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
    index = batch.info["index"]
    info = [
        [list(key) if isinstance(key, tuple) else key, v] for key, v in batch.info.items() if key != "index"
    ]
    # What else a transform or a storage of objects made is read again from the same places.
    data = batch.data if isinstance(batch.data, Tensor) or _is_plain(batch.data) else None
    return {"index": index, "info": info, "ran_out": batch.ran_out, "data": data}


def _is_plain(data: Any) -> bool:
    return type(data) is TensorDict and all(type(leaf) is Tensor for leaf in data.values(True, True))


def _unpacked(state: dict[str, Any], buffer: ComposedBuffer) -> Batch:
    data, index = state["data"], state["index"]
    if data is None:
        data = buffer._assemble(buffer.storage.get(index), buffer._info_in_sample)
    info: dict[Any, Any] = {tuple(key) if isinstance(key, list) else key: v for key, v in state["info"]}
    info["index"] = index
    return Batch(data, info, state["ran_out"])
