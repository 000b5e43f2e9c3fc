"""A storage and its brute-force twin, written together at random."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

from reference.storage import PlainStorage
from reference.trajectory_index import Found, trajectories
from reference.write_log import SlotLog
from replaybank.trajectories.signals import ChangeSignal, DoneSignal, EndSignal


class History:
    """A storage and its brute-force twin, written together at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows = self.random.choice([1, 2, 3, 7, 8, 30, 63, 64, 65, 130])
        columns = self.random.choice([(), (), (1,), (3,), (2, 2)])
        self.n_columns = math.prod(columns)
        self.by_change = self.random.random() < 0.5
        self.p_end = self.random.choice([0.0, 0.05, 0.3, 1.0])
        item = self.random.choice([(), (1,), (2, 3)] if self.by_change else [(), (1,)])
        self.shape = (*columns, *item)
        self.key = ("next", "done")
        self.signal: EndSignal = ChangeSignal(self.key) if self.by_change else DoneSignal(self.key)
        self.dtype = self.random.choice(
            [torch.int64, torch.float32, torch.uint8] if self.by_change else [torch.bool]
        )
        self.storage = PlainStorage(self.rows, columns)
        self.log = SlotLog(self.rows)
        self.values: list[list[Any]] = [[0] * self.n_columns for _ in range(self.rows)]
        self.current = [0] * self.n_columns

    def new_values(self, count: int) -> Tensor:
        rows = []
        for _ in range(count):
            for column in range(self.n_columns):
                end = self.random.random() < self.p_end
                self.current[column] = (self.current[column] + end) % 5 if self.by_change else int(end)
            rows.append(list(self.current))
        values = torch.tensor(rows, dtype=self.dtype).reshape(count, self.n_columns, 1)
        n_items = math.prod(self.shape) // self.n_columns
        return values.expand(count, self.n_columns, n_items).reshape(count, *self.shape)

    def remember(self, rows: list[int], values: Tensor) -> None:
        for row, value in zip(
            rows, values.reshape(len(rows), self.n_columns, -1)[..., 0].tolist(), strict=True
        ):
            self.values[row] = value

    def write(self, start: int, count: int, set_cursor: bool) -> None:
        values = self.new_values(count)
        self.storage.write(start, {self.key: values}, set_cursor=set_cursor)
        self.log.append(start, count, set_cursor)
        self.remember([(start + k) % self.rows for k in range(count)], values)

    def step(self) -> None:
        log = self.storage.log
        kind = self.random.random()
        count = self.random.choice([1, 1, 2, self.random.randint(1, self.rows), self.rows])
        count = min(count, self.rows)
        if kind < 0.6 or log.length == 0:
            self.write(log.cursor, count, True)
        elif kind < 0.7:
            self.write(
                self.random.randrange(min(log.length + 1, self.rows)), count, self.random.random() < 0.5
            )
        elif kind < 0.94:
            rows = self.random.sample(range(log.length), min(self.random.choice([1, 3]), log.length))
            values = self.new_values(len(rows))
            self.storage.replace(torch.tensor(rows), {self.key: values})
            self.remember(rows, values)
        elif kind < 0.96:
            log.clear()
            self.log.clear()
        elif kind < 0.98:
            log.load_state_dict(log.state_dict())
        else:
            wraps = self.random.random() < 0.5
            count = self.rows if wraps else self.random.randint(1, self.rows)
            values = self.new_values(self.rows)
            self.storage.leaves[self.key] = values.clone()
            log.fill(wraps=wraps, count=count)
            self.log.fill(wraps, count)
            self.remember(list(range(self.rows)), values)

    def trajectories(self) -> list[Found]:
        return trajectories(self.log, self.values, self.by_change)
