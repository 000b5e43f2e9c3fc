"""What every sampling transform is: a view of stored steps, from which a batch is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from replaybank import showing
from replaybank.samplers.arguments import key_of
from replaybank.samplers.base import InfoKey
from replaybank.trajectories.index import TrajectoryIndex
from replaybank.trajectories.signals import Key

NEXT = "next"
"""Where the entries of a step are that come with its successor."""


@dataclass(frozen=True)
class Drawn:
    """What a sampler drew, for the transforms of one batch.

    Args:
        slots: int64 ``[B]``, the steps, numbered row by row.
        columns: number of columns.
        trajectories: the index of the storage's trajectories, current.
        ends: bool ``[B]``, true at the last step of each slice; None where steps were drawn one by one.
        generator: source of random draws, None for torch's global one.
    """

    slots: Tensor
    columns: int
    trajectories: TrajectoryIndex
    ends: Tensor | None
    generator: torch.Generator | None

    def moved(self, slots: Tensor, by: Tensor) -> Tensor:
        """The slots of steps further on in the same columns, or further back. O(steps).

        Args:
            slots: int64 ``[K]``.
            by: int64 ``[K]``, rows, modulo those that are valid.
        """
        columns = self.columns
        row = (slots // columns + by) % self.trajectories.length
        return row * columns + slots % columns

    def integers(self, below: Tensor) -> Tensor:
        """One uniform integer each in ``[0, below)``, int64 ``[K]``. O(K)."""
        device = None if self.generator is None else self.generator.device
        drawn = torch.randint(_MANY, below.shape, generator=self.generator, device=device)
        return drawn.cpu() % below

    def uniforms(self, count: int) -> Tensor:
        """``count`` uniform numbers in ``[0, 1)``, float64. O(count)."""
        device = None if self.generator is None else self.generator.device
        return torch.rand(count, generator=self.generator, device=device, dtype=torch.float64).cpu()


_MANY = 1 << 62
"""Many more than there are steps to choose from, so that none is favoured noticeably."""


class StepView(ABC):
    """Stored steps as a batch is to show them.

    A view is made for one batch and may be put over another one: it gives the entries that it changes, and
    hands on the rest. So a transform that needs other steps than those that were drawn gets them as the
    transforms below it show them.

    Attributes:
        keys: paths of all entries that can be read.
        changed: those of the batch that this view changes or adds.
        terminal: the entry that says where a trajectory ends before the step that is stored as its last one;
            None if none does.
    """

    keys: Sequence[Key]
    changed: Sequence[Key] = ()
    terminal: Key | None = None

    @abstractmethod
    def read(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """An entry of some steps. O(K * bytes of it).

        Args:
            key: one of ``keys``.
            slots: int64 ``[K]``, the steps.
            of: int64 ``[K]``, for which step of the batch each is asked for.

        Returns:
            ``[K, ...]``, to be read only.
        """


class SampleTransform(ABC):
    """Makes entries of a batch from other steps of the trajectories that it was drawn from.

    Give it to a buffer as any other transform. It is applied when a batch is sampled, to the steps as they
    are stored then; reading with ``buffer[...]`` gives them as they are. Sampling transforms come before all
    others, and among themselves in the one order in which they are right, whatever the order in which they
    were given: goals first, then frames, then returns.

    Holds no state of a buffer: safe in any thread, and in several buffers at once.

    Args:
        end_key: where trajectories end, as for :class:`~replaybank.SliceSampler`.
        traj_key: as for :class:`~replaybank.SliceSampler`.

    Raises:
        TypeError: a key is neither a string nor a path of strings.
    """

    level: ClassVar[int]
    """Views of lower levels lie below those of higher ones."""

    def __init__(self, end_key: InfoKey | None = None, traj_key: InfoKey | None = None) -> None:
        self.end_key = None if end_key is None else key_of("end_key", end_key)
        self.traj_key = None if traj_key is None else key_of("traj_key", traj_key)

    @abstractmethod
    def over(self, below: StepView, drawn: Drawn) -> StepView:
        """The view of the steps that this transform gives of a batch.

        Args:
            below: the view that it is put over.
            drawn: what the sampler drew.

        Raises:
            KeyError: an entry that it needs is not there.
        """

    def __call__(self, data: Any) -> Any:
        """Items read without being sampled stay as they are."""
        return data

    def _facts(self) -> dict[str, Any]:
        """What its repr tells: its settings."""
        return {}

    def __repr__(self) -> str:
        return showing.text_of(self)

    def _repr_html_(self) -> str:
        return showing.html_of(self)


def path_of(name: str, key: Any) -> Key:
    """A key as a path.

    Raises:
        TypeError: it is neither a string nor a path of strings.
    """
    checked = key_of(name, key)
    return (checked,) if isinstance(checked, str) else checked


def shown(key: Key) -> InfoKey:
    """A path as users write it."""
    return key[0] if len(key) == 1 else key


def over_items(flags: Tensor, values: Tensor) -> Tensor:
    """One value a step ``[K]`` in the form in which it goes with ``values`` ``[K, ...]``, on its device."""
    return flags.to(values.device).view(-1, *(1,) * (values.ndim - 1))
