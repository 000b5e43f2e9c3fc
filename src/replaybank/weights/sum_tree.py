"""The weight tree: N weights, items drawn in proportion to them, in O(log N)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from replaybank import _native
from replaybank.sending import Sendable
from replaybank.weights import verdicts, walk
from replaybank.weights.walk import FAN, Draw, Level

_LARGE = 1 << 21
"""Bytes from which on large pages are asked for: random leaves of a larger tree miss the TLB each time."""

_FLOATS = (torch.float32, torch.float64)

_empty_like = torch.empty_like  # of a tensor that is there it costs half of what ``torch.empty`` does


class SumTree(Sendable):
    """Weights of N items, drawn in proportion, in O(log N).

    A 16-ary tree: leaves in ``dtype``, sums above in float64, minima and maxima beside them, all in one block
    of memory (``csrc/sum_tree.hpp`` has the layout). A changed leaf has its ancestors summed again from their
    children, so sums never drift (``test_sum_tree.py::test_the_total_is_exact_after_many_updates``). Draws
    and sums are the same to the last bit on every CPU, and on an accelerator, where the walk is torch ops.

    Not thread-safe: the buffer's lock guards it. Shared between processes after :meth:`share_memory_`;
    pickled otherwise, it is copied.

    Args:
        capacity: number of leaves, at least 1.
        dtype: torch.float32 (5.1 bytes a leaf in all) or torch.float64 (9.6).
        device: where it lies, the CPU by default.
        native: use the compiled kernels; by default on the CPU. Elsewhere there are none.

    Raises:
        ValueError: ``capacity`` is less than 1.
        NotImplementedError: another ``dtype``.

    Example:
        >>> tree = SumTree(3)
        >>> tree.update(torch.arange(3), torch.tensor([1.0, 0.0, 2.0]))
        >>> tree.total, tree.smallest, tree.largest
        (3.0, 1.0, 2.0)
        >>> tree.find(torch.tensor([0.5, 1.5, 2.5]))
        tensor([0, 2, 2])
    """

    def __init__(
        self,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        *,
        device: torch.device | str | None = None,
        native: bool | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: a tree has at least 1 leaf.")
        if dtype not in (torch.float32, torch.float64):
            raise NotImplementedError(f"dtype={dtype}: weights are kept in torch.float32 or torch.float64.")
        self.dtype = dtype
        self.device = torch.device("cpu" if device is None else device)
        self.native = self.device.type == "cpu" if native is None else native
        self._allocate(int(capacity))

    def _allocate(self, capacity: int) -> None:
        *_, size = _native.tree_levels(capacity, self.dtype == torch.float64)
        # Zeros are the tree without weights, and cost nothing before they are written.
        memory = torch.zeros(size, dtype=torch.uint8, device=self.device)
        if self.device.type == "cpu" and size >= _LARGE:
            _native.ask_large_pages(memory.data_ptr(), size)
        self._set_memory(memory, capacity)

    def _set_memory(self, memory: Tensor, capacity: int) -> None:
        self.capacity = capacity
        wide = self.dtype == torch.float64
        self._memory = memory
        self._set_blanks(0)
        self._place = (memory.data_ptr(), capacity, wide)
        starts = _native.tree_levels(capacity, wide)
        width = FAN * self.dtype.itemsize
        padded = -(-capacity // FAN) * width
        self._blocks = memory[:padded].view(self.dtype).view(-1, FAN)
        self._levels = []
        for start, end in pairwise(starts[1:]):
            blocks = memory[start:end].view(-1, 8 * FAN + 2 * width)
            self._levels.append(
                Level(
                    blocks[:, : 8 * FAN].view(torch.float64),
                    blocks[:, 8 * FAN : 8 * FAN + width].view(self.dtype),
                    blocks[:, 8 * FAN + width :].view(self.dtype),
                )
            )

    def _set_blanks(self, count: int) -> None:
        """What a draw of ``count`` items is allocated like."""
        self._count = count
        # One element, expanded: what is made like it is contiguous.
        self._blank_items = torch.empty(min(count, 1), dtype=torch.int64).expand(count)
        self._blank_weights = torch.empty(min(count, 1), dtype=self.dtype).expand(count)

    # ---- questions

    @property
    def leaves(self) -> Tensor:
        """All weights ``[capacity]``, to be read only."""
        return self._blocks.view(-1)[: self.capacity]

    @property
    def levels(self) -> list[Level]:
        """The levels above the leaves, from the lowest up, to be read only."""
        return self._levels

    @property
    def nbytes(self) -> int:
        """Memory taken."""
        return self._memory.numel()

    def _top(self) -> tuple[float, float, float]:
        if self.native:
            return _native.tree_top(*self._place)
        top = self._levels[-1]
        total, smallest, largest = walk.recompute(Level(*(part[:1] for part in top)))
        return float(total), float(smallest), float(largest)

    @property
    def total(self) -> float:
        """Sum of all weights. O(1)."""
        return self._top()[0]

    @property
    def smallest(self) -> float:
        """Smallest positive weight, 0 if there is none. O(1)."""
        return self._top()[1]

    @property
    def largest(self) -> float:
        """Largest weight. O(1)."""
        return self._top()[2]

    def weights(self, index: Tensor) -> Tensor:
        """Weights ``[B]`` of items. O(B).

        Args:
            index: int64 ``[B]``, each in ``[0, capacity)``.

        Raises:
            IndexError: an index is out of range.
        """
        index = index.to(self.device)
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self.capacity:
            raise IndexError(f"An index is out of range: {self.capacity} weights are kept.")
        return self.leaves[index]

    def find(self, masses: Tensor) -> Tensor:
        """Items on which masses fall. O(B log N).

        Item k takes the masses from the sum of the weights before it on. Those out of range fall on the first
        or last item with weight; an item without is never found.

        Args:
            masses: float64 ``[B]`` in ``[0, total)``.

        Raises:
            RuntimeError: all weights are 0.

        Example:
            >>> tree = SumTree(4)
            >>> tree.update(torch.arange(4), torch.tensor([1.0, 0.0, 4.0, 3.0]))
            >>> tree.find(torch.tensor([0.5, 1.0, 7.9], dtype=torch.float64))
            tensor([0, 2, 3])
        """
        masses = masses.to(self.device, torch.float64).contiguous()
        index = torch.empty(masses.shape, dtype=torch.int64, device=self.device)
        if not self.native:
            self._refuse_weightless(masses)
            return walk.descend(self._blocks, self._levels, masses)
        found = _native.tree_draw(
            *self._place, masses.data_ptr(), masses.numel(), False, False, 0.0, 0, index.data_ptr(), 0, 0, 0
        )
        if not found:
            self._refuse_weightless(masses)
        return index

    def draw(self, uniforms: Tensor, *, beta: float = 0.0, stamp: int = 0, stratified: bool = False) -> Draw:
        """Items in proportion to their weights, with replacement. O(B log N).

        Args:
            uniforms: float64 ``[B]`` in ``[0, 1)``, contiguous, on the tree's device.
            beta: exponent of the importance weights.
            stamp: a number to be repeated for each item.
            stratified: the k-th draw is from the k-th of B equal parts of the total.

        Raises:
            RuntimeError: all weights are 0.

        Example:
            >>> tree = SumTree(4)
            >>> tree.update(torch.arange(4), torch.tensor([1.0, 0.0, 4.0, 3.0]))
            >>> draw = tree.draw(torch.tensor([0.0, 0.3, 0.9], dtype=torch.float64), beta=1.0)
            >>> draw.items.tolist(), draw.importance.tolist()
            ([0, 2, 3], [1.0, 0.25, 0.3333333432674408])
        """
        count = uniforms.numel()
        if not self.native:
            return self._draw_by_torch(uniforms, beta, stamp, stratified)
        if count != self._count:
            self._set_blanks(count)
        items_like = self._blank_items
        index = _empty_like(items_like)
        importance = _empty_like(self._blank_weights)
        stamps = _empty_like(items_like)
        found = _native.tree_draw(
            *self._place,
            uniforms.data_ptr(),
            count,
            True,
            stratified,
            beta,
            stamp,
            index.data_ptr(),
            0,
            importance.data_ptr(),
            stamps.data_ptr(),
        )
        if not found:
            self._refuse_weightless(uniforms)
        return Draw(index, importance, stamps)

    def _draw_by_torch(self, uniforms: Tensor, beta: float, stamp: int, stratified: bool) -> Draw:
        self._refuse_weightless(uniforms)
        total, smallest, _ = self._top()
        if stratified:
            count = uniforms.numel()
            places = torch.arange(count, dtype=torch.float64, device=self.device)
            uniforms = (places + uniforms) / count
        index = walk.descend(self._blocks, self._levels, uniforms * total)
        importance = (self.leaves[index].double() / smallest).pow(-beta).to(self.dtype)
        return Draw(index, importance, torch.full_like(index, stamp))

    def _refuse_weightless(self, draws: Tensor) -> None:
        if draws.numel() and not self.total > 0:
            raise RuntimeError("All weights are 0: there is nothing to draw in proportion to.")

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest weights and their items, largest first, of equal ones the lower index. O(k log N).

        Items without weight are left out, so there may be fewer than k.

        Args:
            k: how many, at least 0.

        Example:
            >>> tree = SumTree(4)
            >>> tree.update(torch.arange(4), torch.tensor([1.0, 0.0, 4.0, 3.0]))
            >>> tree.top_k(2)
            (tensor([4., 3.]), tensor([2, 3]))
        """
        nodes = torch.zeros(1, dtype=torch.int64, device=self.device)
        chosen, weights = nodes, self.leaves[:0]
        for values in (*(level.maxima for level in reversed(self._levels)), self._blocks):
            # The k largest leaves lie below the k nodes with the largest maxima, ties going to the left.
            candidates = (nodes.unsqueeze(-1) * FAN + torch.arange(FAN, device=self.device)).view(-1)
            order = values[nodes].view(-1).sort(descending=True, stable=True)
            chosen = candidates[order.indices[:k]]
            weights = order.values[:k]
            nodes = chosen[weights > 0].sort().values
        positive = weights > 0
        return weights[positive], chosen[positive]

    # ---- changes

    def update(self, index: Tensor, weight: Tensor) -> None:
        """Set leaves. O(B log N).

        Args:
            index: int64 ``[B]``, each in ``[0, capacity)``; of repeated ones the last wins.
            weight: ``[B]`` or scalar, finite and >= 0. Zero means: never drawn.

        Raises:
            IndexError: an index is out of range; nothing has been changed.
            ValueError: a weight is negative, NaN or infinite; nothing has been changed.

        Example:
            >>> tree = SumTree(4)
            >>> tree.update(torch.arange(4), torch.tensor([1.0, 0.0, 4.0, 3.0]))
            >>> tree.update(torch.tensor([2]), torch.tensor([0.5]))
            >>> tree.total, tree.leaves.tolist()
            (4.5, [1.0, 0.0, 0.5, 3.0])
        """
        self.update_powers(index, weight)

    def update_powers(
        self,
        index: Tensor,
        value: Tensor,
        *,
        eps: float = 0.0,
        alpha: float = 1.0,
        skip: bool = False,
        stale: Tensor | None = None,
        limit: int | None = None,
    ) -> float:
        """Set leaves to (value + eps)^alpha. O(B log N).

        Args:
            index: int64 ``[B]``, each in ``[0, capacity)``; of repeated ones the last wins.
            value: ``[B]`` or scalar, of any real dtype, finite and >= 0.
            eps: added first, >= 0.
            alpha: the exponent, >= 0.
            skip: an index of -1 means that there is nothing to set.
            stale: bool ``[B]``, true for what is not to be set, though it must be good.
            limit: indices must be below it; ``capacity`` by default.

        Returns:
            The largest value that was set, -1 if none was.

        Raises:
            IndexError: an index is out of range; nothing has been changed.
            ValueError: a value is negative, NaN or infinite, or its weight exceeds the dtype; nothing has
                been changed.
        """
        # Each of these costs as much as a small update, and comparing devices three times as much as is_cpu.
        native = self.native
        here = index.is_cpu if native else index.device == self.device
        if not here or index.dtype is not torch.int64 or not index.is_contiguous():
            index = index.to(self.device, torch.int64).contiguous()
        here = value.is_cpu if native else value.device == self.device
        if not here or value.dtype not in _FLOATS or not value.is_contiguous():
            value = value.detach().to(self.device, value.dtype if value.dtype in _FLOATS else torch.float64)
            value = value.contiguous()
        count, n_values = index.numel(), value.numel()
        if n_values != 1 and n_values != count:
            raise RuntimeError(f"{n_values} values {list(value.shape)} for {count} items.")
        limit = self.capacity if limit is None else limit
        if not native:
            index, value = index.reshape(-1), value.detach().reshape(-1).expand(count)
            return self._update_by_torch(index, value, eps, alpha, skip, stale, limit)
        kind, position, largest = _native.tree_update(
            *self._place,
            limit,
            index.data_ptr(),
            count,
            value.data_ptr(),
            value.dtype is torch.float64,
            0 if n_values == 1 else 1,
            eps,
            alpha,
            skip,
            0 if stale is None else stale.data_ptr(),
        )
        if kind != verdicts.GOOD:
            raise verdicts.refusal(kind, position, index, value, alpha, limit, self.dtype)
        return largest

    def _update_by_torch(
        self,
        index: Tensor,
        value: Tensor,
        eps: float,
        alpha: float,
        skip: bool,
        stale: Tensor | None,
        limit: int,
    ) -> float:
        weight = (value.double() + eps).pow(alpha)
        kept = torch.ones_like(index, dtype=torch.bool)
        if skip:
            kept &= index != -1
        found = verdicts.first_wrong(index, value, weight.to(self.dtype), kept, limit)
        if found is not None:
            raise verdicts.refusal(*found, index, value, alpha, limit, self.dtype)
        if stale is not None:
            kept &= ~stale.to(self.device)
        if not bool(kept.any()):
            return -1.0
        changed = walk.put(self._blocks, index[kept], weight[kept].to(self.dtype))
        walk.refresh(self._blocks, self._levels, changed)
        return float(value[kept].max())

    def fill(self, start: int, count: int, weight: float) -> None:
        """Give items ``start, ..., start + count - 1`` one weight. O(count / 16 + log N).

        Args:
            start: the first item.
            count: number of items.
            weight: finite and >= 0.

        Raises:
            ValueError: they are not all there, or the weight is none.

        Example:
            >>> tree = SumTree(4)
            >>> tree.update(torch.arange(4), torch.tensor([1.0, 0.0, 4.0, 3.0]))
            >>> tree.fill(1, 2, 7.0)
            >>> tree.leaves.tolist()
            [1.0, 7.0, 7.0, 3.0]
        """
        if not self.native:
            good = 0 <= start <= start + count <= self.capacity and 0 <= weight < torch.inf
            if good and count:
                self.leaves[start : start + count] = weight
                self._refresh_run(start, count)
        else:
            good = _native.tree_fill(*self._place, start, count, weight)
        if not good:
            raise ValueError(
                f"Cannot give items {start} to {start + count - 1} of {self.capacity} the weight {weight}."
            )

    def select(self, source: SumTree, mask: Tensor, start: int, count: int) -> None:
        """Take a run of leaves from ``source`` where ``mask`` is set, 0 elsewhere. O(count / 16 + log N).

        Args:
            source: a tree of the same capacity and dtype.
            mask: bool ``[capacity]``.
            start: the first item.
            count: number of items.
        """
        self._check_twin(source, mask)
        if not self.native:
            run = slice(start, start + count)
            self.leaves[run] = source.leaves[run] * mask[run]
            self._refresh_run(start, count)
        elif not _native.tree_select_run(*self._place, source._place[0], mask.data_ptr(), start, count):
            raise IndexError(f"Items {start} to {start + count - 1} are not among {self.capacity}.")

    def select_items(self, source: SumTree, mask: Tensor, index: Tensor) -> None:
        """The same for some leaves, int64 ``[B]``; negative ones are skipped. O(B log N)."""
        self._check_twin(source, mask)
        if not self.native:
            index = index[index >= 0]
            if index.numel():
                changed = walk.put(self._blocks, index, source.leaves[index] * mask[index])
                walk.refresh(self._blocks, self._levels, changed)
        elif not _native.tree_select(
            *self._place, source._place[0], mask.data_ptr(), index.data_ptr(), index.numel()
        ):
            raise IndexError(f"An index is out of range: {self.capacity} weights are kept.")

    def _check_twin(self, source: SumTree, mask: Tensor) -> None:
        if source.capacity != self.capacity or source.dtype != self.dtype or mask.numel() != self.capacity:
            raise ValueError(
                f"A tree of {self.capacity} {self.dtype} cannot take weights from one of {source.capacity} "
                f"{source.dtype} by a mask of {mask.numel()}."
            )

    def _refresh_run(self, start: int, count: int) -> None:
        if count:
            blocks = torch.arange(start // FAN, (start + count - 1) // FAN + 1, device=self.device)
            walk.refresh(self._blocks, self._levels, blocks)

    def set_leaves(self, weights: Tensor) -> None:
        """Give items ``0, 1, ...`` weights ``[n]``, and all others none. O(N).

        Args:
            weights: ``[n]``, finite and >= 0.

        Raises:
            ValueError: there are more than ``capacity``, or one is no weight; nothing has been changed.
        """
        flat = weights.detach().to(self.device, self.dtype).reshape(-1)
        if flat.numel() > self.capacity:
            raise ValueError(f"{flat.numel()} weights for a tree of {self.capacity}.")
        if not bool(((flat >= 0) & (flat < torch.inf)).all()):
            raise ValueError("A weight is negative, NaN or infinite. Nothing has been changed.")
        self.leaves[: flat.numel()] = flat
        self.leaves[flat.numel() :] = 0
        self._refresh_all()

    def refresh(self) -> None:
        """Make all sums anew from the leaves, after a change that was broken off. O(N)."""
        self._refresh_all()

    def _refresh_all(self) -> None:
        if self.native:
            _native.tree_refresh(*self._place)
        else:
            self._refresh_run(0, self.capacity)

    def clear(self) -> None:
        """Give no item any weight. O(N)."""
        self._memory.zero_()

    def grow(self, capacity: int) -> None:
        """Have room for more items, which have no weight yet. O(N).

        Args:
            capacity: number of leaves, at least what there is.

        Raises:
            RuntimeError: the tree is shared: other processes would not see it.
        """
        if capacity <= self.capacity:
            return
        if self._memory.is_shared() and self.device.type == "cpu":
            raise RuntimeError(
                f"A shared tree of {self.capacity} cannot grow to {capacity}: make it that large first."
            )
        leaves = self.leaves
        self._allocate(capacity)
        self.leaves[: leaves.numel()] = leaves
        self._refresh_all()

    # ---- state

    def share_memory_(self) -> SumTree:
        """Move the tree to shared memory, so that processes it is sent to see one tree."""
        self._memory.share_memory_()
        self._set_memory(self._memory, self.capacity)
        return self

    def state_dict(self) -> dict[str, Any]:
        """The leaves; what is above them follows. O(N)."""
        return {"leaves": self.leaves.clone()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over leaves, and grow if there are more. O(N).

        Args:
            state_dict: what :meth:`state_dict` gave.
        """
        leaves = state_dict["leaves"]
        self.grow(leaves.numel())
        self.set_leaves(leaves)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "dtype": self.dtype,
            "device": self.device,
            "native": self.native,
            "memory": self._memory,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.dtype, self.device, self.native = state["dtype"], state["device"], state["native"]
        self._set_memory(state["memory"], state["capacity"])

    def __len__(self) -> int:
        return self.capacity

    def __repr__(self) -> str:
        return f"SumTree(capacity={self.capacity}, dtype={self.dtype}, total={self.total})"
