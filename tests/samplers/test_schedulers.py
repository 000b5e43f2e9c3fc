from __future__ import annotations

from typing import Any

import pytest
import torch

from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.schedulers import (
    LambdaScheduler,
    LinearScheduler,
    ParameterScheduler,
    SchedulerList,
    StepScheduler,
)


def sampler(alpha: Any = 1.0, beta: Any = 0.4) -> PrioritizedSampler:
    return PrioritizedSampler(10, alpha, beta)


def run(scheduler: ParameterScheduler | SchedulerList, obj: Any, name: str, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        scheduler.step()
        found.append(float(getattr(obj, name)))
    return found


def test_a_linear_scheduler_goes_to_the_final_value_and_stays() -> None:  # C20
    obj = sampler()
    scheduler = LinearScheduler(obj, "beta", final_value=1.0, num_steps=3)
    assert run(scheduler, obj, "beta", 5) == pytest.approx([0.6, 0.8, 1.0, 1.0, 1.0])


def test_a_linear_scheduler_goes_down_too_and_takes_tensors() -> None:
    obj = sampler(alpha=torch.tensor(1.0))
    scheduler = LinearScheduler(obj, "alpha", final_value=torch.tensor(0.5), num_steps=2)
    assert run(scheduler, obj, "alpha", 3) == pytest.approx([0.75, 0.5, 0.5])
    assert isinstance(obj.alpha, torch.Tensor)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.36, 0.324, 0.2916, 0.26244]),
        ({"gamma": 0.5, "n_steps": 2}, [0.4, 0.2, 0.2, 0.1]),
        ({"gamma": 0.1, "mode": "additive"}, [0.5, 0.6, 0.7, 0.8]),
        ({"gamma": 0.5, "mode": "additive", "max_value": 1.2}, [0.9, 1.2, 1.2, 1.2]),
        ({"gamma": 0.5, "min_value": 0.15}, [0.2, 0.15, 0.15, 0.15]),
        ({"gamma": 0.5, "min_value": 0.0}, [0.2, 0.1, 0.05, 0.025]),
    ],
)
def test_a_step_scheduler_changes_every_n_steps(options: dict[str, Any], expected: list[float]) -> None:
    obj = sampler()
    assert run(StepScheduler(obj, "beta", **options), obj, "beta", 4) == pytest.approx(expected)


@pytest.mark.parametrize("tensor", [False, True])
def test_a_lambda_scheduler_asks_with_the_number_of_steps(tensor: bool) -> None:
    obj = sampler()
    scheduler = LambdaScheduler(
        obj, "beta", lambda k: torch.tensor(k / 10) if tensor else k / 10, min_value=0.2, max_value=0.3
    )
    assert run(scheduler, obj, "beta", 4) == pytest.approx([0.2, 0.2, 0.3, 0.3])


def test_a_list_steps_all_and_keeps_their_states() -> None:
    obj = sampler()
    both = SchedulerList([LinearScheduler(obj, "beta", 1.0, 3)])
    both.append(StepScheduler(obj, "alpha", gamma=0.5))
    both.step()
    assert (obj.beta, obj.alpha) == pytest.approx((0.6, 0.5))
    assert len(both) == len(list(both)) == 2
    state = both.state_dict()
    fresh = SchedulerList([LinearScheduler(obj, "beta", 1.0, 3), StepScheduler(obj, "alpha", gamma=0.5)])
    fresh.load_state_dict(state)
    fresh.step()
    assert (obj.beta, obj.alpha) == pytest.approx((0.8, 0.25))
    with pytest.raises(ValueError, match="2 schedulers, there are 1"):
        SchedulerList(LinearScheduler(obj, "beta", 1.0, 3)).load_state_dict(state)


def test_setting_alpha_by_a_scheduler_reweights() -> None:
    from reference.storage import PlainStorage

    storage, obj = PlainStorage(2), PrioritizedSampler(2, 1.0, 1.0, eps=0.0)
    storage.extend({("x",): torch.zeros(2)})
    obj.update_priority([0, 1], [1.0, 16.0], storage=storage)
    LinearScheduler(obj, "alpha", 0.5, 1).step()
    assert obj.weights.tolist() == [1.0, 4.0]


def test_what_cannot_be_is_refused() -> None:
    obj = sampler()
    with pytest.raises(ValueError, match="no attribute 'gamma'"):
        LinearScheduler(obj, "gamma", 1.0, 3)
    with pytest.raises(ValueError, match="num_steps=0"):
        LinearScheduler(obj, "beta", 1.0, 0)
    with pytest.raises(ValueError, match="n_steps=0"):
        StepScheduler(obj, "beta", n_steps=0)
    with pytest.raises(ValueError, match="mode='other'"):
        StepScheduler(obj, "beta", mode="other")
    with pytest.raises(ValueError, match="min_value=2 exceeds max_value=1"):
        StepScheduler(obj, "beta", min_value=2, max_value=1)
    assert repr(LinearScheduler(obj, "beta", 1.0, 3)) == "LinearScheduler(PrioritizedSampler.beta, step=0)"
