"""The smallest storage that samplers and the trajectory index can read: plain tensors and a write log."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from replaybank.storages.write_log import WriteLog

Key = tuple[str, ...]


class PlainStorage:
    """Leaves ``[rows, *columns, *item]``; what is written comes as a mapping of them."""

    def __init__(self, rows: int, columns: tuple[int, ...] = ()) -> None:
        self.rows = rows
        self.columns = columns
        self.log = WriteLog(rows)
        self.leaves: dict[Key, Tensor] = {}
        self.device = torch.device("cpu")

    @property
    def ndim(self) -> int:
        return 1 + len(self.columns)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.log.length, *self.columns))

    @property
    def max_size(self) -> int:
        return self.log.rows * torch.Size(self.columns).numel()

    def __len__(self) -> int:
        return self.shape.numel()

    def leaf_keys(self) -> list[Key]:
        return list(self.leaves)

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        return self.leaves[key][: self.log.length][rows]

    def _put(self, rows: Tensor, data: Mapping[Key, Tensor]) -> None:
        for key, value in data.items():
            if key not in self.leaves:
                self.leaves[key] = torch.zeros((self.rows, *value.shape[1:]), dtype=value.dtype)
            self.leaves[key][rows] = value

    def write(self, start: int, data: Mapping[Key, Tensor], *, set_cursor: bool = True) -> None:
        count = len(next(iter(data.values())))
        self._put((start + torch.arange(count)) % self.rows, data)
        self.log.append(start, count, set_cursor=set_cursor)

    def extend(self, data: Mapping[Key, Tensor]) -> None:
        self.write(self.log.cursor, data)

    def replace(self, rows: Tensor, data: Mapping[Key, Tensor]) -> None:
        self._put(rows, data)
        self.log.touch(rows)
