"""What holds for every test."""

from __future__ import annotations

import os
import signal

# Before torch is imported, and for the processes that tests start: what tests compute is too little to be
# worth more than one thread, and threads ruin each other where cores are shared. Tests about threads set
# their number.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A job in the background of a shell is born deaf to Ctrl-C, and so are the processes that it starts: tests of
# what Ctrl-C does would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from hypothesis import HealthCheck, settings

# The same examples in every run, however slow the machine is: to look for other ones is the deep profile's.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# `pytest --hypothesis-profile=deep tests/samplers/test_machine.py` looks for minutes instead of seconds.
settings.register_profile(
    "deep",
    max_examples=1000,
    stateful_step_count=100,
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
