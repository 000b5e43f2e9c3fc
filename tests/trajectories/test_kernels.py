from __future__ import annotations

import bisect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replaybank import _native
from replaybank.trajectories.index import Slices, TrajectoryIndex

SIZES = [1, 63, 64, 65, 511, 512, 513, 8191, 8192, 8193, 64 * 8 * 16 * 3 + 5, 64 * 8 * 16 * 16 + 1]
"""Numbers of bits on both sides of a word (64), of a count (512), and of one to three levels of 16 counts."""


class Bits:
    def __init__(self, size: int, on: set[int]) -> None:
        n_words = (size + 511) // 512 * 8
        self.words = torch.zeros(n_words, dtype=torch.int64)
        self.counts = torch.zeros(_native.ranked_counts_size(n_words), dtype=torch.int32)
        self.at = (self.words.data_ptr(), self.counts.data_ptr(), n_words)
        for bit in on:
            _native.ranked_assign(*self.at, bit, True)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SIZES), st.sampled_from([0, 1, 2, 40, 400]), st.randoms(use_true_random=True))
def test_a_ranked_bitset_answers_as_a_sorted_list_does(size: int, n: int, random: object) -> None:
    choose = random.randrange  # type: ignore[attr-defined]
    on = {choose(size) for _ in range(n)} | ({0, size - 1} if n > 1 else set())
    bits = Bits(size, on)
    for bit in [bit for bit in sorted(on) if choose(3) == 0]:
        _native.ranked_assign(*bits.at, bit, False)
        _native.ranked_assign(*bits.at, bit, False)
        on.discard(bit)
    ordered = sorted(on)
    assert _native.ranked_count(*bits.at) == len(ordered)
    assert [_native.ranked_select(*bits.at, k) for k in range(len(ordered))] == ordered
    for bit in [0, size - 1, *(choose(size) for _ in range(50)), *ordered[:20]]:
        before, after = bisect.bisect_right(ordered, bit), bisect.bisect_left(ordered, bit)
        assert _native.ranked_at_or_before(*bits.at, bit) == (ordered[before - 1] if before else -1)
        assert _native.ranked_at_or_after(*bits.at, bit) == (ordered[after] if after < len(ordered) else -1)


@pytest.mark.parametrize("item_bytes", [1, 3, 8, 24])
@pytest.mark.parametrize("columns", [1, 3])
def test_changes_are_where_the_bytes_of_an_identity_differ(item_bytes: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(item_bytes)
    for count in (1, 2, 20):
        values = torch.randint(2, (count + 1, columns, 1), generator=generator, dtype=torch.uint8)
        values = values.expand(-1, -1, item_bytes).contiguous()
        for after in (None, values[count:]):
            flags = torch.ones(count, columns, dtype=torch.bool)
            _native.trajectory_changes(
                values.data_ptr(),
                count,
                columns,
                item_bytes,
                0 if after is None else after.data_ptr(),
                flags.data_ptr(),
            )
            expected = (values[1:] != values[:-1]).any(-1)
            if after is None:
                expected[-1] = False
            assert torch.equal(flags, expected)


def test_every_start_of_a_very_long_trajectory_is_possible() -> None:
    steps = 2**25
    index = TrajectoryIndex.of_flags(torch.zeros(steps, 1, dtype=torch.bool))
    index.sync(None, 2)  # type: ignore[arg-type]
    assert as_runs(index.draw(1, 2)).shape == (1, 3)
    starts = index.draw(1 << 16, 1, generator=torch.Generator().manual_seed(0)).runs[1]
    assert (starts % 2 == 1).any()
    # float32 would give even starts only in the upper half.
    assert 0.45 < float((starts[starts > 2**24] % 2).double().mean()) < 0.55


def as_runs(slices: Slices) -> torch.Tensor:
    return slices.runs.T


@pytest.mark.parametrize(("random", "start"), [(0, 0), (2**62, 3), (2**63 - 1, 6)])
def test_the_extreme_draws_give_the_first_and_the_last_start(random: int, start: int) -> None:
    randoms = torch.tensor([random])
    first, steps = torch.tensor([0]), torch.tensor([10])
    total = _native.trajectory_cut_windows(
        randoms.data_ptr(), 1, 4, 0, 0, 100, first.data_ptr(), steps.data_ptr()
    )
    assert (total, int(first), int(steps)) == (4, start, 4)
