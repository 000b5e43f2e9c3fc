"""Every sampler against what all of them promise; the checks are in ``tests/sampler_contracts.py``."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import sampler_contracts as contracts
from replaybank.samplers.base import Sampler
from sampler_contracts import SAMPLERS, SamplerCase

CASES = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in SAMPLERS])
COLUMNS = pytest.mark.parametrize("columns", [(), (1,), (3,), (2, 2)], ids=str)


@CASES
@COLUMNS
def test_what_is_sampled_is_there(case: SamplerCase, columns: tuple[int, ...]) -> None:
    contracts.check_index(case, columns)


@CASES
@COLUMNS
def test_the_same_seed_gives_the_same_batches(case: SamplerCase, columns: tuple[int, ...]) -> None:  # C13
    contracts.check_seed(case, columns)


@CASES
@COLUMNS
@pytest.mark.parametrize("way", ["state_dict", "dumps", "pickle", "deepcopy"])
def test_a_sampler_goes_on_where_its_state_was_taken(
    case: SamplerCase, columns: tuple[int, ...], way: str, tmp_path: Path
) -> None:
    def copied(sampler: Sampler) -> Sampler:
        if way in ("state_dict", "dumps"):
            other = case.make()
            if way == "dumps":
                sampler.dumps(tmp_path)
                other.loads(tmp_path)
            else:
                other.load_state_dict(sampler.state_dict())
            return other
        # A torch.Generator can be neither pickled nor copied by every torch: the buffer hands it down.
        generator, sampler.generator = sampler.generator, None
        other = pickle.loads(pickle.dumps(sampler)) if way == "pickle" else copy.deepcopy(sampler)
        sampler.generator = generator
        return other

    contracts.check_state(case, columns, copied)


CHILD = """
import json, sys
from pathlib import Path
import sampler_contracts as contracts
print(json.dumps(contracts.go_on(Path(sys.argv[1]))))
"""


def test_every_sampler_goes_on_in_another_process(tmp_path: Path) -> None:  # C23
    right = contracts.save_all(tmp_path)
    path = os.pathsep.join([str(Path(contracts.__file__).parent), os.environ.get("PYTHONPATH", "")])
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert json.loads(child.stdout) == json.loads(json.dumps(right))


@CASES
def test_a_state_is_a_copy_of_plain_values(case: SamplerCase) -> None:
    contracts.check_state_is_plain(case)


@CASES
def test_every_sampler_has_the_members_of_one(case: SamplerCase) -> None:
    contracts.check_base(case)


@CASES
def test_an_empty_storage_is_an_error(case: SamplerCase) -> None:
    contracts.check_empty(case)


@CASES
@pytest.mark.parametrize("rows", [1, 5])
def test_one_item_can_be_sampled(case: SamplerCase, rows: int) -> None:  # C19
    contracts.check_one_item(case, rows)


@CASES
def test_only_exhaustible_samplers_run_out(case: SamplerCase) -> None:
    contracts.check_exhaustion(case)


@CASES
def test_threads_sample_while_one_writes(case: SamplerCase) -> None:
    contracts.check_threads(case)
