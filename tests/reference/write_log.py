"""The write log, slot by slot: every slot's write stamp, and the stamp it continues."""

from __future__ import annotations


class SlotLog:
    """What ``WriteLog`` means, kept in plain lists."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.clock = 0
        self.clear()

    def clear(self) -> None:
        self.stamp: list[int | None] = [None] * self.rows
        self.continues: list[int | None] = [None] * self.rows
        self.cursor = 0
        self.before_cursor: int | None = None

    def append(self, start: int, count: int, set_cursor: bool = True) -> None:
        previous = self.before_cursor if set_cursor and start == self.cursor else None
        if previous is not None and self.stamp[start - 1] != previous:
            previous = None
        for k in range(count):
            slot = (start + k) % self.rows
            self.clock += 1
            self.stamp[slot], self.continues[slot] = self.clock, previous
            previous = self.clock
        if set_cursor:
            self.cursor = (start + count) % self.rows
            self.before_cursor = self.clock

    def fill(self, wraps: bool, count: int) -> None:
        self.clear()
        self.append(0, count)
        self.before_cursor = None
        if wraps:
            self.continues[0] = self.stamp[-1]

    def cut(self, slot: int) -> bool:
        before = self.stamp[slot - 1]
        return before is None or self.continues[slot] != before

    @property
    def length(self) -> int:
        return sum(stamp is not None for stamp in self.stamp)
