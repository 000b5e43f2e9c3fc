"""TensorDicts of differing shapes, stacked lazily."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection, lazy_stack

from replaybank.storages.list import ListStorage


class LazyStackStorage(ListStorage):
    """TensorDicts of differing shapes: several of them come as one lazy stack.

    Nothing is padded or copied: what was written is what the stack holds. Setting an entry of a stack does
    not change the stored items; changing their tensors in place does.

    Not thread-safe: the buffer's lock guards it.

    Args:
        max_size: capacity; without it the storage grows as needed.
        stack_dim: dimension of the stack that counts items; negative ones from the end.
        device: where TensorDicts are moved when they are written; None leaves them as they are.

    Example:
        >>> storage = LazyStackStorage(10)
        >>> storage.set(range(2), [TensorDict({"x": torch.ones(n)}, [n]) for n in (2, 3)])
        >>> batch = storage[[0, 1]]
        >>> batch.batch_size, [part["x"].shape for part in batch.unbind(0)]
        (torch.Size([2, -1]), [torch.Size([2]), torch.Size([3])])
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        stack_dim: int = 0,
        device: torch.device | str | None = None,
        compilable: bool = False,
    ) -> None:
        super().__init__(max_size, device=device, compilable=compilable)
        self.stack_dim = stack_dim

    def _kept(self, items: list[Any]) -> list[Any]:
        for item in items:
            if not is_tensor_collection(item):
                raise TypeError(
                    f"A LazyStackStorage holds TensorDicts, got {type(item).__name__}: use ListStorage. "
                    "Nothing has been written."
                )
            dims = item.batch_dims + 1
            if not -dims <= self.stack_dim < dims:
                raise ValueError(
                    f"stack_dim={self.stack_dim}, but a stack of TensorDicts with batch size "
                    f"{list(item.batch_size)} has {dims} dimension(s). Nothing has been written."
                )
        return items

    def _together(self, items: list[Any]) -> Any:
        if not items:
            return TensorDict({}, [0])
        # Setting an entry of a lazy stack sets it in the parts: these must not be the stored items.
        parts = [item.copy() for item in items]
        return lazy_stack(parts, self.stack_dim % (parts[0].batch_dims + 1))
