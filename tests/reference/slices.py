"""What the kernels do with slices, in plain Python over lists of trajectories."""

from __future__ import annotations

from collections.abc import Sequence

from reference.trajectory_index import Found


def scaled(random: int, n: int) -> int:
    """A number in ``[0, n)`` from one in ``[0, 2^63)``."""
    return random * n >> 63


def window(found: Found, random: int, slice_len: int, left: int, right: int, length: int) -> Found:
    """The window that a random number picks of a trajectory, cut to it."""
    column, first, steps = found
    if steps < slice_len:
        return found
    begin = scaled(random, steps - slice_len + 1 + left + right) - left
    inside = [k for k in range(begin, begin + slice_len) if 0 <= k < steps]
    return column, (first + inside[0]) % length, len(inside)


def draw(
    eligible: Sequence[Found], randoms: Sequence[int], slice_len: int, left: int, right: int, length: int
) -> list[Found]:
    """A slice for each pair of random numbers, the first of which picks the trajectory."""
    if not eligible:
        return []
    pairs = zip(randoms[::2], randoms[1::2], strict=True)
    return [
        window(eligible[scaled(which, len(eligible))], where, slice_len, left, right, length)
        for which, where in pairs
    ]


def steps_left(every: Sequence[Found], length: int, n_columns: int) -> list[int]:
    """Of every slot, row by row, the number of steps from it to the end of its trajectory."""
    left = [0] * (length * n_columns)
    for column, first, steps in every:
        for k in range(steps):
            left[(first + k) % length * n_columns + column] = steps - k
    return left


def starts(every: Sequence[Found], length: int, n_columns: int, needed: int, first_steps: bool) -> list[bool]:
    """Of every slot, row by row, whether a slice may start there."""
    firsts = {first * n_columns + column for column, first, _ in every}
    return [
        left >= needed or (first_steps and item in firsts)
        for item, left in enumerate(steps_left(every, length, n_columns))
    ]


def spans(
    every: Sequence[Found], length: int, n_columns: int, items: Sequence[int], slice_len: int
) -> list[Found]:
    """The slices that start at given slots."""
    left = steps_left(every, length, n_columns)
    return [(item % n_columns, item // n_columns, min(left[item], slice_len)) for item in items]


def places(
    every: Sequence[Found], length: int, n_columns: int, items: Sequence[int]
) -> list[tuple[int, int]]:
    """The steps before given slots in their trajectories, and those from them on."""
    before = {
        (first + k) % length * n_columns + column: k for column, first, steps in every for k in range(steps)
    }
    left = steps_left(every, length, n_columns)
    return [(before[item], left[item]) for item in items]


def around(
    every: Sequence[Found], length: int, n_columns: int, item: int, back: int, ahead: int
) -> tuple[list[int], int, int]:
    """The slots of the steps around one, clipped to its trajectory, and how many there are."""
    for column, first, steps in every:
        slots = [(first + k) % length * n_columns + column for k in range(steps)]
        if item in slots:
            at = slots.index(item)
            clipped = [slots[min(max(at + by, 0), steps - 1)] for by in range(-back, ahead + 1)]
            return clipped, min(at, back), min(steps - at, ahead + 1)
    raise AssertionError(f"{item} is in no trajectory")


def choice(every: Sequence[Found], length: int, n_columns: int, item: int, which: str, random: int) -> int:
    """The slot that a random number picks of the trajectory of a step."""
    for column, first, steps in every:
        slots = [(first + k) % length * n_columns + column for k in range(steps)]
        if item in slots:
            among = {"future": slots[slots.index(item) :], "final": slots[-1:], "episode": slots}[which]
            return among[scaled(random, len(among))]
    raise AssertionError(f"{item} is in no trajectory")
