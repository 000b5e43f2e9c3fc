"""How long a test waits for what surely comes: never the time in which a busy machine has it done."""

from __future__ import annotations

PATIENCE = 300.0
"""Seconds; a process that is spawned imports torch anew, which takes a minute where many do."""
