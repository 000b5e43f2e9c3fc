"""Entries brought to one scale by the statistics of their dataset, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from replaybank.datasets.openx.stats import EntryStats
from replaybank.storages.layout import Key

Mode = Literal["mean_std", "min_max", "quantiles"]


class Normalize(nn.Module):
    """Normalises entries of a batch, to be used as a buffer's or dataset's ``transform``.

    ``x`` becomes ``(x - offset) / scale``: mean and standard deviation with ``"mean_std"``; with
    ``"min_max"`` and ``"quantiles"`` the range from smallest to largest value, or from the quantile 0.01 to
    0.99, becomes ``[-1, 1]``. Numbers that never change, whose scale would be 0, are only shifted. The
    following observation, ``("next", "observation", ...)``, is treated as the observation is. Entries that
    the batch lacks are passed over; dtypes of floating point stay, others become float32.

    :meth:`inv` is the way back, for what a policy gives; a buffer calls it on writing.

    Safe in any thread.

    Args:
        stats: of the dataset, as its ``stats(keys)`` gives them; every entry in them is normalised. Leave out
            what is no input or output of the network, such as reward and discount.
        mode: how.
        mask: for some entries, by key, bool of their shape: False leaves a number as it is, such as a gripper
            that is 0 or 1.

    Raises:
        ValueError: another mode, or a mask that fits no entry.

    Example:
        >>> import torch
        >>> stats = {("action",): EntryStats(*(torch.tensor([v]) for v in (2.0, 0.5, 1.0, 3.0, 1.0, 3.0)), 9)}
        >>> normalize = Normalize(stats, "min_max")
        >>> from tensordict import TensorDict
        >>> batch = normalize(TensorDict({"action": torch.tensor([[1.0], [2.5]])}, [2]))
        >>> batch["action"].tolist(), normalize.inv(batch)["action"].tolist()
        ([[-1.0], [0.5]], [[1.0], [2.5]])
    """

    def __init__(
        self,
        stats: Mapping[Key, EntryStats],
        mode: Mode = "mean_std",
        *,
        mask: Mapping[Any, Tensor] | None = None,
    ) -> None:
        super().__init__()
        if mode not in ("mean_std", "min_max", "quantiles"):
            raise ValueError(f"mode must be 'mean_std', 'min_max' or 'quantiles', got {mode!r}")
        self.mode = mode
        self.keys: list[Key] = list(stats)
        masks = {
            (key,) if isinstance(key, str) else tuple(key): torch.as_tensor(value)
            for key, value in (mask or {}).items()
        }
        for key, value in masks.items():
            if key not in stats or value.shape != stats[key].mean.shape or value.dtype != torch.bool:
                there = {key: list(entry.mean.shape) for key, entry in stats.items()}
                raise ValueError(
                    f"the mask of {key!r} is {value.dtype} {list(value.shape)}; masks are bool, of the shape "
                    f"of an entry: {there}"
                )
        for number, (key, entry) in enumerate(stats.items()):
            offset, scale = _offset_and_scale(entry, mode)
            if key in masks:
                offset, scale = offset.where(masks[key], 0.0), scale.where(masks[key], 1.0)
            self.register_buffer(f"offset_{number}", offset)
            self.register_buffer(f"scale_{number}", scale)

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """A batch with these entries normalised; the batch given stays as it is. O(bytes of the entries).

        Args:
            batch: a TensorDict of any batch size.
        """
        return self._changed(batch, lambda x, offset, scale: (x - offset) / scale)

    def inv(self, batch: TensorDictBase) -> TensorDictBase:
        """The way back.

        Args:
            batch: a TensorDict with normalised entries; it stays as it is.
        """
        return self._changed(batch, lambda x, offset, scale: x * scale + offset)

    def _changed(self, batch: TensorDictBase, change: Any) -> TensorDictBase:
        out = batch.copy()
        for number, key in enumerate(self.keys):
            offset, scale = getattr(self, f"offset_{number}"), getattr(self, f"scale_{number}")
            for place in (key, ("next", *key)) if key[0] == "observation" else (key,):
                value = out.get(place, None)
                if isinstance(value, Tensor):
                    dtype = value.dtype if value.is_floating_point() else torch.float32
                    at = {"device": value.device, "dtype": dtype}
                    out.set(place, change(value.to(dtype), offset.to(**at), scale.to(**at)))
        return out

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"mode={self.mode!r}, keys={self.keys}"


def _offset_and_scale(stats: EntryStats, mode: Mode) -> tuple[Tensor, Tensor]:
    if mode == "mean_std":
        offset, scale = stats.mean, stats.std
    else:
        low, high = (stats.min, stats.max) if mode == "min_max" else (stats.q01, stats.q99)
        offset, scale = (low + high) / 2, (high - low) / 2
    return offset.nan_to_num(0.0), torch.where(scale > 0, scale, torch.ones_like(scale))
