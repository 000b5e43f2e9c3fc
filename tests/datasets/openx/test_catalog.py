"""The catalog says what the facts about the datasets say, and helps with their names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replaybank.datasets.openx.catalog import datasets, facts_of, mixtures
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from shared_data import SHARED


@pytest.fixture(scope="module")
def facts() -> Any:
    file = SHARED / "data" / "openx_facts.json"
    if not file.is_file():
        pytest.skip(f"{file} is not there; set REPLAYBANK_SHARED")
    return json.loads(file.read_text())


def test_there_are_55_datasets_and_every_one_has_what_a_user_asks_for() -> None:
    assert len(datasets()) == 55
    for name, dataset in datasets().items():
        assert dataset.id == name
        assert dataset.splits["train"].episodes > 0
        assert next(iter(dataset.splits)) == "train"
        assert dataset.size > 1 << 20
        assert set(dataset.cameras) <= set(dataset.observation)
        assert set(dataset.bgr) <= set(dataset.cameras)
        assert dataset.last_step in ("keep", "drop")
        assert dataset.origin in ("rlds", "hub")
        assert dataset.instruction


def test_the_catalog_agrees_with_the_facts(facts: Any) -> None:
    assert datasets().keys() == facts["datasets"].keys()
    for name, known in facts["datasets"].items():
        dataset = datasets()[name]
        assert (dataset.version, dataset.robot, dataset.hz) == (
            known["version"],
            known["robot"] or "",
            known["hz"],
        )
        assert list(dataset.observation) == known["observation_keys"]
        assert {key: text.split()[0] for key, text in dataset.cameras.items()} == {
            key: image["shape"] for key, image in known["images"].items()
        }
        assert dataset.splits.keys() == known["splits"].keys()
        for split, found in dataset.splits.items():
            assert (found.episodes, found.shards) == (
                known["splits"][split]["episodes"],
                known["splits"][split]["shards"],
            )
        assert list(dataset.bgr) == facts["bgr_images"].get(name, [])
        assert bool(dataset.defects) == (name in facts["known_defects"])
        action = dataset.action
        keys = [action] if isinstance(action, str) else [*action]
        assert all(key.split("[")[0] in known["action"] for key in keys)
    assert {name: dict(weights) for name, weights in mixtures().items()} == facts["mixtures"]


def test_mixtures_name_datasets_of_the_catalog() -> None:
    for weights in mixtures().values():
        assert weights.keys() <= datasets().keys()
        assert all(weight > 0 for weight in weights.values())


def test_sizes_are_bytes() -> None:
    assert facts_of("nyu_rot_dataset_converted_externally_to_rlds").size == round(5.33 * (1 << 20))
    bridge = facts_of("bridge")
    assert bridge.size == sum(round(size * (1 << 30)) for size in (340.85, 46.65))
    assert bridge.episodes == 25460 + 3475


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("brigde", "bridge"), ("fractal", "fractal20220817_data"), ("nyu_rot", "nyu_rot_data")],
)
def test_an_unknown_id_names_the_nearest_ones(given: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"no Open X-Embodiment dataset '{given}'; did you mean .*{nearest}"):
        facts_of(given)


def test_an_id_like_none_says_where_all_are_listed() -> None:
    with pytest.raises(ValueError, match=r"'zzzzzz'\. `replaybank list` names all 55"):
        facts_of("zzzzzz")


def test_the_ids_are_an_attribute_of_the_class() -> None:
    assert OpenXExperienceReplay.available_datasets == list(datasets())
    OpenXExperienceReplay.available_datasets.clear()
    assert len(OpenXExperienceReplay.available_datasets) == 55
