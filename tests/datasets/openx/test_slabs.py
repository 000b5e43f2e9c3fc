"""The memory of a batch: its slices lie one behind the other, and no two batches share any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memory_source import FIELDS, Frames, MemorySource, episode
from replaybank.datasets.openx.nest import unnest
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.slabs import Entries, Slabs
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.ted import ted_leaves
from replaybank.demo.arm import write_arm_dataset
from replaybank.storages.batch_memory import BatchMemory


def test_slices_of_a_batch_share_its_tensors_and_those_of_others_do_not() -> None:
    fields: dict[Key, FieldSpec] = {("action",): FieldSpec("tensor", (2,), np.dtype("uint8"))}
    slabs = Slabs(Entries(ted_leaves(fields), filled=False), 5, 2, 3, BatchMemory())
    (first, zero), (same, one), (other, again) = (slabs.place(number) for number in (5, 6, 7))
    assert same is first
    assert other is not first
    assert (zero, one, again) == (0, 1, 0)
    for place in (zero, one):
        first.part(("action",), place)[:] = place
    assert first.tensors["action",].tolist() == [[0, 0]] * 3 + [[1, 1]] * 3
    assert slabs.place(6)[0] is first
    slabs.done(7)
    assert slabs.place(6)[0] is not first
    assert slabs.place(7)[0] is other


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arm_dataset(tmp_path_factory.mktemp("slabs") / "arm", episodes=6)


def stream(arm: Path, **arguments: Any) -> OpenXExperienceReplay:
    generator = torch.Generator().manual_seed(0)
    return OpenXExperienceReplay("arm", source=str(arm), streaming=True, generator=generator, **arguments)


@pytest.mark.parametrize("threads", [0, 2])
def test_slices_are_the_same_however_many_make_a_batch_and_batches_stay_as_they_are(
    arm: Path, threads: int
) -> None:
    alone, together = stream(arm, slice_len=8), stream(arm, slice_len=8, num_workers=threads, prefetch=2)
    wanted = [unnest(alone.sample(8)) for _ in range(46)]
    # Batches of other sizes between: what was decoded ahead for one is of no use for the next.
    sizes = [4, 4, 4, 3, 4, 4, 1, 5, 5, 4, 4, 4]
    batches = [together.sample(8 * size) for size in sizes]  # all are held: none may be written over
    at = 0
    for size, batch in zip(sizes, batches, strict=True):
        for key, found in unnest(batch).items():
            parts = [slice_[key] for slice_ in wanted[at : at + size]]
            if isinstance(found, torch.Tensor):
                assert np.array_equal(found.numpy(), torch.cat(parts).numpy()), (at, key)
            else:
                assert found.tolist() == [text for part in parts for text in part.tolist()]
        at += size
    assert at == len(wanted)
    alone.close()
    together.close()


def test_an_episode_without_a_camera_has_zeros_and_no_frames_of_earlier_batches() -> None:
    image = ("observation", "image")
    fields = {**FIELDS, image: FieldSpec("image", (96, 96, 3), np.dtype("uint8"))}
    episodes = []
    for number in range(21):
        steps = dict(episode(number, 10).steps)
        steps[image] = Frames(np.full((10, 96, 96, 3), 1 + number, np.uint8))
        if number % 5 == 1:
            del steps[image]
        missing = frozenset() if image in steps else frozenset({image})
        episodes.append(Episode(steps, 10, f"record {number}", missing=missing))
    dataset = OpenXExperienceReplay(
        "arm", source=MemorySource([episodes], fields), shuffle=False, slice_len=8, prefetch=0
    )
    for _ in range(12):
        batch = dataset.sample(32)  # the memory of the one before serves the next but one
        number = batch["episode"]
        wanted = torch.where(number % 5 == 1, 0, 1 + number)[:, None]
        known = batch["next", "valid"]
        assert bool((batch[image].flatten(1) == wanted).all())
        assert bool((batch["next", image].flatten(1) == torch.where(known, wanted, 0)).all())
        del batch
    dataset.close()


def test_frames_of_a_batch_are_not_copied_to_be_joined(arm: Path) -> None:
    dataset = stream(arm, slice_len=8, num_workers=0, prefetch=0)
    dataset.sample(32)
    batch = dataset.sample(32)
    frames = next(v for key, v in unnest(batch).items() if key[0] == "observation" and v.ndim == 4)
    assert len(frames) == 32
    assert frames.untyped_storage().nbytes() == frames.nbytes
    dataset.close()
