"""Several writers as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replaybank.storages import LazyTensorStorage
from replaybank.writers import RoundRobinWriter, WriterEnsemble


def _ensemble(parts: int = 3) -> WriterEnsemble:
    writers = [RoundRobinWriter() for _ in range(parts)]
    for number, writer in enumerate(writers):
        writer.register_storage(LazyTensorStorage(4))
        writer.extend(torch.arange(number + 1))
    return WriterEnsemble(*writers)


def test_an_ensemble_is_not_written_to() -> None:
    ensemble = _ensemble()
    for write in (ensemble.add, ensemble.extend):
        with pytest.raises(RuntimeError, match=r"ensemble\[i\]"):
            write(torch.ones(2))
    with pytest.raises(RuntimeError, match="cursor"):
        _ = ensemble.cursor


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(None, 2), [0, 1]),
        ([2, 0], [2, 0]),
        (torch.tensor([1]), [1]),
        (range(1, 3), [1, 2]),
        (..., [0, 1, 2]),
        (torch.tensor([True, False, True]), [0, 2]),
    ],
)
def test_parts_are_chosen_as_from_a_list(index: Any, expected: list[int]) -> None:
    ensemble = _ensemble()
    chosen = ensemble[index]
    assert isinstance(chosen, WriterEnsemble)
    assert [part is list(ensemble)[number] for part, number in zip(chosen, expected, strict=True)] == [
        True
    ] * len(expected)
    assert ensemble[-1] is ensemble[torch.tensor(2)] is list(ensemble)[2]


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (3, IndexError),
        ([0, 3], IndexError),
        (0.5, TypeError),
        (torch.zeros(1, 1).long(), RuntimeError),
        ([], ValueError),
    ],
)
def test_parts_that_are_not_there_are_refused(index: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        _ensemble()[index]


def test_counts_add_up_and_the_state_is_that_of_the_parts() -> None:
    ensemble = _ensemble()
    assert ensemble.write_count == 6
    ensemble[0].storage.empty()
    ensemble[0].empty()
    state = ensemble.state_dict()
    other = _ensemble()
    other.load_state_dict(state)
    assert ensemble.write_count == other.write_count == 5
    ensemble.empty()
    assert ensemble.write_count == 0
    with pytest.raises(ValueError, match="3 writers"):
        _ensemble(2).load_state_dict(state)
    assert "RoundRobinWriter" in repr(ensemble)


def test_a_state_that_one_part_refuses_changes_none() -> None:
    ensemble, other = _ensemble(), _ensemble()
    state = ensemble.state_dict()
    state["parts"][0]["write_count"] = 0
    state["parts"][2]["write_count"] = -5
    with pytest.raises(ValueError, match="-5"):
        other.load_state_dict(state)
    assert [writer.write_count for writer in other.writers] == [1, 2, 3]
