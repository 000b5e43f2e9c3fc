"""What holds for every test."""

from __future__ import annotations

import os

# Before torch is imported: threads that spin while they wait ruin each other where cores are shared.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from hypothesis import HealthCheck, settings

# `pytest --hypothesis-profile=deep tests/samplers/test_machine.py` looks for minutes instead of seconds.
settings.register_profile(
    "deep",
    max_examples=1000,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
