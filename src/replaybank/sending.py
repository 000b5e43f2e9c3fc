"""Objects on their way to another process: what no process shares yet is sent by value.

Left to itself, torch moves the memory of every tensor that is sent to a process into shared memory, with a
file descriptor for each. The sender and what it sent would then write into each other's memory; a list of
many tensors would need more descriptors than a process may have; and a tensor that was only made to be sent is
gone, its descriptor with it, before a spawned process begins (``ValueError: bad value(s) in fds_to_keep``).
"""

from __future__ import annotations

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor


class Sendable:
    """What can be sent to a process: a ``Process`` argument, through a queue or a pipe, by any start method.

    Memory that it shares already stays shared. All other tensors in it, and in what the user gave it, arrive
    as copies of their own. What is sent with it in one message and holds it too has the same copy of it.

    Thread-safety: as that of the object.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        reduction = super().__reduce_ex__(protocol)
        if isinstance(reduction, tuple) and len(reduction) > 2 and type(reduction[2]) is dict:
            return (*reduction[:2], _State(reduction[2]), *reduction[3:])
        return reduction


class _State(dict[str, Any]):
    """A state that pickles meant for processes treat as above; to all else, and once unpickled, a dict."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)


class _Sender(ForkingPickler):
    """Writes a state, but leaves out the objects in it that are sendable themselves: ``parts``."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.dispatch_table.update(_REDUCERS)  # type: ignore[attr-defined]
        self.parts: list[Sendable] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Sendable):
            return None
        place = self._places.setdefault(id(obj), len(self.parts))
        if place == len(self.parts):
            self.parts.append(obj)
        return place


class _Receiver(pickle.Unpickler):
    def __init__(self, content: bytes, parts: list[Sendable]) -> None:
        super().__init__(io.BytesIO(content))
        self._parts = parts

    def persistent_load(self, place: int) -> Sendable:
        return self._parts[place]


def _sent(state: _State) -> tuple[Any, ...]:
    file = io.BytesIO()
    sender = _Sender(file)
    sender.dump(dict(state))
    state.clear()  # copies that were made for this are not needed while the bytes travel
    return _received, (file.getvalue(), sender.parts)


def _received(content: bytes, parts: list[Sendable]) -> Any:
    return _Receiver(content, parts).load()


def _storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "cpu" or storage.is_shared():
        return reduce_storage(storage)
    return _storage_of, (pickle.PickleBuffer(torch.empty(0, dtype=torch.uint8).set_(storage).numpy()),)


def _storage_of(content: bytearray) -> torch.UntypedStorage:
    made = torch.empty(len(content), dtype=torch.uint8)  # aligned as torch does it
    made.numpy()[:] = np.frombuffer(content, dtype=np.uint8)
    return made.untyped_storage()


def _tensor(tensor: Tensor) -> Any:
    if tensor.device.type in ("cpu", "meta"):
        return reduce_tensor(tensor)
    # Memory of an accelerator counts as shared always, and would be.
    return _on_device, (tensor.detach().cpu(), tensor.device, type(tensor), tensor.requires_grad)


def _on_device(data: Tensor, device: torch.device, kind: type[Tensor], requires_grad: bool) -> Tensor:
    there = data.to(device)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(there, requires_grad=requires_grad)
    return there.requires_grad_(requires_grad)


_REDUCERS: dict[type, Any] = {
    torch.UntypedStorage: _storage,
    Tensor: _tensor,
    torch.nn.Parameter: _tensor,
}

ForkingPickler.register(_State, _sent)
