"""Schedulers: annealing ``beta``, ``alpha`` and other numbers of a sampler, a step at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.checkpoint import Stateful
from replaybank.samplers.arguments import whole


class ParameterScheduler(Stateful):
    """Changes one number of an object at each :meth:`step`. O(1), but setting ``alpha`` is O(N).

    Not thread-safe: step in the thread that samples.

    Args:
        obj: a sampler, or anything with the attribute.
        param_name: the attribute, a number or a 0-d tensor.
        min_value: it is set to no less.
        max_value: it is set to no more.

    Raises:
        ValueError: the object has no such attribute, or the limits are the wrong way round.
    """

    def __init__(
        self, obj: Any, param_name: str, min_value: float | None = None, max_value: float | None = None
    ) -> None:
        if not hasattr(obj, param_name):
            raise ValueError(f"A {type(obj).__name__} has no attribute {param_name!r} to be scheduled.")
        if min_value is not None and max_value is not None and min_value > max_value:
            raise ValueError(f"min_value={min_value} exceeds max_value={max_value}.")
        self.obj = obj
        self.param_name = param_name
        self.min_value = min_value
        self.max_value = max_value
        value = getattr(obj, param_name)
        # A tensor is copied: whoever changes it in place would change where the schedule began.
        self.initial_value: Any = value.detach().clone() if isinstance(value, Tensor) else value
        self.step_count = 0

    @abstractmethod
    def _next(self) -> Any:
        """The value after ``step_count`` steps."""

    def step(self) -> None:
        """Set the attribute to its next value."""
        self.step_count += 1
        value = self._next()
        if isinstance(value, Tensor):
            if self.min_value is not None or self.max_value is not None:
                value = torch.clamp(value, self.min_value, self.max_value)
        else:
            value = value if self.min_value is None else max(value, self.min_value)
            value = value if self.max_value is None else min(value, self.max_value)
        setattr(self.obj, self.param_name, value)

    def state_dict(self) -> dict[str, Any]:
        """How many steps were made, and from where. The attribute is in the object's own state."""
        return {"step_count": self.step_count, "initial_value": self.initial_value}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state."""
        self.step_count = int(state_dict["step_count"])
        self.initial_value = state_dict["initial_value"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.obj).__name__}.{self.param_name}, step={self.step_count})"


class LinearScheduler(ParameterScheduler):
    """From the value there is to ``final_value`` in ``num_steps`` equal steps, and then no further.

    Not thread-safe: step in the thread that samples.

    Args:
        obj: a sampler, or anything with the attribute.
        param_name: the attribute.
        final_value: what it becomes.
        num_steps: in how many steps, at least 1.

    Example:
        >>> from replaybank.samplers import PrioritizedSampler
        >>> sampler = PrioritizedSampler(10, alpha=0.6, beta=0.4)
        >>> scheduler = LinearScheduler(sampler, "beta", final_value=1.0, num_steps=3)
        >>> for _ in range(4):
        ...     scheduler.step()
        ...     print(round(sampler.beta, 3))
        0.6
        0.8
        1.0
        1.0
    """

    def __init__(self, obj: Any, param_name: str, final_value: float | Tensor, num_steps: int) -> None:
        super().__init__(obj, param_name)
        self.final_value = final_value
        self.num_steps = whole("num_steps", num_steps)

    def _next(self) -> Any:
        if self.step_count >= self.num_steps:
            return self.final_value
        return self.initial_value + (self.final_value - self.initial_value) * (
            self.step_count / self.num_steps
        )


class StepScheduler(ParameterScheduler):
    """Multiplied by ``gamma``, or increased by it, every ``n_steps`` steps.

    Not thread-safe: step in the thread that samples.

    Args:
        obj: a sampler, or anything with the attribute.
        param_name: the attribute.
        gamma: the factor, or what is added.
        n_steps: steps from one change to the next, at least 1.
        mode: ``"multiplicative"`` or ``"additive"``.
        min_value: it is set to no less.
        max_value: it is set to no more.

    Raises:
        ValueError: another mode.

    Example:
        >>> from replaybank.samplers import PrioritizedSampler
        >>> sampler = PrioritizedSampler(10, alpha=0.5, beta=0.4)
        >>> scheduler = StepScheduler(sampler, "alpha", gamma=0.5, n_steps=2, min_value=0.2)
        >>> for _ in range(6):
        ...     scheduler.step()
        >>> sampler.alpha  # halved after two steps and after four, then no further
        0.2
    """

    def __init__(
        self,
        obj: Any,
        param_name: str,
        gamma: float | Tensor = 0.9,
        n_steps: int = 1,
        mode: str = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        if mode not in ("multiplicative", "additive"):
            raise ValueError(f"mode={mode!r}: give 'multiplicative' or 'additive'.")
        self.gamma = gamma
        self.n_steps = whole("n_steps", n_steps)
        self.mode = mode

    def _next(self) -> Any:
        value = getattr(self.obj, self.param_name)
        if self.step_count % self.n_steps:
            return value
        return value * self.gamma if self.mode == "multiplicative" else value + self.gamma


class LambdaScheduler(ParameterScheduler):
    """Whatever a function of the number of steps gives.

    Not thread-safe: step in the thread that samples.

    Args:
        obj: a sampler, or anything with the attribute.
        param_name: the attribute.
        lambda_fn: called with 1, 2, ...
        min_value: it is set to no less.
        max_value: it is set to no more.

    Example:
        >>> from replaybank.samplers import PrioritizedSampler
        >>> sampler = PrioritizedSampler(10, alpha=0.5, beta=0.4)
        >>> scheduler = LambdaScheduler(sampler, "beta", lambda step: 0.4 + 0.1 * step, max_value=1.0)
        >>> scheduler.step()
        >>> sampler.beta
        0.5
    """

    def __init__(
        self,
        obj: Any,
        param_name: str,
        lambda_fn: Callable[[int], Any],
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.lambda_fn = lambda_fn

    def _next(self) -> Any:
        return self.lambda_fn(self.step_count)


class SchedulerList(Stateful):
    """Several schedulers, stepped together in their order.

    Not thread-safe: step in the thread that samples.

    Args:
        schedulers: one or more.

    Example:
        >>> from replaybank.samplers import PrioritizedSampler
        >>> sampler = PrioritizedSampler(10, alpha=0.5, beta=0.5)
        >>> both = SchedulerList([
        ...     LinearScheduler(sampler, "beta", final_value=1.0, num_steps=2),
        ...     StepScheduler(sampler, "alpha", gamma=0.5),
        ... ])
        >>> both.step()
        >>> sampler.beta, sampler.alpha
        (0.75, 0.25)
    """

    def __init__(self, schedulers: ParameterScheduler | Iterable[ParameterScheduler]) -> None:
        self.schedulers = [schedulers] if isinstance(schedulers, ParameterScheduler) else list(schedulers)

    def append(self, scheduler: ParameterScheduler) -> None:
        """Add one behind the others.

        Args:
            scheduler: comes last.
        """
        self.schedulers.append(scheduler)

    def step(self) -> None:
        """Step each."""
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of all."""
        return {"schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the states of as many schedulers.

        Raises:
            ValueError: their number is another.
        """
        states = state_dict["schedulers"]
        if len(states) != len(self.schedulers):
            raise ValueError(f"The state is of {len(states)} schedulers, there are {len(self.schedulers)}.")
        for scheduler, state in zip(self.schedulers, states, strict=True):
            scheduler.load_state_dict(state)

    def __len__(self) -> int:
        return len(self.schedulers)

    def __iter__(self) -> Iterator[ParameterScheduler]:
        return iter(self.schedulers)
