"""Several datasets as one: proportions, common entries, and the same batches again from a state."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lerobot_files import write_lerobot
from memory_source import FIELDS, MemorySource, episode
from replaybank import Normalize, NStep, OpenXMixture
from replaybank.datasets.openx.proportions import published
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.demo.arm import write_arm_dataset
from replaybank.errors import DataFormatError


def source(name: str, count: int, *, without: tuple[Key, ...] = (), wide: bool = False) -> MemorySource:
    """Episodes of 6 steps; some entries left out, or the action of another width."""
    fields = {key: spec for key, spec in FIELDS.items() if key not in without}
    made: list[Episode | Exception] = []
    for number in range(count):
        one = episode(number, 6)
        steps = {key: column for key, column in one.steps.items() if key not in without}
        if wide:
            steps["action",] = np.zeros((6, 5))
        made.append(Episode(steps, 6, one.where))
    if wide:
        fields["action",] = FieldSpec("tensor", (5,), np.dtype("float64"))
    half = count // 2
    given = MemorySource([made[:half], made[half:]], fields)
    given.name = name
    return given


SOURCES = {"a": source("a", 6), "b": source("b", 10, without=(("observation", "note"),))}


def mixture(batch_size: int | None = 12, **arguments: Any) -> OpenXMixture:
    arguments.setdefault("slice_len", 3)
    arguments.setdefault("source", SOURCES)
    arguments.setdefault("generator", torch.Generator().manual_seed(0))
    return OpenXMixture(arguments.pop("datasets", {"a": 1.0, "b": 3.0}), batch_size, **arguments)


def stored(root: Path, **arguments: Any) -> OpenXMixture:
    return mixture(streaming=False, root=root, **arguments)


def drawn(mixed: OpenXMixture, count: int) -> list[list[int]]:
    return [numbers(mixed.sample()) for _ in range(count)]


def numbers(batch: Any) -> list[int]:
    """What tells the steps of a batch from all others."""
    told: list[int] = (batch["dataset"] * 1000 + batch["episode"] * 10 + batch["step"]).tolist()
    return told


@pytest.mark.parametrize("streaming", [True, False])
def test_steps_of_a_dataset_are_in_proportion_to_its_weight(streaming: bool, tmp_path: Path) -> None:
    """Chi-square with 1 degree of freedom: a false alarm once in 10^4 seeds, and the seed is fixed."""
    mixed = mixture(300) if streaming else stored(tmp_path, batch_size=300)
    counts = sum(torch.bincount(mixed.sample()["dataset"][::3], minlength=2) for _ in range(10))
    expected = torch.tensor([250.0, 750.0])
    assert ((counts - expected) ** 2 / expected).sum() < 15.14
    assert mixed.proportions == {"a": 0.25, "b": 0.75}
    mixed.close()


def test_a_batch_has_what_the_datasets_have_in_common() -> None:
    mixed = mixture()
    batch = mixed.sample()
    assert batch.shape == (12,)
    assert batch["dataset"].dtype == torch.int32
    assert ("observation", "note") not in mixed.keys
    assert mixed.left_out["observation", "note"] == "a has text, b has none"
    assert ("next", "observation", "note") in mixed.left_out
    for key in (("observation", "image"), ("next", "observation", "state"), ("action",), ("next", "done")):
        assert key in mixed.keys
        assert batch.get(key) is not None
    assert set(batch["language_instruction"]) <= {f"text {number}" for number in range(10)}
    for start in range(0, 12, 3):
        part = batch[start : start + 3]
        assert len(part["dataset"].unique()) == len(part["episode"].unique()) == 1
        assert part["step"].tolist() == list(range(int(part["step"][0]), int(part["step"][0]) + 3))
    mixed.close()


def test_entries_can_be_chosen_and_brought_to_one_form() -> None:
    sources = {"a": SOURCES["a"], "b": source("b", 10, wide=True)}
    mixed = mixture(source=sources)
    assert mixed.left_out["action",] == "a has torch.float64 [2], b has torch.float64 [5]"
    with pytest.raises(ValueError, match=r"\('action',\) is not the same in all datasets: a has"):
        mixture(source=sources, keys=["action"])

    def narrow(batch: Any) -> Any:
        return batch.set("action", batch["action"][:, :2])

    chosen = mixture(source=sources, keys=["action", ("observation", "state")], transforms={"b": narrow})
    batch = chosen.sample()
    assert set(batch.keys()) == {"action", "observation", "dataset"}
    assert batch["action"].shape == (12, 2)
    assert (batch["action"][batch["dataset"] == 1] == 0).all()
    for made in (mixed, chosen):
        made.close()


def test_the_seed_fixes_the_batches_and_sampling_is_iterating() -> None:
    first, again, other = (mixture(generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    expected = drawn(first, 8)
    assert [numbers(batch) for batch in itertools.islice(again, 8)] == expected != drawn(other, 8)
    for made in (first, again, other):
        made.close()


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("taken", [0, 1, 7])
def test_it_goes_on_from_a_state_exactly(streaming: bool, taken: int, tmp_path: Path) -> None:
    def make(seed: int) -> OpenXMixture:
        generator = torch.Generator().manual_seed(seed)
        return mixture(generator=generator) if streaming else stored(tmp_path, generator=generator)

    mixed, other = make(0), make(5)
    drawn(mixed, taken)
    mixed.dumps(tmp_path / "state")
    drawn(other, 2)
    other.loads(tmp_path / "state")
    assert drawn(other, 8) == drawn(mixed, 8)
    copies = [copy.deepcopy(mixed), pickle.loads(pickle.dumps(mixed))]
    expected = drawn(mixed, 3)
    assert [drawn(made, 3) for made in copies] == [expected] * 2
    for made in (mixed, other, *copies):
        made.close()


def test_states_of_other_mixtures_are_refused() -> None:
    mixed, other = mixture(), mixture(datasets={"a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match="The state is of a mixture of"):
        other.load_state_dict(mixed.state_dict())
    part = mixture(rank=0, world_size=2)
    part.sample()
    with pytest.raises(ValueError, match="state is of share 0 of 2, this process reads share 0 of 1"):
        mixed.load_state_dict(part.state_dict())
    part.close()


def test_ranks_draw_from_parts_of_their_own() -> None:
    ranks = [mixture(60, rank=rank, world_size=2, slice_len=6) for rank in range(2)]
    seen = []
    for mixed in ranks:
        batch = mixed.sample()
        of_b = batch["episode"][batch["dataset"] == 1][::6].tolist()[:5]  # the first epoch of its share
        seen.append(set(of_b))
        mixed.close()
    assert not seen[0] & seen[1]


def same(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("streaming", [True, False])
def test_workers_draw_batches_of_their_own_in_every_pass(streaming: bool, tmp_path: Path) -> None:
    mixed = mixture(30) if streaming else stored(tmp_path, batch_size=30)
    loader = DataLoader(mixed, batch_size=None, num_workers=2, collate_fn=same)
    batches = [numbers(batch) for _ in range(2) for batch in itertools.islice(loader, 4)]
    assert len({tuple(batch) for batch in batches}) == 8


def test_balanced_weights_make_each_step_equally_likely() -> None:
    mixed = mixture(datasets={"a": 1.0, "b": 1.0}, balance_weights=True)
    assert mixed.proportions == {"a": 6 / 16, "b": 10 / 16}


def test_stored_datasets_have_statistics_each(tmp_path: Path) -> None:
    stats = stored(tmp_path).stats()
    assert set(stats) == {"a", "b"}
    assert stats["a"]["action",].mean.shape == (2,)
    with pytest.raises(RuntimeError, match="is streamed"):
        mixture().stats()


TRAINED = [0, 2, 3, 5]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_mixture_is_brought_to_scale_after_it_was_made(streaming: bool, tmp_path: Path) -> None:
    mixed = mixture() if streaming else stored(tmp_path)
    plain = mixture() if streaming else stored(tmp_path)
    made = mixed.normalize(episodes=TRAINED)
    stats = mixed.stats(episodes=TRAINED)
    assert list(made) == ["a", "b"]
    assert set(made["a"].keys) == {("action",), ("observation", "state")}
    for key in made["b"].keys:
        held = torch.cat([torch.from_numpy(episode(n, 6).steps[key]) for n in TRAINED])
        torch.testing.assert_close(stats["b"][key].mean, held.double().mean(0))
        assert stats["b"][key].count == 24
    for _ in range(3):
        batch, raw = mixed.sample(), plain.sample()
        assert numbers(batch) == numbers(raw)
        assert torch.equal(batch["next", "reward"], raw["next", "reward"])
        for place, name in enumerate(mixed.names):
            here = raw["dataset"] == place
            expected = Normalize(stats[name])(raw[here])
            keys: list[Any] = ["action", ("observation", "state"), ("next", "observation", "state")]
            for key in keys:
                assert torch.equal(batch[here][key], expected[key])
    mixed.normalize(["action"], episodes=dict.fromkeys(mixed.names, range(6)))  # instead of the first one
    state = ("observation", "state")
    assert torch.equal(mixed.sample()[state], plain.sample()[state])
    for opened in (mixed, plain):
        opened.close()


def test_what_cannot_be_normalised_leaves_a_mixture_as_it_was(tmp_path: Path) -> None:
    mixed, plain = mixture(keys=["action"]), mixture(keys=["action"])
    with pytest.raises(RuntimeError, match="Say which episodes"):
        mixed.normalize()
    with pytest.raises(IndexError, match="Episode 6 is out of range: there are 6"):
        mixed.normalize(episodes=range(9))
    with pytest.raises(KeyError, match="speed"):
        mixed.normalize(["speed"], episodes=[0])
    with pytest.raises(ValueError, match=r"episodes names \['c'\]"):
        mixed.normalize(episodes={"c": [0]})
    with pytest.raises(ValueError, match="the mask of"):
        mixed.normalize(episodes=[0], mask={"a": {"action": torch.ones(3, dtype=torch.bool)}})
    with pytest.raises(ValueError, match="is not the same in all datasets"):
        mixed.append_transform(lambda batch: batch.set("action", batch["action"].int()), "a")
    with pytest.raises(ValueError, match="no dataset 'c'"):
        mixed.append_transform(same, "c")
    with pytest.raises(TypeError, match="got a int"):
        mixed.append_transform(3)  # type: ignore[arg-type]
    assert torch.equal(mixed.sample()["action"], plain.sample()["action"])
    for opened in (mixed, plain):
        opened.close()


def test_transforms_are_appended_for_a_dataset_or_for_batches() -> None:
    def doubled(batch: Any) -> Any:
        return batch.set("action", batch["action"] * 2)

    def marked(batch: Any) -> Any:
        return batch.set("twice", batch["action"] * 2)

    mixed, plain = mixture(transforms={"b": doubled}), mixture()
    assert mixed.append_transform(doubled, "b").append_transform(marked, "b") is mixed
    assert mixed.left_out["twice",] == "a has none, b has torch.float64 [2]"
    mixed.append_transform(marked, "a").append_transform(doubled)
    batch, raw = mixed.sample(), plain.sample()
    scale = torch.tensor([2.0, 8.0])[batch["dataset"].long()]
    assert torch.equal(batch["action"], raw["action"] * scale[:, None])
    assert torch.equal(batch["twice"], batch["action"])
    for opened in (mixed, plain):
        opened.close()


@pytest.mark.parametrize("streaming", [True, False])
def test_a_dataset_that_lacks_files_can_be_mixed_if_that_is_said_of_it(
    streaming: bool, tmp_path: Path
) -> None:
    whole = write_lerobot(tmp_path / "whole", "v2.1", [4, 5], None)
    lacking = write_lerobot(tmp_path / "lacking", "v2.1", [4, 5, 6], None)
    (lacking / "data/chunk-000/episode_000001.parquet").unlink()
    arguments: dict[str, Any] = {"source": {"a": whole, "b": lacking}, "streaming": streaming}
    with pytest.raises(FileNotFoundError, match="pass allow_missing=True"):
        mixture(root=tmp_path / "first", **arguments)
    with pytest.raises(FileNotFoundError, match="pass allow_missing=True"):
        mixture(root=tmp_path / "second", allow_missing={"a": True}, **arguments)
    for said in (True, {"b": True}):
        mixed = mixture(root=tmp_path / "made", allow_missing=said, **arguments)
        assert [dataset.num_episodes for dataset in mixed.datasets] == [2, 2]
        assert len(mixed.sample()) == 12
        mixed.close()


def test_what_a_dataset_is_read_by_is_said_for_all_or_for_each(tmp_path: Path) -> None:
    spoilt = source("a", 6)
    spoilt.records[1][0] = DataFormatError("no record")  # type: ignore[index]
    arm = write_arm_dataset(tmp_path / "arm/1.0.0", episodes=2)
    arguments: dict[str, Any] = {
        "datasets": {"a": 1.0, "arm": 1.0},
        "source": {"a": spoilt, "arm": arm},
        "root": tmp_path / "made",
        "streaming": False,
    }
    camera = ("observation", "image")
    mixed = mixture(on_error={"a": "skip"}, image_keys={"a": []}, images={"arm": "encoded"}, **arguments)
    first, second = mixed.datasets
    assert (first.num_episodes, len(first.skipped), second.num_episodes) == (5, 1, 2)
    assert mixed.left_out[camera] == "a has none, arm has torch.uint8 [3, 64, 64]"
    assert second.dataset.encoded_frames(camera) is not None
    blind = mixture(on_error="skip", image_keys=[], **{**arguments, "root": tmp_path / "blind"})
    assert camera not in {**dict.fromkeys(blind.keys), **blind.left_out}
    with pytest.raises(ValueError, match="'val'"):
        mixture(split={"arm": "val"}, **{**arguments, "streaming": True})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"split": {"c": "test"}}, ValueError, r"split names \['c'\], the mixture has \['a', 'b'\]"),
        ({"on_error": {"a": "x"}}, ValueError, "on_error must be 'raise' or 'skip', got 'x'"),
        ({"datasets": {}}, ValueError, "give ids with weights"),
        ({"datasets": {"a": 0.0}, "source": {}}, ValueError, "weight of 'a' is 0.0"),
        ({"datasets": {"a": float("nan")}, "source": {}}, ValueError, "weight of 'a' is nan"),
        ({"source": {"c": "x"}}, ValueError, r"source names \['c'\], the mixture has \['a', 'b'\]"),
        ({"transforms": {"c": same}}, ValueError, r"transforms names \['c'\]"),
        ({"slice_len": 5}, ValueError, "12 steps cannot be made of slices with slice_len=5"),
        ({"num_slices": 2}, ValueError, "exclude each other"),
        ({"keys": ["x"]}, ValueError, "no dataset has it"),
        ({"transform": NStep(2, 0.9)}, TypeError, "NStep reads other steps than those that were drawn"),
        ({"transforms": {"b": NStep(2, 0.9)}}, TypeError, "NStep reads other steps"),
        ({"transform": 5}, TypeError, "A transform is called with a batch, got a int"),
    ],
)
def test_what_makes_no_mixture_is_refused(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        mixture(**arguments)


def test_a_mixture_takes_no_transform_that_reads_other_steps() -> None:
    mixed = mixture()
    for dataset in (None, "a"):
        with pytest.raises(TypeError, match="NStep reads other steps"):
            mixed.append_transform(NStep(2, 0.9), dataset)
    mixed.close()


def test_a_mixture_without_a_batch_size_is_asked_for_one() -> None:
    mixed = mixture(None)
    assert len(mixed.sample(6)) == 6
    with pytest.raises(RuntimeError, match="No batch size"):
        mixed.sample()
    with pytest.raises(RuntimeError, match="No batch size"):
        iter(mixed)
    with pytest.raises(ValueError, match="7 steps"):
        mixed.sample(7)
    with pytest.raises(ValueError, match="needs a batch_size"):
        mixture(None, slice_len=None, num_slices=2)
    mixed.close()
    assert len(mixture(slice_len=None, num_slices=4).sample()) == 12


def test_published_mixtures_are_known_by_name() -> None:
    assert published("rtx")["berkeley_cable_routing"] == 3.0
    with pytest.raises(ValueError, match=r"no published mixture 'soup': there are \['"):
        mixture(datasets="soup", source=None)
