"""Replays of half-cheetah steps, one class a library: what `samplers.py` and `buffers.py` compare.

Each is filled with numbered steps, and shows before it is timed that a batch's parts belong together.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from rounds import Skipped

Arrays = dict[str, npt.NDArray[Any]]
Floats = npt.NDArray[np.float32]

FILL = 100_000
"""Steps written at a time while a replay is filled."""
ALPHA, BETA = 0.6, 0.4
HEAVY = 100
"""Items that have half of the weight while draws are checked."""


def steps(first: int, count: int) -> Arrays:
    """Steps of a half-cheetah, 165 bytes each, numbered from ``first`` on (exact in float32 up to 2^24)."""
    number = np.arange(first, first + count, dtype=np.float32)
    rng = np.random.default_rng(first)
    made: Arrays = {
        "obs": rng.random((count, 17), np.float32),
        "act": rng.random((count, 6), np.float32),
        "next_obs": rng.random((count, 17), np.float32),
        "rew": rng.random((count, 1), np.float32),
        "done": np.zeros((count, 1), bool),
    }
    made["obs"][:, 0] = made["act"][:, 0] = number
    made["next_obs"][:, 0] = number + 1
    return made


def images(first: int, count: int) -> Arrays:
    """Observations and next ones, uint8 [4, 84, 84] each, that say their number in their first two bytes."""
    made = {}
    for name, shift in (("obs", 0), ("next_obs", 1)):
        made[name] = np.zeros((count, 4, 84, 84), np.uint8)
        number = np.arange(first, first + count) + shift
        made[name].reshape(count, -1)[:, 0] = number % 251
        made[name].reshape(count, -1)[:, 1] = number % 241
        made[name].reshape(count, -1)[:, 2:] = np.random.default_rng(0).integers(
            255, size=28222, dtype=np.uint8
        )
    return made


def module(name: str) -> Any:
    """A library.

    Raises:
        Skipped: it is not there, or does not run here.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        raise Skipped(f"{name} cannot be imported ({str(error).splitlines()[0]})") from None


class Replay(ABC):
    """A full replay.

    Args:
        capacity: number of items.
        prioritized: whether draws go by priority.
        pixels: items are pairs of images, and not steps.
    """

    def __init__(self, capacity: int, *, prioritized: bool = False, pixels: bool = False) -> None:
        self.capacity, self.prioritized, self.pixels = capacity, prioritized, pixels
        self.make()
        block = 1000 if pixels else FILL
        for first in range(0, capacity, block):
            count = min(block, capacity - first)
            self.write((images if pixels else steps)(first, count), first)
        self.finish()

    @abstractmethod
    def make(self) -> None:
        """Make an empty replay."""

    @abstractmethod
    def write(self, data: Arrays, first: int) -> None:
        """Fill slots ``first, first + 1, ...``; not timed."""

    def finish(self) -> None:  # noqa: B027 (most have nothing to do)
        """Hear that it is full."""

    @abstractmethod
    def sample(self, size: int) -> Any:
        """A batch in the library's own form; what is timed."""

    @abstractmethod
    def arrays(self, batch: Any) -> Arrays:
        """The batch as arrays; not timed."""

    # --- with priorities

    def draw(self, size: int) -> Any:
        """Indices and importance weights alone; what is timed."""
        raise Skipped(f"{type(self).__name__} has no way to draw without reading")

    def update(self, index: Any, priority: Any) -> None:
        """Set priorities; what is timed."""
        raise NotImplementedError

    def cycle(self, size: int, priority: Any) -> None:
        """Sample, and update the priorities of what was sampled; what is timed."""
        raise NotImplementedError

    def drawn(self, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Indices and weights of a batch; not timed."""
        raise NotImplementedError

    def as_index(self, index: npt.NDArray[np.int64]) -> Any:
        """Indices in the form that ``update`` takes."""
        return index

    def as_priority(self, priority: Floats) -> Any:
        """Priorities in the form that ``update`` takes."""
        return priority

    # --- showing that it is right

    def check(self) -> None:
        """Raise unless batches are made of whole items, and drawn in proportion."""
        batch = self.arrays(self.sample(256))
        if self.pixels:
            now, behind = (batch[name].reshape(256, -1)[:, :2].astype(int) for name in ("obs", "next_obs"))
            good = ((now + 1 - behind) % (251, 241) == 0).all()
        else:
            number = batch["obs"].reshape(256, -1)[:, 0]
            good = (batch["act"].reshape(256, -1)[:, 0] == number).all()
            good &= (batch["next_obs"].reshape(256, -1)[:, 0] == number + 1).all()
            good &= len(np.unique(number)) > 100 and 0 <= number.min() <= number.max() < self.capacity
        if not good:
            raise RuntimeError("a batch is not made of items that were stored")
        if self.prioritized:
            self._check_priorities()

    def _check_priorities(self) -> None:
        for first in range(0, self.capacity, FILL):
            index = np.arange(first, min(first + FILL, self.capacity))
            self.update(self.as_index(index), self.as_priority(np.full(len(index), 1.0, np.float32)))
        heavy = np.arange(HEAVY) * (self.capacity // HEAVY)
        value = float((self.capacity / HEAVY - 1) ** (1 / ALPHA))
        self.update(self.as_index(heavy), self.as_priority(np.full(HEAVY, value, np.float32)))
        index, weight = self.drawn(4096)
        among = np.isin(index, heavy)
        ratio = weight[among].mean() / weight[~among].mean()
        # 4096 draws with chance a half: six standard deviations are 0.047.
        if abs(among.mean() - 0.5) > 0.05 or abs(ratio / value ** (-ALPHA * BETA) - 1) > 0.02:
            raise RuntimeError(f"draws do not go by priority: {among.mean():.3f} heavy, weights {ratio:.3g}")
        rng = np.random.default_rng(1)
        for first in range(0, self.capacity, FILL):
            index = np.arange(first, min(first + FILL, self.capacity))
            self.update(self.as_index(index), self.as_priority(rng.random(len(index), np.float32) + 0.01))


class Ours(Replay):
    """replaybank: ReplayBuffer, LazyTensorStorage, and a PrioritizedSampler where wanted."""

    library = "replaybank"

    def make(self) -> None:
        bank = module(self.library)
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(1)
        self.storage = bank.LazyTensorStorage(self.capacity)
        self.sampler = (
            bank.PrioritizedSampler(self.capacity, ALPHA, BETA) if self.prioritized else bank.RandomSampler()
        )
        self.buffer = bank.ReplayBuffer(storage=self.storage, sampler=self.sampler)

    def convert(self, data: Arrays) -> Any:
        """Items as a TensorDict, the way TED lays them out."""
        tensordict = importlib.import_module("tensordict")
        tensors = {name: self.torch.from_numpy(value) for name, value in data.items()}
        count = len(data["obs"])
        behind = {
            name.removeprefix("next_"): tensors[name] for name in ("next_obs", "rew", "done") if name in data
        }
        flat: dict[str, Any] = {name: tensors[name] for name in ("obs", "act") if name in data}
        flat["next"] = tensordict.TensorDict(behind, [count])
        return tensordict.TensorDict(flat, [count])

    def write(self, data: Arrays, first: int) -> None:
        self.buffer.extend(self.convert(data))

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def arrays(self, batch: Any) -> Arrays:
        found = {name: batch[name].numpy() for name in ("obs", "act") if name in batch.keys()}  # noqa: SIM118
        return {**found, "next_obs": batch["next", "obs"].numpy()}

    def draw(self, size: int) -> Any:
        return self.sampler.sample(self.storage, size)

    def update(self, index: Any, priority: Any) -> None:
        self.buffer.update_priority(index, priority)

    def cycle(self, size: int, priority: Any) -> None:
        _, info = self.buffer.sample(size, return_info=True)
        self.buffer.update_priority(info["index"], priority)

    def drawn(self, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        index, info = self.draw(size)
        return index.numpy(), info["priority_weight"].double().numpy()

    def as_index(self, index: npt.NDArray[np.int64]) -> Any:
        return self.torch.from_numpy(index)

    def as_priority(self, priority: Floats) -> Any:
        return self.torch.from_numpy(priority)


class Torchrl(Ours):
    """torchrl: the same classes."""

    library = "torchrl.data"

    def make(self) -> None:
        try:
            super().make()
        except RuntimeError as error:
            raise Skipped(f"torchrl's extension does not load with this torch ({error})"[:200]) from None

    def drawn(self, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        index, info = self.draw(size)
        return index.numpy(), np.asarray(info.get("priority_weight", info.get("_weight")), np.float64)


class Cpprb(Replay):
    """cpprb: its Cython buffers."""

    def make(self) -> None:
        cpprb = module("cpprb")
        shape = {"shape": (4, 84, 84), "dtype": np.uint8}
        described: dict[str, Any] = {"obs": shape, "next_obs": shape}
        if not self.pixels:
            described = {"obs": {"shape": 17}, "act": {"shape": 6}, "rew": {}, "next_obs": {"shape": 17}}
            described["done"] = {"dtype": bool}
        if self.prioritized:
            self.buffer = cpprb.PrioritizedReplayBuffer(self.capacity, described, alpha=ALPHA)
        else:
            self.buffer = cpprb.ReplayBuffer(self.capacity, described)

    def write(self, data: Arrays, first: int) -> None:
        self.buffer.add(**data)

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size, beta=BETA) if self.prioritized else self.buffer.sample(size)

    def arrays(self, batch: Any) -> Arrays:
        return {name: batch[name] for name in ("obs", "act", "next_obs") if name in batch}

    def update(self, index: Any, priority: Any) -> None:
        self.buffer.update_priorities(index, priority)

    def cycle(self, size: int, priority: Any) -> None:
        batch = self.buffer.sample(size, beta=BETA)
        self.buffer.update_priorities(batch["indexes"], priority)

    def drawn(self, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        batch = self.buffer.sample(size, beta=BETA)
        return batch["indexes"].astype(np.int64), batch["weights"].astype(np.float64)

    def as_index(self, index: npt.NDArray[np.int64]) -> Any:
        return index.astype(np.uint64)


class Tianshou(Replay):
    """tianshou: NumPy arrays, and a segment tree in Numba."""

    def make(self) -> None:
        self.data = module("tianshou.data")
        if self.prioritized:
            self.buffer = self.data.PrioritizedReplayBuffer(self.capacity, alpha=ALPHA, beta=BETA)
        else:
            self.buffer = self.data.ReplayBuffer(self.capacity)
        self.columns: dict[str, npt.NDArray[Any]] = {}

    def write(self, data: Arrays, first: int) -> None:
        # It takes one step at a time; so its arrays are filled directly.
        for name, value in data.items():
            if name not in self.columns:
                self.columns[name] = np.zeros((self.capacity, *value.shape[1:]), value.dtype)
            self.columns[name][first : first + len(value)] = value

    def finish(self) -> None:
        columns, count = self.columns, self.capacity
        self.buffer.set_batch(
            self.data.Batch(
                obs=columns["obs"],
                act=columns.get("act", np.zeros(count, np.int64)),
                rew=columns.get("rew", np.zeros((count, 1), np.float32))[:, 0],
                terminated=columns.get("done", np.zeros((count, 1), bool))[:, 0],
                truncated=np.zeros(count, bool),
                done=columns.get("done", np.zeros((count, 1), bool))[:, 0],
                obs_next=columns["next_obs"],
            )
        )
        self.buffer._size = count
        if self.prioritized:
            self.buffer.init_weight(np.arange(count))

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def arrays(self, batch: Any) -> Arrays:
        return {"obs": batch[0].obs, "act": batch[0].act, "next_obs": batch[0].obs_next}

    def draw(self, size: int) -> Any:
        index = self.buffer.sample_indices(size)
        return index, self.buffer.get_weight(index)

    def update(self, index: Any, priority: Any) -> None:
        self.buffer.update_weight(index, priority)

    def cycle(self, size: int, priority: Any) -> None:
        _, index = self.buffer.sample(size)
        self.buffer.update_weight(index, priority)

    def drawn(self, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        index, weight = self.draw(size)
        return index, np.asarray(weight, np.float64)


class StableBaselines(Replay):
    """Stable-Baselines3: its ReplayBuffer, uniform only."""

    def make(self) -> None:
        if self.prioritized:
            raise Skipped("Stable-Baselines3 has no prioritized replay")
        buffers, spaces = module("stable_baselines3.common.buffers"), module("gymnasium.spaces")
        if self.pixels:
            seen: Any = spaces.Box(0, 255, (4, 84, 84), np.uint8)
            acts: Any = spaces.Discrete(4)
        else:
            seen, acts = spaces.Box(-1, 1, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)
        self.buffer = buffers.ReplayBuffer(
            self.capacity, seen, acts, device="cpu", handle_timeout_termination=False
        )

    def write(self, data: Arrays, first: int) -> None:
        # It takes one step of each environment at a time; so its arrays are filled directly.
        run = slice(first, first + len(data["obs"]))
        self.buffer.observations[run, 0], self.buffer.next_observations[run, 0] = (
            data["obs"],
            data["next_obs"],
        )
        if not self.pixels:
            self.buffer.actions[run, 0] = data["act"]
            self.buffer.rewards[run], self.buffer.dones[run] = data["rew"], data["done"]

    def finish(self) -> None:
        self.buffer.full = True

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def arrays(self, batch: Any) -> Arrays:
        return {
            "obs": batch.observations.numpy(),
            "act": batch.actions.numpy(),
            "next_obs": batch.next_observations.numpy(),
        }


class Flashbax(Replay):
    """flashbax: compiled by JAX; results are waited for."""

    def make(self) -> None:
        self.jax, self.fbx = module("jax"), module("flashbax")
        self.numpy = importlib.import_module("jax.numpy")
        self.samplers: dict[int, Any] = {}
        self.key = self.jax.random.PRNGKey(0)
        self.state: Any = None
        base = self.of(256)
        self.add = self.jax.jit(base.add, donate_argnums=0)

    def of(self, size: int) -> Any:
        """The buffer's functions for batches of a size; they share the state."""
        options = {
            "max_length": self.capacity,
            "min_length": 1,
            "sample_batch_size": size,
            "add_batches": True,
        }
        if self.prioritized:
            return self.fbx.make_prioritised_item_buffer(**options, priority_exponent=ALPHA)
        return self.fbx.make_item_buffer(**options)

    def write(self, data: Arrays, first: int) -> None:
        batch = {name: self.numpy.asarray(value) for name, value in data.items()}
        if self.state is None:
            self.state = self.of(256).init({name: value[0] for name, value in batch.items()})
        self.state = self.add(self.state, batch)

    def functions(self, size: int) -> Any:
        """Compiled functions for batches of a size."""
        if size not in self.samplers:
            base = self.of(size)

            def sample(state: Any, key: Any) -> Any:
                key, part = self.jax.random.split(key)
                batch = base.sample(state, part)
                if not self.prioritized:
                    return batch, key
                weight = batch.probabilities ** (-BETA)
                return batch, weight / weight.max(), key

            update = base.set_priorities if self.prioritized else None
            self.samplers[size] = (
                self.jax.jit(sample),
                None if update is None else self.jax.jit(update, donate_argnums=0),
            )
        return self.samplers[size]

    def sample(self, size: int) -> Any:
        *found, self.key = self.functions(size)[0](self.state, self.key)
        return self.jax.block_until_ready(found)

    def arrays(self, batch: Any) -> Arrays:
        return {name: np.asarray(value) for name, value in batch[0].experience.items()}

    def update(self, index: Any, priority: Any) -> None:
        self.state = self.functions(256)[1](self.state, index, priority)
        self.jax.block_until_ready(self.state)

    def cycle(self, size: int, priority: Any) -> None:
        batch, _ = self.sample(size)
        self.state = self.functions(size)[1](self.state, batch.indices, priority)
        self.jax.block_until_ready(self.state)

    def drawn(self, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        batch, weight = self.sample(size)
        return np.asarray(batch.indices), np.asarray(weight, np.float64)

    def as_index(self, index: npt.NDArray[np.int64]) -> Any:
        return self.numpy.asarray(index)

    def as_priority(self, priority: Floats) -> Any:
        return self.numpy.asarray(priority)


CONTENDERS: dict[str, type[Replay]] = {
    "replaybank": Ours,
    "cpprb": Cpprb,
    "tianshou": Tianshou,
    "Stable-Baselines3": StableBaselines,
    "flashbax": Flashbax,
    "torchrl": Torchrl,
}

LIBRARIES = ("torch", "numpy", "cpprb", "tianshou", "stable_baselines3", "flashbax", "jax", "torchrl")
