"""Buffers that sample by priority: the sampler comes with them, as large as their storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.storages.base import Storage


class PrioritizedReplayBuffer(ReplayBuffer):
    """A :class:`ReplayBuffer` with a :class:`PrioritizedSampler`, which has room for what the storage has.

    Items come in proportion to ``(priority + eps)^alpha``; new ones have the largest priority there was.
    :meth:`update_priority` sets priorities of what was sampled, the importance weights are
    ``info["priority_weight"]``. Both exponents can be set later, ``buffer.sampler.beta = 1.0``.

    Thread-safe as :class:`ReplayBuffer` is.

    Args:
        alpha: exponent of priorities, a number or 0-d tensor >= 0; 0 is uniform.
        beta: exponent of importance weights, a number or 0-d tensor >= 0.
        eps: added to priorities.
        dtype: of the weights, torch.float32 or torch.float64.
        storage: an instance or a callable that makes one; ``ListStorage(1000)`` by default.
        collate_fn: as for :class:`ReplayBuffer`, like all that follows.
        pin_memory: see there.
        prefetch: see there.
        transform: see there.
        batch_size: see there.
        dim_extend: see there.
        **kwargs: the other arguments of :class:`ReplayBuffer` (``writer``, ``generator``, ``shared`` ...),
            but no ``sampler``.

    Raises:
        ValueError: ``alpha``, ``beta`` or ``eps`` is negative.
        NotImplementedError: another ``dtype``.
        TypeError: a ``sampler`` is given.

    Example:
        >>> import torch
        >>> buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, batch_size=32)
        >>> _ = buffer.extend([torch.tensor(10.0), torch.tensor(20.0)])
        >>> buffer.update_priority([0, 1], [1.0, 0.0])
        >>> batch, info = buffer.sample(return_info=True)
        >>> bool((batch == 10).all()), info["priority_weight"].shape
        (True, torch.Size([32]))
    """

    def __init__(
        self,
        *,
        alpha: float | Tensor,
        beta: float | Tensor,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        storage: Storage | Callable[[], Storage] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Any = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse_sampler(self, kwargs)
        super().__init__(
            storage=storage,
            sampler=PrioritizedSampler(None, alpha, beta, eps, dtype),
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            batch_size=batch_size,
            dim_extend=dim_extend,
            **kwargs,
        )


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` with a :class:`PrioritizedSampler` of the storage's size.

    Priorities are read from the entry ``priority_key``: of what is written, and of a sample that
    :meth:`update_tensordict_priority` is given. The sample has the importance weights as
    ``"priority_weight"``.

    Thread-safe as :class:`ReplayBuffer` is.

    Args:
        alpha: exponent of priorities, a number or 0-d tensor >= 0; 0 is uniform.
        beta: exponent of importance weights, a number or 0-d tensor >= 0.
        priority_key: entry that holds priorities.
        eps: added to priorities.
        storage: an instance or a callable that makes one; ``ListStorage(1000)`` by default.
        collate_fn: as for :class:`ReplayBuffer`, like all that follows but ``reduction`` and ``dtype``.
        pin_memory: see there.
        prefetch: see there.
        transform: see there.
        reduction: how the priorities of a stored trajectory become one, ``"max"``, ``"min"``, ``"median"``
            or ``"mean"``.
        batch_size: see there.
        dim_extend: see there.
        generator: see there.
        shared: see there.
        compilable: see there.
        dtype: of the weights, torch.float32 or torch.float64.
        **kwargs: the other arguments of :class:`ReplayBuffer` (``writer``, ``checkpointer`` ...), but no
            ``sampler``.

    Raises:
        ValueError: ``alpha``, ``beta`` or ``eps`` is negative; another ``reduction``.
        NotImplementedError: another ``dtype``.
        TypeError: a ``sampler`` is given.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from replaybank.storages import LazyTensorStorage
        >>> buffer = TensorDictPrioritizedReplayBuffer(
        ...     alpha=1.0, beta=1.0, storage=LazyTensorStorage(1000), batch_size=32
        ... )
        >>> _ = buffer.extend(TensorDict({"x": torch.arange(10.0)}, batch_size=10))
        >>> for _ in range(50):
        ...     batch = buffer.sample()
        ...     batch["td_error"] = (batch["x"] >= 5).float()
        ...     buffer.update_tensordict_priority(batch)
        >>> bool((buffer.sample()["x"] >= 5).all())
        True
    """

    def __init__(
        self,
        *,
        alpha: float | Tensor,
        beta: float | Tensor,
        priority_key: str | tuple[str, ...] = "td_error",
        eps: float = 1e-8,
        storage: Storage | Callable[[], Storage] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Any = None,
        reduction: str = "max",
        batch_size: int | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
        compilable: bool = False,
        dtype: torch.dtype = torch.float,
        **kwargs: Any,
    ) -> None:
        _refuse_sampler(self, kwargs)
        super().__init__(
            priority_key=priority_key,
            storage=storage,
            sampler=PrioritizedSampler(None, alpha, beta, eps, dtype, reduction),
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            batch_size=batch_size,
            dim_extend=dim_extend,
            generator=generator,
            shared=shared,
            compilable=compilable,
            **kwargs,
        )


def _refuse_sampler(buffer: ReplayBuffer, kwargs: dict[str, Any]) -> None:
    if "sampler" in kwargs:
        plain = type(buffer).__name__.replace("Prioritized", "")
        raise TypeError(
            f"sampler={kwargs['sampler']!r}: a {type(buffer).__name__} makes its own sampler of alpha, beta "
            f"and eps. Use {plain}(sampler=...) for another one."
        )
