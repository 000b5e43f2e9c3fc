"""What a buffer does to data on its way in and out: a chain of callables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tensordict import is_tensor_collection

from replaybank import showing
from replaybank.transforms.base import SampleTransform
from replaybank.transforms.stored import Related, Slicings

_REMEMBERED = 16  # sets of transforms of ensembles that a buffer is part of


class TransformChain:
    """Transforms in order: forwards on sampling, backwards on writing.

    A link is any callable or ``nn.Module``: it is called with a sample and returns the new one. One that has
    a method ``inv`` (torchrl's transforms do) has it called with the data to be written; others leave what
    is written as it is. ``inv`` returning None means: write nothing. A :class:`SampleTransform` needs more
    than the sample: the buffer applies those by :attr:`related`, before the others.

    Not thread-safe by itself: the buffer calls it under its lock.

    Args:
        transforms: the links, first one first.

    Example:
        >>> chain = TransformChain([lambda x: x + 1, lambda x: x * 2])
        >>> chain(3)
        8
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]] = ()) -> None:
        self._links: list[_Link] = []
        self._related: Related | None = None
        self._slicings: Slicings = {}
        self._merged: dict[tuple[SampleTransform, ...], Related] = {}
        for transform in transforms:
            self.insert(len(self._links), transform)

    def insert(self, index: int, transform: Callable[[Any], Any], *, invert: bool = False) -> None:
        """Put a transform before position ``index``, as ``list.insert`` would.

        Args:
            index: position.
            transform: the callable.
            invert: use its ``inv`` on sampling and its forward on writing.

        Raises:
            TypeError: it cannot be called, or ``invert`` is asked of one without ``inv``.
            ValueError: it and another one would both put steps before slices.
        """
        if isinstance(transform, TransformChain):
            for offset, link in enumerate(transform._links):
                at = index + offset if index >= 0 else index
                self.insert(at, link.transform, invert=link.inverted != invert)
            return
        if not callable(transform):
            raise TypeError(
                f"A transform must be callable, got a {type(transform).__name__}: {transform!r}. Give a "
                "function, an nn.Module or an object with __call__ and inv."
            )
        if invert and not callable(getattr(transform, "inv", None)):
            raise TypeError(f"{transform!r} has no method inv, so it cannot be used with invert=True.")
        if isinstance(transform, SampleTransform):
            self._related = Related([*self.sampling, transform], self._slicings)
            self._merged.clear()
        self._links.insert(index, _Link(transform, invert))

    @property
    def related(self) -> Related | None:
        """What applies the sampling transforms among them, which a call leaves out; None without any."""
        return self._related

    @property
    def sampling(self) -> tuple[SampleTransform, ...]:
        """The sampling transforms among them."""
        return tuple(each for each in self if isinstance(each, SampleTransform))

    def related_with(self, others: tuple[SampleTransform, ...]) -> Related:
        """What applies the sampling transforms among them and those of an ensemble together. O(1)."""
        found = self._merged.get(others)
        if found is None:
            if len(self._merged) >= _REMEMBERED:
                self._merged.clear()
            found = self._merged[others] = Related([*self.sampling, *others], self._slicings)
        return found

    def __call__(self, sample: Any, *, keep_batch: bool = False) -> Any:
        """Transform what was sampled.

        Args:
            sample: the data.
            keep_batch: refuse a change of a TensorDict's first dimension.

        Raises:
            RuntimeError: a transform changed the batch and ``keep_batch`` is set; it is named.
        """
        if not keep_batch or not is_tensor_collection(sample):
            for link in self._links:
                sample = link.on_sampling(sample)
            return sample
        batch = sample.batch_size
        for position, link in enumerate(self._links):
            sample = link.on_sampling(sample)
            shape = getattr(sample, "batch_size", None)
            if shape is None or shape[:1] != batch[:1]:
                found = f"gave a {type(sample).__name__}" if shape is None else f"gave {list(shape)}"
                raise RuntimeError(
                    f"The sampler's info cannot be put into the sample: transform {position}, "
                    f"{link.transform!r}, was given the batch size {list(batch)} and {found}. Keep the first "
                    "dimension, use sample(include_info=False), or a ReplayBuffer with return_info=True."
                )
        return sample

    def inv(self, data: Any) -> Any:
        """Transform what is to be written; None means that nothing is."""
        for link in reversed(self._links):
            if data is None:
                return None
            data = link.on_writing(data)
        return data

    def state_dict(self) -> dict[str, Any]:
        """The states of the transforms that have one, by position."""
        return {
            str(position): dict(link.transform.state_dict())
            for position, link in enumerate(self._links)
            if hasattr(link.transform, "state_dict")
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Hand the states back.

        Raises:
            ValueError: there is a state for a transform that is not there or takes none.
        """
        for position in state_dict:
            if int(position) >= len(self._links) or not hasattr(self[int(position)], "load_state_dict"):
                raise ValueError(
                    f"The saved state is of a buffer whose transform {position} has a state; this one has "
                    f"{self!r}. Give the buffer the transforms it had when it was saved."
                )
        for position, state in state_dict.items():
            self[int(position)].load_state_dict(dict(state))

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, index: int) -> Any:
        return self._links[index].transform

    def __iter__(self) -> Iterator[Any]:
        return (link.transform for link in self._links)

    def _facts(self) -> dict[str, Any]:
        """What its table in a notebook tells."""
        links = (
            link.transform if isinstance(link.transform, SampleTransform) else link for link in self._links
        )
        return {"": showing.Parts(links)}

    def __repr__(self) -> str:
        return f"TransformChain([{', '.join(showing.told(link) for link in self._links)}])"

    def _repr_html_(self) -> str:
        return showing.html_of(self)


class _Link:
    """One transform, and which of its two directions is which."""

    def __init__(self, transform: Any, inverted: bool) -> None:
        self.transform = transform
        self.inverted = inverted

    def on_sampling(self, data: Any) -> Any:
        return self.transform.inv(data) if self.inverted else self.transform(data)

    def on_writing(self, data: Any) -> Any:
        if self.inverted:
            return self.transform(data)
        inverse = getattr(self.transform, "inv", None)
        return data if inverse is None else inverse(data)

    def __repr__(self) -> str:
        name = getattr(self.transform, "__qualname__", None) or showing.told(self.transform)
        return f"inverse of {name}" if self.inverted else str(name)
