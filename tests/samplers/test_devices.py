"""The weight tree as torch ops, as on an accelerator, draws what the kernels draw from the same numbers."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from reference.storage import PlainStorage
from replaybank.samplers import priorities, slice_starts
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.prioritized_slice import PrioritizedSliceSampler
from replaybank.weights.sum_tree import SumTree

Plan = list[tuple[str, int]]


def history(
    plan: Plan, seed: int, columns: tuple[int, ...], native: bool, slices: bool, **options: Any
) -> list[Any]:
    """What a sampler gives in a history of writes, updates with repeats, changes of alpha, samples."""
    with pytest.MonkeyPatch.context() as patch:
        tree = functools.partial(SumTree, native=native)
        patch.setattr(priorities, "SumTree", tree)
        patch.setattr(slice_starts, "SumTree", tree)
        choose = random.Random(seed)
        found: list[Any] = []
        width = torch.Size(columns).numel()
        storage = PlainStorage(40, columns)
        if slices:
            sampler: Any = PrioritizedSliceSampler(40 * width, 0.6, 0.4, slice_len=2, **options)
        else:
            sampler = PrioritizedSampler(40 * width, 0.6, 0.4, **options)
        sampler.generator = torch.Generator().manual_seed(seed)
        for action, number in [("write", 9), *plan]:
            n = len(storage)
            if action == "write":
                done = torch.tensor([choose.random() < 0.2 for _ in range(number * width)])
                storage.extend({("next", "done"): done.view(number, *columns, 1)})
                sampler.extend(torch.zeros(0, dtype=torch.int64))
            elif action == "update":
                index = torch.tensor([choose.randrange(-1, n) for _ in range(number)])
                priority = torch.tensor([choose.choice([0.1, 0.5, 2.0, 30.0]) for _ in range(number)])
                sampler.update_priority(index, priority, storage=storage)
            elif action == "alpha":
                sampler.alpha = (0.0, 0.5, 1.0, 1.3)[number % 4]
            elif action == "mark":
                sampler.mark_update(torch.tensor([number % n]), storage=storage)
            else:
                try:
                    index, info = sampler.sample(storage, 2 * number)
                except RuntimeError as error:
                    found.append(str(error))
                    continue
                parts = index if isinstance(index, tuple) else (index,)
                found.append([part.tolist() for part in parts])
                found.append(info["priority_weight"])
            found.append(sampler.weights)
        return found


@settings(max_examples=examples(120), deadline=None)
@given(
    plan=st.lists(
        st.tuples(
            st.sampled_from(["write", "update", "alpha", "mark", "sample", "sample"]), st.integers(1, 30)
        ),
        max_size=12,
    ),
    seed=st.integers(0, 2**31),
    columns=st.sampled_from([(), (3,), (2, 2)]),
    kind=st.sampled_from(["items", "stratified", "slices"]),
    within=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_history_draws_the_same_items_with_the_same_importance(
    plan: Plan, seed: int, columns: tuple[int, ...], kind: str, within: bool, dtype: torch.dtype
) -> None:
    options: dict[str, Any] = {"max_priority_within_buffer": within, "dtype": dtype}
    if kind == "stratified":
        options["stratified"] = True
    native, by_torch = (
        history(plan, seed, columns, way, kind == "slices", **options) for way in (True, False)
    )
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    for one, other in zip(native, by_torch, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=0)
        else:
            assert one == other
