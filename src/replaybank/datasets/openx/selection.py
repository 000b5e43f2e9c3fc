"""Episodes that are picked out of a dataset by their numbers, and where their steps lie."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.showing import Words

MOST_NUMBERS = 10
"""Of selected episodes that an error names."""

_MOST = 1 << 31
"""Episodes that a dataset can have: the entry ``"episode"`` is int32."""


def episodes_chosen(episodes: Any, count: int | None) -> Tensor:
    """Numbers of the episodes that count, int64, sorted, each once.

    Args:
        episodes: whole numbers, or a slice; negative ones count from the end.
        count: how many episodes there are; None: that is not known.

    Raises:
        IndexError: there is no such episode.
        ValueError: none is selected; or a slice of an unknown number.
        TypeError: they are no whole numbers.
    """
    return _chosen(_numbers(episodes, count), count)


def _chosen(numbers: Tensor, count: int | None) -> Tensor:
    if not len(numbers):
        raise ValueError("No episode is selected: give the number of one at least.")
    bad = numbers[numbers < 0] if count is None else numbers[(numbers < -count) | (numbers >= count)]
    if len(bad):
        raise _out_of_range(int(bad[0]), count)
    chosen: Tensor = torch.where(numbers < 0, numbers + (count or 0), numbers).unique()
    return chosen


def _out_of_range(number: int, count: int | None) -> IndexError:
    there = "how many there are is not known" if count is None else f"there are {count}"
    return IndexError(f"Episode {number} is out of range: {there}.")


def selected(episodes: Any, count: int | None) -> Tensor:
    """Numbers of the episodes that an argument ``episodes=`` asks for, int64, ascending.

    Args:
        episodes: whole numbers in any order, each once; a slice; negative ones count from the end.
        count: how many episodes there are; None: that is not known.

    Raises:
        IndexError: there is no such episode.
        ValueError: none is selected, or one more than once; or a slice of an unknown number.
        TypeError: they are no whole numbers.

    >>> selected([4, 0, -2], 5).tolist(), selected(slice(None, 2), 5).tolist()
    ([0, 3, 4], [0, 1])
    """
    numbers = _numbers(episodes, count)
    chosen = _chosen(numbers, count)
    if len(chosen) != len(numbers):
        there = torch.where(numbers < 0, numbers + (count or 0), numbers)
        values, counts = there.unique(return_counts=True)
        raise ValueError(
            f"episodes names episode {int(values[counts > 1][0])} more than once: give each number once"
        )
    return chosen


def _numbers(episodes: Any, count: int | None) -> Tensor:
    """The numbers as they are given, int64. Raises what :func:`episodes_chosen` does, but of the range."""
    if isinstance(episodes, slice):
        episodes = _range_of(episodes, count)
    if isinstance(episodes, range):
        # Before memory is taken for all of them.
        bad = _first_outside(episodes, 0 if count is None else -count, _MOST if count is None else count)
        if bad is not None:
            raise _out_of_range(bad, count)
        return (
            torch.arange(episodes.start, episodes.stop, episodes.step) if episodes else torch.empty(0).long()
        )
    numbers = _whole_numbers(episodes)
    beyond = (
        [number for number in numbers if not -_MOST <= number < _MOST] if isinstance(numbers, list) else []
    )
    if beyond:
        raise _out_of_range(beyond[0], count)
    return torch.from_numpy(np.asarray(numbers, dtype=np.int64))


def _first_outside(numbers: range, low: int, high: int) -> int | None:
    """The first that is not in ``[low, high)``. O(1).

    >>> _first_outside(range(9), -6, 6), _first_outside(range(5, -9, -4), -6, 6)
    (6, -7)
    """
    if not numbers or (low <= numbers[0] < high and low <= numbers[-1] < high):
        return None
    if not low <= numbers[0] < high:
        return numbers[0]
    beyond = high if numbers.step > 0 else low - 1
    return numbers[-((numbers[0] - beyond) // numbers.step)]


def _range_of(episodes: slice, count: int | None) -> range:
    if count is None:
        raise ValueError(
            f"episodes={episodes}: how many episodes there are is not known, so there is no slice of "
            "them: give their numbers"
        )
    try:
        numbers = range(count)[episodes]
    except (TypeError, ValueError) as error:
        raise type(error)(f"episodes={episodes}: {error}") from None
    if not numbers:
        raise ValueError(f"No episode is selected by episodes={episodes}: there are {count}.")
    return numbers


def _whole_numbers(episodes: Any) -> npt.NDArray[Any] | list[int]:
    if isinstance(episodes, Tensor) and episodes.ndim:
        whole = not (episodes.is_floating_point() or episodes.is_complex())
        episodes = episodes.detach().cpu()
        episodes = episodes.numpy() if whole else episodes.tolist()
    one = isinstance(episodes, (np.ndarray, Tensor)) and not episodes.ndim
    if one or isinstance(episodes, (str, bytes)) or not isinstance(episodes, Iterable):
        raise TypeError(f"episodes={episodes!r}: give the numbers of episodes, such as [0, 4] or range(10)")
    if isinstance(episodes, np.ndarray) and episodes.ndim == 1 and episodes.dtype.kind in "iu":
        # Numbers that int64 does not have would come to be others.
        return episodes.tolist() if episodes.dtype == np.uint64 else episodes.astype(np.int64)
    given = list(episodes)
    wrong = [one for one in given if not _is_whole(one)]
    if wrong:
        raise TypeError(f"episodes are picked by whole numbers, got {wrong[0]!r} among them")
    return [operator.index(one) for one in given]


def _is_whole(number: Any) -> bool:
    """Whether it counts something; bools are a mask, which picks by place, and not by number."""
    if isinstance(number, (bool, np.bool_)) or (isinstance(number, Tensor) and number.dtype == torch.bool):
        return False
    try:
        operator.index(number)
    except TypeError:
        return False
    return True


def place_in(numbers: Tensor | None, number: int, count: int) -> int:
    """The place of an episode among those that are selected. O(log episodes).

    Args:
        numbers: ascending; None: all are selected.
        number: of the episode in the dataset; negative ones count from the end.
        count: how many episodes the dataset has.

    Raises:
        IndexError: there is no such episode, or it is not selected.
    """
    if not -count <= number < count:
        raise IndexError(f"Episode {number} is out of range: there are {count}.")
    number %= count
    if numbers is None:
        return number
    place = int(torch.searchsorted(numbers, number))
    if place == len(numbers) or numbers[place] != number:
        raise not_selected(number, numbers, count)
    return place


def chosen_of(numbers: Tensor, episodes: Any, count: int | None) -> Tensor:
    """Those of the selected episodes that count, int64, ascending. As :func:`episodes_chosen`, and raises

    IndexError: one is not selected.
    """
    chosen = episodes_chosen(episodes, count)
    outside = chosen[~torch.isin(chosen, numbers)]
    if len(outside):
        raise not_selected(int(outside[0]), numbers, count)
    return chosen


def not_selected(number: int, numbers: Tensor, count: int | None) -> IndexError:
    """The error for an episode that is there, and not among those selected."""
    return IndexError(
        f"Episode {number} is not among the {told_selection(numbers, count)} that were selected."
    )


def check_same_episodes(saved: Any, here: Tensor | None) -> None:
    """See to it that a state is of the episodes that are selected.

    Args:
        saved: their numbers, or None for all, as the state has it.
        here: those of whoever takes it over.

    Raises:
        ValueError: they are others; or the state is damaged.
    """
    if saved is not None and not (isinstance(saved, Tensor) and saved.dtype == torch.int64):
        raise ValueError(f"The state is damaged: its selected episodes are {saved!r:.80}.")
    if saved is not here and (saved is None or here is None or not torch.equal(saved, here)):
        raise ValueError(
            f"The state is of {_said(saved)}, this dataset has {_said(here)}: give the episodes= that it had"
        )


def _said(numbers: Tensor | None) -> str:
    if numbers is None:
        return "all episodes"
    shown = ", ".join(map(str, numbers[:MOST_NUMBERS].tolist()))
    return f"{len(numbers)} selected ones, {shown}{', ...' if len(numbers) > MOST_NUMBERS else ''}"


def told_selection(numbers: Tensor | None, count: int | None) -> int | Words | None:
    """How many episodes there are, and of how many, as a ``repr`` tells it; None where that is not known."""
    if numbers is None:
        return count
    return Words(f"{len(numbers)} of {'an unknown number' if count is None else count}")


class Runs:
    """Some runs of rows, one behind the other, as items.

    Immutable, so safe in any thread.

    Args:
        runs: first row and length of each run, int64 ``[runs, 2]``, in order.

    >>> runs = Runs(torch.tensor([[10, 2], [20, 3]]))
    >>> runs.size, runs.places(torch.arange(5)).tolist()
    (5, [10, 11, 20, 21, 22])
    """

    def __init__(self, runs: Tensor) -> None:
        # In NumPy: for a batch torch's searchsorted wakes its threads, which takes a hundred times as long.
        self._ends = runs[:, 1].cumsum(0).numpy()
        self._shift = runs.sum(1).numpy() - self._ends
        self.size = int(self._ends[-1]) if len(runs) else 0
        """Items of all runs."""

    def places(self, items: Tensor) -> Tensor:
        """The rows of items. O(items log runs)."""
        run = np.searchsorted(self._ends, items.numpy(), side="right")
        return items + torch.as_tensor(self._shift[run])


def joined(bounds: Tensor) -> Tensor:
    """Runs of rows, those that follow each other joined. O(runs).

    >>> joined(torch.tensor([[0, 4], [4, 2], [9, 1]])).tolist()
    [[0, 6], [9, 1]]
    """
    starts, ends = bounds[:, 0], bounds.sum(1)
    begins = torch.ones(len(bounds), dtype=torch.bool)
    begins[1:] = starts[1:] != ends[:-1]
    closes = begins.roll(-1)  # the last one closes as the first one begins
    return torch.stack([starts[begins], ends[closes] - starts[begins]], 1)
