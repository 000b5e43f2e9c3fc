"""What a person types: ``replaybank demo``, ``convert``, ``info``, ``view`` and the other commands."""

from __future__ import annotations

from replaybank.cli.commands import app
from replaybank.cli.errors import FAILED, INTERRUPTED, MISUSED
from replaybank.cli.main import run

__all__ = ["FAILED", "INTERRUPTED", "MISUSED", "app", "run"]
