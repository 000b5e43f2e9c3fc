from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from reference.chi_square import assert_fits
from reference.storage import PlainStorage
from replaybank.samplers.random import RandomSampler


def filled(rows: int, written: int, columns: tuple[int, ...] = ()) -> PlainStorage:
    storage = PlainStorage(rows, columns)
    for start in range(0, written, 3):
        storage.extend({("x",): torch.ones(min(3, written - start), *columns)})
    return storage


@pytest.mark.parametrize("columns", [(), (1,), (3,), (2, 2)])
@pytest.mark.parametrize("written", [7, 10, 14])
def test_every_stored_item_is_equally_likely(columns: tuple[int, ...], written: int) -> None:
    storage = filled(10, written, columns)
    sampler = RandomSampler()
    sampler.generator = torch.Generator().manual_seed(1)
    index, info = sampler.sample(storage, 20_000)
    assert info == {}
    if columns:
        assert isinstance(index, tuple)
        assert len(index) == 1 + len(columns)
        assert all(part.dtype == torch.int64 for part in index)
        drawn = list(zip(*(part.tolist() for part in index), strict=True))
    else:
        assert isinstance(index, Tensor)
        assert index.dtype == torch.int64
        drawn = [(k,) for k in index.tolist()]
    items = [tuple(item) for item in torch.ones(storage.shape).nonzero().tolist()]
    assert_fits(drawn, {item: 1 / len(items) for item in items})


def test_the_same_seed_gives_the_same_items_with_and_without_a_generator() -> None:  # C13
    storage, sampler = filled(10, 10), RandomSampler()
    batches = []
    for generator in (None, None, torch.Generator().manual_seed(0)):
        torch.manual_seed(0)
        sampler.generator = generator
        index, _ = sampler.sample(storage, 50)
        assert isinstance(index, Tensor)
        batches.append(index.tolist())
    assert batches[0] == batches[1] == batches[2]


def test_an_empty_storage_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage\.$"):
        RandomSampler().sample(PlainStorage(3), 2)


def test_updating_priorities_warns_and_changes_nothing() -> None:
    with pytest.warns(UserWarning, match="RandomSampler has no priorities"):
        RandomSampler().update_priority(torch.tensor([0]), torch.tensor([1.0]))


def test_what_every_sampler_has_is_there(tmp_path: Path) -> None:
    sampler = RandomSampler()
    sampler.add(0)
    sampler.extend(torch.arange(3))
    sampler.mark_update(torch.arange(3))
    sampler.empty()
    assert sampler.default_priority == 1.0
    sampler.ran_out = True
    assert not sampler.ran_out
    sampler.load_state_dict(sampler.state_dict())
    sampler.dumps(tmp_path / "sampler")
    sampler.loads(tmp_path / "sampler")
    assert repr(sampler) == "RandomSampler()"
