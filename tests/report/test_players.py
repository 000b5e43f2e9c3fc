"""Played episodes hold the numbers, texts and frames of their steps."""

from __future__ import annotations

import numpy as np

from replaybank.report.look import Entry, Look, Roles
from replaybank.report.players import MOST_STEPS, MOST_VALUES, Cast, Player
from report_looks import ACTION, CAMERA, look

TEXT = ("language_instruction",)
ENTRIES = (
    Entry(ACTION, "tensor", (1,), "float32"),
    Entry(CAMERA, "image", (8, 8, 3), "uint8"),
    Entry(TEXT, "text", (), "str"),
)


def played(one: Look, *, room: int = 1 << 24, rewarded: bool = True) -> Player:
    values = {ACTION: one.columns[ACTION].reshape(len(one.columns[ACTION]), -1)}  # type: ignore[union-attr]
    cast = Cast([one], Roles.of(ENTRIES), {}, values, rewarded, 1 << 24)
    sheets, _ = cast.sheets(room)
    (player,) = cast.players(sheets)
    return player


def test_a_player_holds_every_step() -> None:
    image = np.zeros((4, 8, 8, 3), np.uint8)
    one = look(5, image=image, columns={TEXT: ["a", "a", "b", "b"]})
    player = played(one)
    assert (player.number, player.length, player.end, player.total) == (5, 4, "terminated", 1.0)
    assert player.texts == ("a",)
    assert player.data["steps"] == [0, 1, 2, 3]
    assert player.data["texts"] == [[[0, "a"], [2, "b"]]]
    assert player.data["reward"] == [0, 0, 0, 1]
    (number,) = player.data["numbers"]
    assert number == {"name": "action", "low": 5.0, "high": 8.0, "values": [5, 6, 7, 8]}
    (view,) = player.data["views"]
    assert view["steps"] == (0, 1, 2, 3)
    assert [name for name, _, _ in player.views[0].ends] == ["first", "middle", "last"]


def test_long_episodes_are_thinned_out_evenly() -> None:
    one = look(0, 10_000, image=np.zeros((1, 8, 8, 3), np.uint8).repeat(10_000, 0))
    player = played(one)
    assert len(player.data["steps"]) == MOST_STEPS
    assert player.data["steps"][-1] == 9_999
    assert player.data["views"][0]["steps"][-1] == 9_999


def test_numbers_that_are_none_are_nothing_in_json() -> None:
    player = played(look(0, columns={ACTION: np.array([[0.0], [np.nan], [np.inf], [2.0]])}))
    assert player.data["numbers"][0]["values"] == [0, None, None, 2]


def test_of_many_numbers_some_are_shown_and_the_rest_counted() -> None:
    player = played(look(0, columns={ACTION: np.zeros((4, MOST_VALUES + 3), np.float32)}))
    assert (len(player.data["numbers"]), player.hidden) == (MOST_VALUES, 3)


def test_without_room_there_are_no_frames_and_the_page_says_so() -> None:
    one = look(0, image=np.zeros((4, 8, 8, 3), np.uint8))
    assert played(one, room=10).views == ()
    cast = Cast([one], Roles.of(ENTRIES), {}, {}, True, 1 << 24)
    assert cast.sheets(10) == ({}, "there is no room for frames within --max-size")


def test_data_without_rewards_show_none() -> None:
    player = played(look(0), rewarded=False)
    assert (player.total, player.data["reward"]) == (None, None)


def test_texts_are_no_longer_than_anybody_reads() -> None:
    player = played(look(0, columns={TEXT: ["a" * 10_000] * 4}))
    assert player.texts == ("a" * 399 + "\N{HORIZONTAL ELLIPSIS}",)
    assert len(player.data["texts"][0]) == 1
