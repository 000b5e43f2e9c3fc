"""What every sampling transform is: a view of stored steps, from which a batch is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from replaybank import showing
from replaybank.samplers.arguments import key_of
from replaybank.samplers.base import InfoKey
from replaybank.storages.layout import LeafPlace
from replaybank.storages.torch_indexing import movable
from replaybank.trajectories.index import TrajectoryIndex
from replaybank.trajectories.signals import Key
from replaybank.trajectories.windows import Windows, windows

NEXT = "next"
"""Where the entries of a step are that come with its successor."""


class Drawn(NamedTuple):
    """What a sampler drew, for the transforms of one batch.

    Args:
        slots: int64 ``[B]``, the steps, numbered row by row.
        columns: number of columns.
        trajectories: the index of the storage's trajectories, current.
        ends: bool ``[B]``, true at the last step of each slice; None where steps were drawn singly.
        generator: source of random draws, None for torch's global one.
        padded: bool ``[B]``, true at steps that stand before a slice for ones that are not there;
            None where there are none.
        every: int64 ``[B]``, from 0 on: the tensor with which a view is asked for the batch itself.
    """

    slots: Tensor
    columns: int
    trajectories: TrajectoryIndex
    ends: Tensor | None
    generator: torch.Generator | None
    padded: Tensor | None = None
    every: Tensor | None = None

    def moved(self, slots: Tensor, by: Tensor) -> Tensor:
        """The slots of steps further on in the same columns, or further back. O(steps).

        Args:
            slots: int64 ``[K]``.
            by: int64 ``[K]``, rows, modulo those that are valid.
        """
        columns = self.columns
        row = (slots // columns + by) % self.trajectories.length
        return row * columns + slots % columns

    def windows(self, slots: Tensor, back: int, ahead: int) -> Windows:
        """The steps around some, as far as their trajectories go. O(steps).

        Args:
            slots: int64 ``[K]``.
            back: number of steps before each.
            ahead: number of steps behind each.

        Returns:
            Slots int64 ``[K, back + 1 + ahead]``, beyond the ends of a trajectory its first or last step
            again; and how many steps there are, ``before`` each and ``left`` from it on (itself counted),
            int64 ``[K]``.
        """
        return windows(self.trajectories, slots.contiguous(), back, ahead)

    def integers(self, below: Tensor) -> Tensor:
        """One uniform integer each in ``[0, below)``, int64 ``[K]``. O(K)."""
        return self.randoms(below.numel()).view(below.shape) % below

    def randoms(self, count: int) -> Tensor:
        """``count`` uniform integers in ``[0, 2^63)``. O(count)."""
        device = None if self.generator is None else self.generator.device
        return torch.empty(count, dtype=torch.int64, device=device).random_(generator=self.generator).cpu()

    def uniforms(self, count: int) -> Tensor:
        """``count`` uniform numbers in ``[0, 1)``, float64. O(count)."""
        device = None if self.generator is None else self.generator.device
        return torch.rand(count, generator=self.generator, device=device, dtype=torch.float64).cpu()


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

    def read_all(self, keys: Sequence[Key], slots: Tensor, of: Tensor) -> list[Any]:
        """Several entries of some steps; see :meth:`read`."""
        self.expect(keys, slots, of)
        return [self.read(key, slots, of) for key in keys]

    def made(self, slots: Tensor, of: Tensor) -> list[tuple[Key, Any]]:
        """The entries that this view changes or adds, of some steps; see :meth:`read`."""
        return [(key, self.read(key, slots, of)) for key in self.changed]

    def place_of(self, key: Key) -> LeafPlace | None:
        """Where an entry of all steps lies in memory as :meth:`read` gives it; None if it does not. O(1)."""
        return None

    def expect(self, keys: Sequence[Key], slots: Tensor, of: Tensor) -> None:  # noqa: B027 (a hint)
        """Hear that these entries of some steps will be asked for next: they may be read at once.

        Args:
            keys: some of ``keys``.
            slots: int64 ``[K]``, the very tensor that :meth:`read` will be given.
            of: int64 ``[K]``.
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

    @property
    def steps_before(self) -> int:
        """How many steps are to be read in front of each slice."""
        return 0

    @property
    def padded_key(self) -> InfoKey:
        """Where it is marked which of these only stand for steps that are not there."""
        return "padded"

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


def ends_of(transform: SampleTransform, ends: Tensor | None) -> Tensor:
    """Where the slices of a batch end, for a transform that is for slices.

    Raises:
        RuntimeError: it is not made of slices.
    """
    if ends is None:
        raise RuntimeError(
            f"{transform!r} is for the first steps of slices, and the sampler does not say where they end. "
            "Use a SliceSampler, or one of its kin, with a truncated_key."
        )
    return ends


def rows_of(values: Tensor, which: Tensor) -> Tensor:
    """Some of the rows of ``values`` ``[K, ...]``, of any dtype that can be stored. O(k)."""
    return movable(values).index_select(0, which.to(values.device)).view(values.dtype)


def with_rows(values: Tensor, which: Tensor, rows: Tensor) -> Tensor:
    """A copy of ``values`` ``[K, ...]`` with others at some of its places. O(K).

    Args:
        values: of any dtype that can be stored.
        which: int64 ``[k]``, the places.
        rows: ``[k, ...]``, of the same dtype, on the same device.
    """
    return movable(values).index_copy(0, which.to(values.device), movable(rows)).view(values.dtype)


def over_items(flags: Tensor, values: Tensor) -> Tensor:
    """One value a step ``[K]`` in the form in which it goes with ``values`` ``[K, ...]``, on its device."""
    return flags.to(values.device).view(-1, *(1,) * (values.ndim - 1))
