"""The entries that batches of different datasets have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from replaybank.datasets.openx.cut import example
from replaybank.datasets.openx.nest import nest, unnest
from replaybank.storages.layout import Key

MASK = "mask"


def path_of(key: Any) -> Key:
    """A key as a path."""
    return (key,) if isinstance(key, str) else tuple(key)


def example_of(dataset: Any, steps: int, *, filled: bool) -> TensorDictBase:
    """A slice of a dataset, as far as dtypes and shapes go: of a stream, without reading anything."""
    if dataset.streaming:
        return example(dataset.sampler.leaves, steps, filled=filled)
    data: TensorDictBase = dataset[:1].expand(steps).contiguous() if steps > 1 else dataset[:1]
    return data


class CommonEntries:
    """What entries all of some batches have, with one dtype and shape.

    Immutable, so safe in any thread.

    Args:
        names: of the datasets.
        examples: a slice of each.
        keys: the entries wanted; None: all that are common. Where some episodes of a dataset lack an entry,
            its slices have a mask that others do not: such masks are not common.

    Raises:
        ValueError: an entry that is wanted is not common; says what differs.
    """

    def __init__(
        self, names: Sequence[str], examples: Sequence[TensorDictBase], keys: Sequence[Any] | None
    ) -> None:
        found = [_forms(data) for data in examples]
        everything: dict[Key, None] = {key: None for forms in found for key in forms}
        self.left_out: dict[Key, str] = {}
        """Entries that are not common, with what differs."""
        self.keys: list[Key] = []
        """Entries that are."""
        for key in everything:
            forms = {name: there.get(key) for name, there in zip(names, found, strict=True)}
            if len(set(forms.values())) == 1:
                self.keys.append(key)
            else:
                said = [f"{name} has {form or 'none'}" for name, form in forms.items()]
                self.left_out[key] = ", ".join(said)
        if keys is not None:
            wanted = [path_of(key) for key in keys]
            for key in wanted:
                if key not in self.keys:
                    why = self.left_out.get(key, f"no dataset has it; in common are {self.keys}")
                    raise ValueError(
                        f"keys: {key!r} is not the same in all datasets: {why}. Leave it out, or give "
                        "transforms that bring it to one form"
                    )
            self.keys = wanted
        if not self.keys:
            raise ValueError(f"the datasets have no entry in common: {self.left_out}")

    def of(self, data: TensorDictBase) -> TensorDictBase:
        """A batch with these entries alone, the tensors shared."""
        entries = unnest(data)
        return nest({key: entries[key] for key in self.keys}, data.batch_size)


def _forms(data: TensorDictBase) -> Mapping[Key, str]:
    """Dtype and shape of each entry of a step, by path."""
    forms = {}
    for key, value in unnest(data).items():
        if key[0] == "index" or (key[0] == MASK and len(key) > 1):
            continue
        forms[key] = f"{value.dtype} {list(value.shape[1:])}" if isinstance(value, Tensor) else "text"
    return forms
