"""What errors say."""

from __future__ import annotations

from typing import Any

import pytest

from replaybank.errors import add_note


class OfOldPython(ValueError):
    """An error as Python 3.10 makes them, without notes."""

    def __getattribute__(self, name: str) -> Any:
        if name == "add_note":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize(("args", "said"), [(("bad", 3), ("bad\nthere", 3)), ((), ("\nthere",))])
def test_a_note_is_part_of_the_message_where_python_has_no_notes(
    args: tuple[Any, ...], said: tuple[Any, ...]
) -> None:
    error = OfOldPython(*args)
    add_note(error, "there")
    assert error.args == said


def test_a_note_is_a_note_where_python_has_them() -> None:
    error = ValueError("bad")
    add_note(error, "there")
    assert "there" in "\n".join([str(error), *getattr(error, "__notes__", [])])
