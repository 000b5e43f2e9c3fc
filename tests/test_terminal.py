"""What is printed for a person."""

from __future__ import annotations

import sys

import pytest

from replaybank import terminal


def test_a_table_outside_a_terminal_is_plain_text_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.table("Fields", [("action", "float32"), ("is_first", "bool")], header=("key", "dtype"))
    assert capsys.readouterr().out == "\nFields\n  key       dtype\n  action    float32\n  is_first  bool\n"


def test_an_empty_table_is_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.table("Nothing", [])
    assert capsys.readouterr().out == "\nNothing\n"


def test_brackets_in_the_data_are_no_markup_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    terminal.table("T", [("shape", "[red]"), ("dtype", "[/]")])
    out = capsys.readouterr().out
    assert "[red]" in out
    assert "[/]" in out


def test_strings_of_a_dataset_cannot_move_the_cursor() -> None:
    assert terminal.printable("a\x1b[2Jb\rc\u202ed é 日本") == "a\\x1b[2Jb\\rc\\u202ed é 日本"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (1e12, "1.0 TB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_bytes_are_shown_in_decimal_units(number: float, text: str) -> None:
    assert terminal.size(number) == text


def test_long_text_is_cut_to_one_line() -> None:
    assert terminal.short("put  the\nspoon", 20) == "put the spoon"
    assert terminal.short("x" * 30, 10) == "xxxxxxx..."
