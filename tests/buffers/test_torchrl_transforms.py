"""torchrl's own transforms in our buffers do what they do in torchrl's.

They run where torchrl is installed: ``make torchrl`` puts it into a folder of its own and runs this file.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import replaybank
from replaybank import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)

needs_torchrl = pytest.mark.skipif(
    importlib.util.find_spec("torchrl") is None, reason="torchrl is not installed: `make torchrl` runs this"
)
quiet = pytest.mark.filterwarnings("ignore")  # torchrl's own warnings are not ours to mend


def transforms() -> Any:
    import torchrl.envs.transforms as t

    return t


def steps(count: int = 12) -> TensorDict:
    """Steps with a picture, rewards and episodes of four steps."""
    ids = torch.arange(count)
    done = (ids % 4 == 3).view(-1, 1)
    after = TensorDict(
        {
            "reward": ids.float().view(-1, 1) - 3,
            "done": done,
            "terminated": done,
            "truncated": torch.zeros_like(done),
            "pixels": ((ids[:, None, None, None] * 9 + torch.arange(60).view(5, 4, 3)) % 256).to(torch.uint8),
            "vector": torch.stack([ids, ids * 2, -ids], -1).float(),
        },
        [count],
    )
    return TensorDict(
        {
            "pixels": ((ids[:, None, None, None] * 7 + torch.arange(60).view(5, 4, 3)) % 256).to(torch.uint8),
            "vector": torch.stack([ids, ids + 1, -ids], -1).float(),
            "action": ids.float().view(-1, 1) / 10,
            "episode": ids // 4,
            "is_init": (ids % 4 == 0).view(-1, 1),
            "next": after,
        },
        [count],
    )


NEXT_REWARD = [("next", "reward")]

MAKERS: dict[str, Callable[[Any], Any]] = {
    "ToTensorImage": lambda t: t.ToTensorImage(in_keys=["pixels", ("next", "pixels")]),
    "RewardScaling": lambda t: t.RewardScaling(loc=1.0, scale=3.0, in_keys=NEXT_REWARD),
    "ObservationNorm": lambda t: t.ObservationNorm(
        loc=2.0, scale=0.5, in_keys=["vector"], out_keys=["normal"]
    ),
    "ObservationNorm with inverse": lambda t: t.ObservationNorm(
        loc=1.0, scale=2.0, in_keys=["vector"], in_keys_inv=["vector"], out_keys_inv=["vector"]
    ),
    "DoubleToFloat": lambda t: t.DoubleToFloat(
        in_keys=["vector"], in_keys_inv=["action"], out_keys_inv=["action"]
    ),
    "RenameTransform": lambda t: t.RenameTransform(["vector"], ["state"]),
    "ExcludeTransform": lambda t: t.ExcludeTransform("pixels", ("next", "pixels")),
    "SelectTransform": lambda t: t.SelectTransform("vector", ("next", "vector")),
    "UnsqueezeTransform": lambda t: t.UnsqueezeTransform(
        dim=-1, in_keys=["vector"], in_keys_inv=["action"], out_keys_inv=["action"]
    ),
    "FlattenObservation": lambda t: t.FlattenObservation(-3, -1, in_keys=["pixels"]),
    "CatTensors": lambda t: t.CatTensors(in_keys=["vector", "action"], out_key="both", del_keys=False),
    "Compose": lambda t: t.Compose(
        t.ToTensorImage(in_keys=["pixels"], out_keys=["image"]),
        t.RewardScaling(loc=-1.0, scale=2.0, in_keys=NEXT_REWARD),
        t.ObservationNorm(loc=1.0, scale=2.0, in_keys=["vector"], in_keys_inv=["vector"]),
    ),
}


def same(one: TensorDict, other: TensorDict) -> None:
    keys = set(one.keys(True, True)) - {"index"}
    assert keys == set(other.keys(True, True)) - {"index"}
    for key in keys:
        assert one[key].dtype is other[key].dtype, key
        assert torch.equal(one[key], other[key]), key


def in_order(**options: Any) -> TensorDictReplayBuffer:
    sampler = SamplerWithoutReplacement(shuffle=False)
    return TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=4, **options)


@needs_torchrl
@quiet
@pytest.mark.parametrize("name", list(MAKERS))
def test_stored_and_sampled_data_are_those_of_torchrls_buffer(name: str) -> None:
    import torchrl.data

    ours = in_order(transform=MAKERS[name](transforms()))
    theirs = torchrl.data.TensorDictReplayBuffer(
        storage=torchrl.data.LazyTensorStorage(20),
        sampler=torchrl.data.SamplerWithoutReplacement(shuffle=False),
        batch_size=4,
        transform=MAKERS[name](transforms()),
    )
    before = steps()
    ours.extend(before)
    theirs.extend(steps())
    same(before, steps())  # the user's data is the user's
    same(ours.storage[:], theirs.storage[:])
    for _ in range(3):
        same(ours.sample(), theirs.sample())


@needs_torchrl
@quiet
@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyMemmapStorage", "ListStorage"])
def test_a_sum_over_the_named_dimension_of_trajectories_is_theirs(storage: str) -> None:
    import torchrl.data

    def batches(module: Any) -> list[TensorDict]:
        total = transforms().RewardSum(in_keys=NEXT_REWARD, out_keys=[("next", "total")])
        buffer = module.TensorDictReplayBuffer(
            storage=getattr(module, storage)(20),
            sampler=module.SamplerWithoutReplacement(shuffle=False),
            batch_size=3,
            transform=total,
        )
        trajectories = steps().reshape(3, 4)
        trajectories.names = [None, "time"]
        buffer.extend(trajectories)
        return [buffer.sample() for _ in range(2)]

    for ours, theirs in zip(batches(replaybank), batches(torchrl.data), strict=True):
        same(ours, theirs)


@needs_torchrl
@quiet
@pytest.mark.parametrize("name", ["RewardScaling", "Compose"])
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_adding_appending_and_a_factory_work_alike(name: str, storage: Any) -> None:
    def make() -> Any:
        return MAKERS[name](transforms())

    sampler = SamplerWithoutReplacement(shuffle=False)
    factory = TensorDictReplayBuffer(
        storage=storage(20), sampler=sampler, batch_size=4, transform_factory=make
    )
    appended = in_order().append_transform(make())
    for step in steps():
        factory.add(step)
        appended.add(step)
    for _ in range(3):
        same(factory.sample(), appended.sample())


@needs_torchrl
@quiet
def test_an_inverted_transform_works_the_other_way_round() -> None:
    t = transforms()
    norm = t.ObservationNorm(loc=1.0, scale=2.0, in_keys=["vector"], in_keys_inv=["vector"])
    buffer = in_order().append_transform(norm, invert=True)
    buffer.extend(steps())
    assert torch.equal(buffer.storage[:]["vector"], steps()["vector"] * 2 + 1)
    assert torch.allclose(buffer.sample()["vector"], steps()["vector"][:4])


@needs_torchrl
@quiet
def test_transforms_work_on_slices_and_with_prefetch() -> None:
    t = transforms()
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=SliceSampler(slice_len=4, traj_key="episode"),
        batch_size=8,
        prefetch=2,
        transform=t.ToTensorImage(in_keys=["pixels"]),
    )
    buffer.extend(steps())
    for _ in range(5):
        batch = buffer.sample()
        assert batch["pixels"].shape == (8, 3, 5, 4)
        assert batch["pixels"].dtype is torch.float32
    buffer.close()


@needs_torchrl
@quiet
def test_a_stateful_transform_goes_into_the_checkpoint(tmp_path: Path) -> None:
    t = transforms()

    def make() -> ReplayBuffer:
        norm = t.VecNorm(in_keys=["vector"], decay=0.9)
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(20),
            batch_size=4,
            transform=norm,
            generator=torch.Generator().manual_seed(0),
        )

    buffer, other = make(), make()
    buffer.extend(steps())
    for _ in range(5):
        buffer.sample()
    buffer.dumps(tmp_path / "saved")
    other.loads(tmp_path / "saved")
    for _ in range(5):
        same(buffer.sample(), other.sample())


@needs_torchrl
@quiet
def test_a_transform_that_breaks_the_batch_is_named() -> None:
    t = transforms()
    buffer = in_order(transform=t.ToTensorImage(in_keys=["pixels"]))
    buffer.append_transform(lambda sample: sample[:2])
    buffer.extend(steps())
    with pytest.raises(RuntimeError, match="transform 1"):
        buffer.sample()


def test_nothing_imports_torchrl() -> None:
    code = (
        "import sys, torch, replaybank\n"
        "for name in replaybank.__all__: getattr(replaybank, name)\n"
        "buffer = replaybank.ReplayBuffer(transform=lambda x: x, batch_size=1)\n"
        "buffer.extend([torch.zeros(1)]); buffer.sample()\n"
        "assert 'torchrl' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
