"""What holds for every test."""

from __future__ import annotations

import os

# Before torch is imported: threads that spin while they wait ruin each other where cores are shared.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
