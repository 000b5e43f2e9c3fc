from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from patience import PATIENCE
from reference.chi_square import assert_fits
from reference.sum_tree import Tree
from replaybank import _native
from replaybank.weights.sum_tree import SumTree

SIZES = [1, 2, 15, 16, 17, 255, 256, 257, 300, 4095, 4096, 4097, 5000, 65537]
"""On both sides of a node (16), and of one to four levels."""

DTYPES = [torch.float32, torch.float64]
BEST = _native.tree_simd()
KINDS = [(True, simd) for simd in (0, 2, 5) if simd <= BEST] + [(False, BEST)]
"""Native with each instruction set that this CPU has, and the walk as torch ops."""


@pytest.fixture(params=KINDS, ids=lambda kind: f"simd{kind[1]}" if kind[0] else "torch")
def native(request: pytest.FixtureRequest) -> Iterator[bool]:
    chosen, simd = request.param
    _native.tree_simd(simd)
    yield chosen
    _native.tree_simd(BEST)


def filled(weights: Any, dtype: torch.dtype = torch.float64, native: bool = True) -> SumTree:
    values = torch.as_tensor(weights, dtype=dtype)
    tree = SumTree(len(values), dtype, native=native)
    tree.update(torch.arange(len(values)), values)
    return tree


def assert_is(tree: SumTree, expected: Tree) -> None:
    """That every number of every level is the twin's, to the last bit."""
    for level, twin in zip(tree.levels, expected.levels, strict=True):
        for part, values in zip(level, twin, strict=True):
            np.testing.assert_array_equal(part.numpy(), values)
    assert (tree.total, tree.smallest, tree.largest) == (
        expected.total,
        expected.smallest,
        expected.largest,
    )


def random_weights(size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(size, generator=generator, dtype=dtype).pow(8) * 1e3
    weights[torch.rand(size, generator=generator) < 0.3] = 0
    return weights


# ---- which items masses fall on


def test_masses_map_to_items_in_index_order(native: bool) -> None:  # C07
    tree = filled([1.0, 1.0, 1.0], native=native)
    assert tree.find(torch.tensor([0.5, 1.5, 2.5])).tolist() == [0, 1, 2]


def test_a_mass_on_a_border_belongs_to_the_item_behind_it(native: bool) -> None:
    tree = filled([1.0, 0.0, 2.0, 0.0], native=native)
    assert tree.find(torch.tensor([0.0, 1.0, 2.9])).tolist() == [0, 2, 2]


def test_masses_out_of_range_fall_on_the_first_and_last_item_with_weight(native: bool) -> None:
    tree = filled([0.0, 1.0, 2.0, 0.0], native=native)
    assert tree.find(torch.tensor([-1.0, 3.0, 1e300, math.inf, math.nan])).tolist() == [1, 2, 2, 2, 2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_item_without_weight_is_never_found(native: bool, dtype: torch.dtype) -> None:
    weights = torch.zeros(5000, dtype=dtype)
    weights[torch.arange(0, 5000, 7)] = 0.1  # sums are rounded at every node
    tree = filled(weights, dtype, native)
    total = tree.total
    borders = torch.arange(1, 716, dtype=torch.float64) / 715 * total
    masses = torch.cat((borders, *(torch.nextafter(borders, torch.tensor(x).double()) for x in (0.0, 1e9))))
    index = tree.find(masses)
    assert (weights[index] > 0).all()
    assert index[:1].item() in (0, 7)


def test_every_kind_of_tree_finds_what_the_twin_finds(native: bool) -> None:
    for size in (1, 17, 300, 5000):
        for dtype in DTYPES:
            weights = random_weights(size, dtype, size) + (1.0 if size == 1 else 0.0)
            tree, twin = filled(weights, dtype, native), Tree(weights.numpy())
            assert_is(tree, twin)
            masses = (
                torch.rand(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * tree.total
            )
            assert tree.find(masses).tolist() == [twin.find(float(mass)) for mass in masses]


def test_the_same_uniforms_give_the_same_draws_on_every_instruction_set_and_by_torch() -> None:
    weights = random_weights(65537, torch.float32, 3)
    uniforms = torch.rand(1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for stratified in (False, True):
        drawn = []
        for chosen, simd in KINDS:
            _native.tree_simd(simd)
            drawn.append(
                filled(weights, torch.float32, chosen).draw(
                    uniforms, beta=0.4, stamp=7, stratified=stratified
                )
            )
        _native.tree_simd(BEST)
        for other in drawn[1:]:
            assert torch.equal(other.items, drawn[0].items)
            torch.testing.assert_close(other.importance, drawn[0].importance, rtol=2e-7, atol=0)
            assert torch.equal(other.stamps, drawn[0].stamps)
        for (chosen, _), other in zip(KINDS, drawn, strict=True):
            assert not chosen or torch.equal(other.importance, drawn[0].importance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_are_in_proportion_to_weights(native: bool, dtype: torch.dtype) -> None:
    weights = random_weights(40, dtype, 5)
    total = float(weights.double().sum())
    likely: dict[Hashable, float] = {
        k: float(w) / total for k, w in enumerate(weights.tolist()) if w / total * 40_000 >= 5
    }
    rest = 1 - sum(likely.values())
    tree = filled(weights, dtype, native)
    uniforms = torch.rand(40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = [k if k in likely else -1 for k in tree.draw(uniforms).items.tolist()]
    if rest * 40_000 < 5:
        drawn = [k for k in drawn if k >= 0]
        likely = {k: p / sum(likely.values()) for k, p in likely.items()}
    else:
        likely[-1] = rest
    assert_fits(drawn, likely)


def test_stratified_draws_take_one_from_each_equal_part_in_order(native: bool) -> None:
    tree = filled([1.0] * 64, native=native)
    uniforms = torch.rand(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert tree.draw(uniforms, stratified=True).items.tolist() == list(range(64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0, 3.0])
def test_importance_is_the_share_of_the_smallest_weight_to_the_power_beta(
    native: bool, dtype: torch.dtype, beta: float
) -> None:
    weights = torch.tensor([0.0, 1e-3, 1.0, 7.5, 1e3], dtype=dtype)
    tree = filled(weights, dtype, native)
    drawn = tree.draw(
        torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64), beta=beta
    )
    expected = (weights[drawn.items].double() / float(weights[1])) ** -beta
    assert drawn.importance.dtype == dtype
    torch.testing.assert_close(
        drawn.importance, expected.to(dtype), rtol=3e-7 if dtype == torch.float32 else 1e-14, atol=0
    )


def test_a_tree_without_weight_refuses_to_draw(native: bool) -> None:
    tree = SumTree(20, native=native)
    with pytest.raises(RuntimeError, match="All weights are 0"):
        tree.find(torch.zeros(1))
    with pytest.raises(RuntimeError, match="All weights are 0"):
        tree.draw(torch.zeros(1, dtype=torch.float64))
    assert tree.find(torch.zeros(0)).shape == (0,)


# ---- changes


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SIZES),
    st.sampled_from(DTYPES),
    st.sampled_from(KINDS),
    st.lists(st.sampled_from([1, 3, 40, 700, "fill", "clear", "leaves"]), min_size=1, max_size=8),
    st.integers(0, 2**31),
)
def test_any_history_of_changes_gives_the_tree_of_its_leaves(
    size: int, dtype: torch.dtype, kind: tuple[bool, int], history: list[Any], seed: int
) -> None:
    random = np.random.default_rng(seed)
    _native.tree_simd(kind[1])
    tree = SumTree(size, dtype, native=kind[0])
    leaves = np.zeros(size, np.float32 if dtype == torch.float32 else np.float64)
    for step in history:
        if step == "fill":
            start = int(random.integers(size))
            count = int(random.integers(size - start + 1))
            tree.fill(start, count, 0.3)
            leaves[start : start + count] = 0.3
        elif step == "clear":
            tree.clear()
            leaves[:] = 0
        elif step == "leaves":
            given_leaves = random.random(int(random.integers(size + 1))).astype(leaves.dtype)
            tree.set_leaves(torch.from_numpy(given_leaves))
            leaves[:] = 0
            leaves[: len(given_leaves)] = given_leaves
        else:
            index = random.integers(size, size=step)
            weight = (random.random(step) ** 4 * (random.random(step) > 0.2)).astype(leaves.dtype)
            tree.update(torch.from_numpy(index), torch.from_numpy(weight))
            for k, w in zip(index, weight, strict=True):
                leaves[k] = w
        assert torch.equal(tree.leaves, torch.from_numpy(leaves))
    _native.tree_simd(BEST)
    if size <= 5000:
        assert_is(tree, Tree(leaves))


def test_of_repeated_indices_the_last_wins(native: bool) -> None:
    tree = filled([1.0, 1.0, 1.0], native=native)
    tree.update(torch.tensor([1, 0, 1, 1]), torch.tensor([5.0, 2.0, 6.0, 7.0]))
    assert tree.leaves.tolist() == [2.0, 7.0, 1.0]
    assert tree.total == 10.0


def test_the_total_is_exact_after_many_updates() -> None:
    size, random = 3000, np.random.default_rng(0)
    tree = SumTree(size)
    for _ in range(300):
        index = torch.from_numpy(random.integers(size, size=4000))
        tree.update(index, torch.from_numpy((10.0 ** random.uniform(-6, 9, 4000)).astype(np.float32)))
    assert_is(tree, Tree(tree.leaves.numpy()))  # 1.2 million updates later
    exact = math.fsum(tree.leaves.tolist())
    assert abs(tree.total - exact) <= 1e-14 * exact
    tree.update(torch.arange(size), torch.tensor(1e-6))
    assert tree.total == Tree(np.full(size, 1e-6, np.float32)).total
    assert tree.smallest == tree.largest == float(np.float32(1e-6))


@pytest.mark.parametrize("bad", [-1, 300, -(2**62), 2**62])
def test_an_index_out_of_range_changes_nothing(native: bool, bad: int) -> None:  # C12
    tree = filled([1.0] * 300, native=native)
    with pytest.raises(IndexError, match=rf"Index {bad} \(position 2\).*300 items"):
        tree.update(torch.tensor([0, 1, bad, 2]), torch.tensor(5.0))
    assert tree.total == 300.0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf])
def test_a_bad_weight_changes_nothing_and_is_named(native: bool, bad: float) -> None:  # C04
    tree = filled([1.0] * 300, native=native)
    weights = torch.full((256,), 2.0)
    weights[200] = bad
    with pytest.raises(ValueError, match=r"position 200, for item 99"):
        tree.update(torch.arange(255, -1, -1) + 44, weights)
    assert tree.total == 300.0


def test_a_weight_beyond_float32_is_refused(native: bool) -> None:
    tree = filled([1.0] * 3, torch.float32, native)
    with pytest.raises(ValueError, match=r"too large for torch\.float32"):
        tree.update(torch.tensor([0]), torch.tensor(1e39, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"to the power of 2\.0 is too large"):
        tree.update_powers(torch.tensor([0, 1]), torch.tensor([1.0, 1e30]), alpha=2.0)
    assert tree.total == 3.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.1])
def test_weights_are_powers_of_values(native: bool, dtype: torch.dtype, alpha: float, eps: float) -> None:
    values = torch.tensor([0.0, 1e-300, 1e-30, 1e-6, 0.5, 1.0, 16.0, 1e9, 1e18], dtype=torch.float64)
    tree = SumTree(9, dtype, native=native)
    assert tree.update_powers(torch.arange(9), values, eps=eps, alpha=alpha) == 1e18
    expected = ((values + eps) ** alpha).to(dtype)
    torch.testing.assert_close(
        tree.leaves, expected, rtol=2e-7 if dtype == torch.float32 else 1e-15, atol=1e-45
    )


def test_indices_of_minus_one_are_skipped_when_asked_and_stale_ones_are_not_set(native: bool) -> None:
    tree = filled([1.0] * 4, native=native)
    stale = torch.tensor([False, False, True, False])
    largest = tree.update_powers(
        torch.tensor([-1, 0, 1, 2]), torch.tensor([9.0, 2.0, 8.0, 3.0]), skip=True, stale=stale
    )
    assert (largest, tree.leaves.tolist()) == (3.0, [2.0, 1.0, 3.0, 1.0])
    assert tree.update_powers(torch.tensor([-1]), torch.tensor([1.0]), skip=True) == -1.0


def test_values_and_items_must_agree_in_number(native: bool) -> None:
    with pytest.raises(RuntimeError, match=r"3 values \[3\] for 2 items"):
        SumTree(5, native=native).update(torch.tensor([0, 1]), torch.ones(3))


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (299, 2), (0, 301), (5, -1)])
def test_a_run_that_is_not_there_is_refused(native: bool, start: int, count: int) -> None:
    tree = filled([1.0] * 300, native=native)
    with pytest.raises(ValueError, match="of 300"):
        tree.fill(start, count, 2.0)
    assert tree.total == 300.0


def test_a_tree_takes_leaves_from_another_where_a_mask_is_set(native: bool) -> None:
    source, tree = filled(range(300), native=native), SumTree(300, torch.float64, native=native)
    mask = torch.arange(300) % 3 == 0
    tree.select(source, mask, 0, 300)
    assert_is(tree, Tree(np.where(mask.numpy(), np.arange(300.0), 0)))
    mask[:] = True
    tree.select_items(source, mask, torch.tensor([1, -1, 299]))
    assert tree.leaves[[0, 1, 2, 3, 299]].tolist() == [0, 1, 0, 3, 299]
    assert_is(tree, Tree(tree.leaves.numpy()))
    with pytest.raises(ValueError, match="cannot take weights"):
        tree.select(SumTree(4), mask, 0, 1)


def test_the_largest_weights_come_in_order_with_their_items(native: bool) -> None:
    weights = random_weights(5000, torch.float64, 9)
    weights[[17, 4000, 18]] = 5e3
    tree = filled(weights, native=native)
    for k in (1, 2, 3, 50, 4999):
        values, index = tree.top_k(k)
        order = sorted(range(5000), key=lambda i: (-float(weights[i]), i))[:k]
        order = [i for i in order if weights[i] > 0]
        assert index.tolist() == order
        assert torch.equal(values, weights[index])


# ---- state


def test_a_tree_takes_5_1_bytes_a_leaf_in_float32() -> None:
    assert SumTree(10_000_000).nbytes / 1e7 <= 5.1
    assert SumTree(10_000_000, torch.float64).nbytes / 1e7 <= 9.7


def test_a_grown_tree_keeps_its_weights(native: bool) -> None:
    weights = random_weights(300, torch.float64, 1)
    tree = filled(weights, native=native)
    tree.grow(5000)
    assert_is(tree, Tree(np.concatenate([weights.numpy(), np.zeros(4700)])))
    tree.grow(10)
    assert len(tree) == 5000


@pytest.mark.parametrize("again", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_a_copied_or_pickled_tree_is_the_same_and_its_own(again: Any) -> None:
    tree = filled(random_weights(300, torch.float32, 1), torch.float32)
    other = again(tree)
    assert_is(other, Tree(tree.leaves.numpy()))
    other.update(torch.tensor([0]), torch.tensor([77.0]))
    assert tree.leaves[0] != 77.0


def test_a_state_is_taken_over_and_stays_as_it_was(native: bool) -> None:
    tree = filled(random_weights(300, torch.float64, 1), native=native)
    state = tree.state_dict()
    other = SumTree(20, torch.float64, native=native)
    other.load_state_dict(state)
    tree.clear()
    other.load_state_dict(state)
    assert_is(other, Tree(state["leaves"].numpy()))
    with pytest.raises(ValueError, match="negative, NaN"):
        other.load_state_dict({"leaves": torch.tensor([1.0, math.nan])})


def _update_in_child(tree: SumTree) -> None:
    tree.update(torch.tensor([3]), torch.tensor([5.0]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_shared_tree_is_one_tree_in_all_processes(method: str) -> None:
    tree = filled([1.0] * 300, torch.float32).share_memory_()
    process = mp.get_context(method).Process(  # type: ignore[attr-defined]
        target=_update_in_child, args=(tree,)
    )
    process.start()
    process.join(PATIENCE)
    process.kill()
    assert process.exitcode == 0
    assert (tree.total, tree.largest) == (304.0, 5.0)
    with pytest.raises(RuntimeError, match="cannot grow"):
        tree.grow(1000)


def test_sending_an_unshared_tree_to_a_process_leaves_it_whole() -> None:
    tree = filled([1.0] * 300, torch.float32)
    process = mp.get_context("spawn").Process(target=_update_in_child, args=(tree,))
    process.start()
    process.join(PATIENCE)
    process.kill()
    tree.update(torch.tensor([0]), torch.tensor([2.0]))
    assert tree.total == 301.0
    assert tree.leaves[0] == 2.0


@pytest.mark.parametrize("wish", ["portable", "avx2", ""])
def test_an_environment_variable_forces_the_instruction_set(wish: str) -> None:
    code = "from replaybank import _native; print(_native.tree_simd())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "REPLAYBANK_SIMD": wish},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) == {"portable": 0, "avx2": min(BEST, 2), "": BEST}[wish]


def test_a_tree_refuses_other_dtypes_and_no_leaves() -> None:
    with pytest.raises(NotImplementedError, match="float16"):
        SumTree(3, torch.float16)
    with pytest.raises(ValueError, match="capacity=0"):
        SumTree(0)
    assert repr(filled([1.0, 2.0])) == "SumTree(capacity=2, dtype=torch.float64, total=3.0)"
