from __future__ import annotations

import copy
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from patience import PATIENCE
from reference.write_log import SlotLog
from replaybank.storages.write_log import RING, WriteLog


def slots(runs: list[tuple[int, int]], rows: int) -> set[int]:
    assert all(1 <= count <= rows and 0 <= start < rows for start, count in runs)
    return {(start + k) % rows for start, count in runs for k in range(count)}


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("jump"), st.integers(1, 12)),
        st.tuples(st.just("aside"), st.integers(1, 12)),
        st.tuples(st.just("touch"), st.integers(1, 5)),
        st.tuples(st.just("mark"), st.just(0)),
    ),
    max_size=40,
)


@given(st.integers(1, 12), operations, st.randoms(use_true_random=False))
def test_changes_and_cuts_agree_with_a_log_kept_slot_by_slot(
    rows: int, history: list[tuple[str, int]], random: object
) -> None:
    log, model = WriteLog(rows), SlotLog(rows)
    mark, written = log.mark(), set[int]()
    choose = random.randrange  # type: ignore[attr-defined]
    for kind, size in history:
        count = min(size, rows)
        if kind == "mark":
            mark, written = log.mark(), set()
        elif kind == "touch":
            if log.length:
                chosen = [choose(log.length) for _ in range(size)]
                log.touch(torch.tensor(chosen))
                written |= set(chosen)
        else:
            start = log.cursor if kind == "append" else choose(min(log.length + 1, rows))
            log.append(start, count, set_cursor=kind != "aside")
            model.append(start, count, kind != "aside")
            written |= {(start + k) % rows for k in range(count)}
        changes = log.changes(mark)
        assert not changes.everything
        assert slots(changes.runs, rows) == written
        assert log.cursor == model.cursor
        assert log.total == model.clock
        assert [t < log.length for t in range(rows)] == [s is not None for s in model.stamp]
        assert log.cut.tolist()[: log.length] == [model.cut(t) for t in range(log.length)]


def test_the_slot_at_the_cursor_is_cut_from_the_newest() -> None:
    log = WriteLog(10)
    for count in (3, 3, 3, 3, 10, 1):
        log.append(log.cursor, count)
        assert log.cut[log.cursor]
    assert log.cut.sum() == 1


def test_slot_0_continues_the_last_slot_only_once_the_writing_went_round() -> None:
    log = WriteLog(4)
    log.append(0, 4)
    assert log.cut.tolist() == [True, False, False, False]
    log.append(0, 1)
    assert log.cut.tolist() == [False, True, False, False]


def test_a_write_elsewhere_continues_nothing() -> None:
    log = WriteLog(8)
    log.append(0, 6)
    log.append(2, 2)
    assert (log.cursor, log.length) == (4, 6)
    assert log.cut.tolist()[:6] == [True, False, True, False, True, False]


def test_a_write_aside_leaves_the_cursor_and_a_later_regular_one_does_not_continue_it() -> None:
    log = WriteLog(8)
    log.append(0, 4)
    log.append(3, 1, set_cursor=False)
    assert log.cursor == 4
    log.append(4, 1)
    assert log.cut.tolist()[:5] == [True, False, False, True, True]


def test_consecutive_appends_are_one_event_and_a_follower_gets_only_what_is_new() -> None:
    log = WriteLog(1000)
    log.append(0, 5)
    mark = log.mark()
    for _ in range(3 * RING):
        log.append(log.cursor, 1)
        mark, before = log.mark(), mark
        assert log.changes(before).runs == [((log.cursor - 1) % 1000, 1)]
    log.append(log.cursor, 700)
    assert log.changes(mark).runs == [((log.cursor - 700) % 1000, 700)]
    assert log.changes(log.mark()).runs == []


def test_a_follower_that_fell_out_of_the_ring_reads_everything() -> None:
    log = WriteLog(4)
    log.append(0, 4)
    mark = log.mark()
    for _ in range(RING - 1):
        log.touch(torch.tensor([1]))
    assert log.changes(mark).runs == [(1, 1)] * (RING - 1)
    log.touch(torch.tensor([1]))
    assert log.changes(mark).everything
    assert not log.changes(log.mark()).everything


def test_a_touch_of_more_runs_than_the_ring_holds_makes_every_follower_read_everything() -> None:
    log = WriteLog(3 * RING)
    log.append(0, 3 * RING)
    mark = log.mark()
    log.touch(torch.arange(0, 3 * RING, 2))
    assert log.changes(mark).everything
    mark = log.mark()
    log.touch(torch.tensor([7, 5, 6, 6, 2]))
    assert log.changes(mark).touched == [(2, 1), (5, 3)]


def test_a_first_follower_knows_nothing_and_emptying_makes_all_of_them_so() -> None:
    log = WriteLog(4)
    assert log.changes(None).everything
    log.append(0, 3)
    mark = log.mark()
    log.clear()
    assert log.changes(mark).everything
    assert (log.length, log.cursor, log.total) == (0, 0, 3)
    log.append(0, 2)
    assert log.cut.tolist()[:2] == [True, False]


@pytest.mark.parametrize("wraps", [False, True])
def test_given_data_is_all_there_and_a_later_write_does_not_continue_it(wraps: bool) -> None:
    log = WriteLog(4)
    mark = log.mark()
    log.fill(wraps=wraps)
    assert log.changes(mark).everything
    assert (log.length, log.cursor) == (4, 0)
    assert log.cut.tolist() == [not wraps, False, False, False]
    log.append(0, 2)
    assert log.cut.tolist() == [True, False, True, False]


def test_given_data_may_leave_room() -> None:
    log = WriteLog(4)
    log.fill(count=3)
    assert (log.length, log.cursor) == (3, 3)
    log.append(3, 1)
    assert log.cut.tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match="Only a full storage wraps: 3 of 4"):
        log.fill(wraps=True, count=3)


@pytest.mark.parametrize(
    ("start", "count", "error", "text"),
    [
        (0, 5, ValueError, "5 rows to a log of 4"),
        (0, -1, ValueError, "-1 rows"),
        (4, 1, IndexError, "Row 4"),
        (-1, 1, IndexError, "Row -1"),
        (3, 1, ValueError, "only 2 rows have been written"),
    ],
)
def test_impossible_appends_are_refused_and_change_nothing(
    start: int, count: int, error: type[Exception], text: str
) -> None:
    log = WriteLog(4)
    log.append(0, 2)
    before = log.state.clone()
    with pytest.raises(error, match=text):
        log.append(start, count)
    assert torch.equal(log.state, before)


def test_an_empty_append_and_an_empty_touch_change_nothing() -> None:
    log = WriteLog(4)
    before = log.state.clone()
    log.append(0, 0)
    log.touch(torch.empty(0, dtype=torch.int64))
    assert torch.equal(log.state, before)


def test_touching_a_row_never_written_is_an_index_error() -> None:
    log = WriteLog(4)
    log.append(0, 2)
    with pytest.raises(IndexError, match="Row 2 is out of range: 2 rows are valid"):
        log.touch(torch.tensor([0, 2]))


def test_a_state_dict_can_be_loaded_twice_and_followers_notice() -> None:
    log = WriteLog(6)
    log.append(0, 6)
    log.append(0, 2)
    log.touch(torch.tensor([3, 1, 3]))
    saved = log.state_dict()
    other = WriteLog(6)
    for _ in range(2):
        other.append(other.cursor, 4)
        mark = other.mark()
        other.load_state_dict(saved)
        assert other.changes(mark).everything
        assert (other.cursor, other.length, other.total, other.touches) == (2, 6, 8, 2)
        assert torch.equal(other.cut, log.cut)
        mark = other.mark()
        other.append(2, 1)
        assert other.changes(mark).runs == [(2, 1)]
    with pytest.raises(ValueError, match="6 rows, this one has 7"):
        WriteLog(7).load_state_dict(saved)


def test_copies_by_pickle_and_deepcopy_go_their_own_way() -> None:
    log = WriteLog(6)
    log.append(0, 4)
    for other in (pickle.loads(pickle.dumps(log)), copy.deepcopy(log)):
        mark = other.mark()
        other.append(4, 1)
        assert other.changes(mark).runs == [(4, 1)]
        assert (log.length, other.length) == (4, 5)


def _write_three_rows(log: WriteLog) -> None:
    log.append(log.cursor, 3)


def test_a_shared_log_shows_what_another_process_wrote() -> None:
    log = WriteLog(6).share_memory_()
    log.append(0, 4)
    mark = log.mark()
    process = torch.multiprocessing.get_context("spawn").Process(target=_write_three_rows, args=(log,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert log.changes(mark).runs == [(4, 3)]
    assert (log.cursor, log.length) == (1, 6)


def test_a_log_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="rows=0"):
        WriteLog(0)


def test_the_rows_appended_since_any_total_are_known_with_their_numbers() -> None:
    log = WriteLog(5)
    log.append(0, 3)
    log.append(3, 4)
    log.append(1, 1, set_cursor=False)
    assert log.appended_since(0) == [(0, 7, 0), (1, 1, 7)]
    assert log.appended_since(6) == [(1, 1, 6), (1, 1, 7)]
    assert log.appended_since(8) == []
    log.touch(torch.tensor([2]))
    log.clear()
    log.append(0, 2)
    assert log.appended_since(7) == [(1, 1, 7), (0, 2, 8)]
    log.load_state_dict(log.state_dict())
    assert log.appended_since(9) is None  # what led to the loaded state is not known
    assert log.appended_since(10) == []
    log.append(2, 1)
    assert log.appended_since(10) == [(2, 1, 10)]
    for k in range(RING):
        log.append(3 * (k % 2), 1, set_cursor=False)
    assert log.appended_since(10) is None


def test_sending_an_unshared_log_to_a_process_leaves_it_whole() -> None:
    log = WriteLog(5)
    ForkingPickler.dumps(log)
    log.append(0, 3)
    assert int(log.state[1]) == log.total == 3


def test_the_changes_of_an_epoch_are_those_since_it_began() -> None:
    log = WriteLog(6)
    assert log.changes(log.epoch_mark()).runs == []
    log.append(0, 3)
    assert log.changes(log.epoch_mark()).runs == [(0, 3)]
    log.load_state_dict(log.state_dict())
    assert log.changes(log.epoch_mark()).runs == []
    log.append(3, 2)
    log.touch(torch.tensor([1]))
    changes = log.changes(log.epoch_mark())
    assert (changes.appended, changes.touched) == ([(3, 2)], [(1, 1)])
    log.clear()
    assert log.changes(log.epoch_mark()).runs == []
    log.append(0, 1)
    assert log.changes(log.epoch_mark()).runs == [(0, 1)]
