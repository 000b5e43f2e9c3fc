"""How long hypothesis looks: by default as long as every change can wait, or many times that."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """``count``, or ten times as many with ``--hypothesis-profile=deep``."""
    return count * 10 if settings.get_current_profile_name() == "deep" else count
