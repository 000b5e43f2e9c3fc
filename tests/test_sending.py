"""Everything that can be pickled, sent to processes: by start method, queue, pipe and ``DataLoader``.

Starting a process takes seconds, so each gets all objects at once and answers about all of them.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.multiprocessing.queue import Queue as TorchQueue
from torch.utils.data import DataLoader, Dataset

import contracts
import sampler_contracts
from memory_source import FIELDS, MemorySource, episode
from patience import PATIENCE
from replaybank import (
    LazyMemmapStorage,
    LazyTensorStorage,
    LinearScheduler,
    ListStorage,
    OpenXExperienceReplay,
    OpenXMixture,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SumTree,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TrajectoryIndex,
)
from replaybank.storages.write_log import WriteLog
from replaybank.trajectories import DoneSignal
from sampler_contracts import plain, steps

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

KINDS = {kind.name: kind for kind in (*contracts.KINDS, contracts.IMAGES, contracts.TRANSITIONS)}
Asked = tuple[str, Any]
"""Who asks, by the name of a function here, and the object that is asked, or several that belong together."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- what is sent, and what each is asked: it reads, draws, writes and reads again


def ask_storage(given: tuple[Any, str]) -> list[Any]:
    storage, name = given
    kind = KINDS[name]
    before = contracts.read_ids(kind, storage, slice(None)).tolist()
    if isinstance(storage, LazyMemmapStorage):  # a path is sent: the files are one
        return before
    storage.set(range(2), contracts.items_for(storage, kind, torch.tensor([70, 71])))
    return [before, contracts.read_ids(kind, storage, slice(None)).tolist(), storage.log.total]


def storages() -> Iterator[tuple[str, Asked]]:
    for name, factory in contracts.STORAGES.items():
        kinds = ["tensordict"] if name in ("stack", "memmap", "given") else ["tensordict", "tuple"]
        if "images" in name:
            kinds = [contracts.IMAGES.name]
        elif "derived" in name:
            kinds = [contracts.TRANSITIONS.name]
        if "shared" in name:
            continue  # it would not be independent
        for kind in kinds:
            storage = factory(6, (), KINDS[kind])
            storage.set(range(5), contracts.items_for(storage, KINDS[kind], torch.arange(5)))
            yield f"storage {name} of {kind}", ("ask_storage", (storage, kind))


def ask_sampler(given: tuple[int, Any, Any, int]) -> list[Any]:
    number, storage, sampler, written = given
    world = sampler_contracts.World(sampler_contracts.SAMPLERS[number])
    world.storage, world.sampler, world.written = storage, sampler, written
    batches = [world.sample() for _ in range(2)]
    world.write(3)
    return [*batches, *(world.sample() for _ in range(2))]


def samplers() -> Iterator[tuple[str, Asked]]:
    for number, case in enumerate(sampler_contracts.SAMPLERS):
        world = sampler_contracts.World(case)
        world.write(20)
        world.write(3)
        world.sample()  # in the middle of a pass
        yield f"sampler {case.name}", ("ask_sampler", (number, world.storage, world.sampler, world.written))


class Scaled(nn.Module):
    """A transform with a state of its own, which grows as it is used."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, data: TensorDict) -> TensorDict:
        self.seen += 1
        return data.set("seen", self.seen.expand(data.shape).clone())


def batch_of(buffer: Any) -> Any:
    sample = buffer.sample()
    if isinstance(sample, tuple):
        sample = sample[0]
    return {str(key): value.tolist() for key, value in sample.items(True, True) if isinstance(value, Tensor)}


def ask_buffer(buffer: Any) -> list[Any]:
    batches = [batch_of(buffer) for _ in range(3)]
    parts = buffer._buffers if isinstance(buffer, ReplayBufferEnsemble) else [buffer]
    for part in parts:
        if not part._prefetch:  # what is drawn ahead of a write is a matter of time
            part.extend(rewarded(50, 3))
    batches += [batch_of(buffer) for _ in range(2)]
    buffer.close()
    return [batches, *(part._writer.state_dict() for part in parts), *map(len, parts)]


def rewarded(start: int, count: int) -> TensorDict:
    data = steps(start, count)
    data["next", "reward"] = (data["number"] * 7 % 5).float().unsqueeze(-1)
    return data


def buffers() -> Iterator[tuple[str, Asked]]:
    def kept(**arguments: Any) -> Any:
        kind = arguments.pop("kind", TensorDictReplayBuffer)
        arguments.setdefault("storage", LazyTensorStorage(20))
        arguments.setdefault("generator", seeded())
        buffer = kind(batch_size=5, **arguments)
        buffer.extend(rewarded(0, 12))
        buffer.sample()
        return buffer

    made: dict[str, Any] = {
        "plain": kept(kind=ReplayBuffer),
        "list": kept(storage=ListStorage(20)),
        "unwritten": ReplayBuffer(storage=LazyTensorStorage(10)),
        "prefetching": kept(prefetch=2),
        "with a transform": kept(transform=Scaled()),
        "of the best": kept(writer=TensorDictMaxValueWriter(), sampler=SamplerWithoutReplacement()),
        "prioritized": kept(kind=PrioritizedReplayBuffer, alpha=0.7, beta=0.5),
        "prioritized by key": kept(
            kind=TensorDictPrioritizedReplayBuffer, alpha=0.7, beta=torch.tensor(0.5), prefetch=1
        ),
        "ensemble": ReplayBufferEnsemble(
            kept(), kept(storage=ListStorage(20)), batch_size=6, generator=seeded()
        ),
    }
    for name, buffer in made.items():
        yield f"buffer {name}", ("ask_unwritten" if name == "unwritten" else "ask_buffer", buffer)


def ask_unwritten(buffer: ReplayBuffer) -> list[Any]:
    buffer.extend(torch.arange(4))
    return [len(buffer), buffer[:].tolist()]


def ask_index(index: TrajectoryIndex) -> list[Any]:
    first = index.eligible().runs.tolist()
    index.sync(done_storage(7), min_length=2)
    return [first, index.eligible().runs.tolist(), index.draw(4, 2, generator=seeded()).runs.tolist()]


def done_storage(seed: int) -> LazyTensorStorage:
    storage = LazyTensorStorage(40)
    done = torch.rand(30, 1, generator=seeded(seed)) < 0.2
    storage.set(range(30), TensorDict({"done": done}, 30))
    return storage


def ask_tree(tree: SumTree) -> list[Any]:
    first = [tree.total, tree.leaves.tolist()]
    tree.update(torch.tensor([1, 2]), torch.tensor([9.0, 9.0]))
    tree.grow(100)
    return [*first, tree.total, tree.capacity]


def ask_log(log: WriteLog) -> list[Any]:
    log.append(log.cursor, 2)
    return [log.cut.tolist(), log.total, log.state.is_shared()]


def ask_scheduled(given: list[Any]) -> list[Any]:
    scheduler, sampler = given
    assert scheduler.obj is sampler, "what is sent in one message stays one object"
    scheduler.step()
    return [sampler.beta, sampler.state_dict()["weights"].tolist()]


def parts() -> Iterator[tuple[str, Asked]]:
    index = TrajectoryIndex(DoneSignal(("done",)))
    index.sync(done_storage(0))
    yield "trajectory index", ("ask_index", index)
    tree = SumTree(50)
    tree.update(torch.arange(50), torch.rand(50, generator=seeded()))
    yield "sum tree", ("ask_tree", tree)
    log = WriteLog(6)
    log.append(0, 4)
    yield "write log", ("ask_log", log)
    sampler = PrioritizedSampler(20, 0.7, 0.5)
    sampler.update_priority(torch.arange(4), torch.arange(4.0))
    yield "scheduler", ("ask_scheduled", [LinearScheduler(sampler, "beta", 1.0, 10), sampler])


def ask_dataset(dataset: Any) -> list[Any]:
    drawn = [dataset.sample()["step"].tolist() for _ in range(4)]
    dataset.close()
    return drawn


def datasets(root: Path) -> Iterator[tuple[str, Asked]]:
    sources = {}
    for name, count in (("a", 4), ("b", 6)):
        sources[name] = MemorySource([[episode(number, 6) for number in range(count)]], FIELDS)
        sources[name].name = name
    for streaming in (True, False):
        where: dict[str, Any] = {"streaming": streaming, "root": None if streaming else root}
        name = "streamed" if streaming else "stored"
        dataset = OpenXExperienceReplay("a", 6, slice_len=3, source=sources["a"], generator=seeded(), **where)
        dataset.sample()
        yield f"dataset {name}", ("ask_dataset", dataset)
        mixture = OpenXMixture({"a": 1, "b": 2}, 6, slice_len=3, source=sources, generator=seeded(), **where)
        mixture.sample()
        yield f"mixture {name}", ("ask_dataset", mixture)
        some = OpenXExperienceReplay(
            "a", 6, slice_len=3, source=sources["a"], generator=seeded(), episodes=[1, 3], **where
        )
        some.sample()
        yield f"selection {name}", ("ask_dataset", some)


def answer(asked: Asked) -> Any:
    who, what = asked
    return plain_all(globals()[who](what))


def plain_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain_all(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_all(part) for part in value]
    return plain(value)


def answers(objects: dict[str, Asked]) -> dict[str, Any]:
    found = {}
    for name, asked in objects.items():
        try:
            found[name] = answer(asked)
        except Exception as error:
            raise RuntimeError(f"{name}: {error}") from error
    return found


@pytest.fixture
def objects(tmp_path: Path) -> dict[str, Asked]:
    """Everything, by name, in the middle of its work."""
    return dict([*storages(), *samplers(), *buffers(), *parts(), *datasets(tmp_path)])


# ---- the ways


class Ways:
    """How one child is sent the objects."""

    def __init__(self, method: str) -> None:
        self.context: Any = multiprocessing.get_context(method)
        self.queue = self.context.Queue()
        self.torch_queue = TorchQueue(ctx=self.context)
        self.pipe, self.childs_pipe = self.context.Pipe()
        self.results, self.childs_results = self.context.Pipe(duplex=False)


def child(given: dict[str, Asked], queue: Any, torch_queue: Any, pipe: Any, results: Any) -> None:
    torch.set_num_threads(1)
    try:
        results.send(answers(given))
        results.send([answers(get()) for get in (queue.get, torch_queue.get, pipe.recv)])
    except BaseException as error:
        results.send(repr(error))
        raise
    queue.close()
    torch_queue.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_what_is_sent_goes_on_where_it_was_on_its_own(objects: dict[str, Asked], method: str) -> None:
    ways = Ways(method)
    process = ways.context.Process(
        target=child, args=(objects, ways.queue, ways.torch_queue, ways.childs_pipe, ways.childs_results)
    )
    before = descriptors()
    process.start()
    assert descriptors() - before < 10, "none is kept for what was sent"
    started = ways.results.recv()
    check(started, answers(objects))
    if method == "fork":  # queues do not depend on it
        process.kill()
        process.join()
        return
    for put in (ways.queue.put, ways.torch_queue.put, ways.pipe.send):
        put(objects)
    others = ways.results.recv()
    process.join(PATIENCE)
    assert process.exitcode == 0
    expected = answers(objects)
    for other in others:
        check(other, expected)


class Answers(Dataset[Any]):
    """What each object answers, by number."""

    def __init__(self, objects: dict[str, Asked]) -> None:
        self.objects = objects

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, number: int) -> dict[str, Any]:
        name = list(self.objects)[number]
        return answers({name: self.objects[name]})


def test_the_workers_of_a_data_loader_that_are_spawned_get_everything(objects: dict[str, Asked]) -> None:
    # Workers share the episodes of a dataset among themselves: they do not go on where it was.
    given = {name: asked for name, asked in objects.items() if asked[0] != "ask_dataset"}
    loader = DataLoader(Answers(given), batch_size=None, num_workers=2, multiprocessing_context="spawn")
    found: dict[str, Any] = {}
    for part in loader:
        found.update(part)
    check(found, answers(given))


def test_many_tensors_need_no_descriptors_and_stay_where_they_are() -> None:
    items = [torch.full((2,), float(number)) for number in range(3000)]
    buffer = ReplayBuffer(storage=ListStorage(3000), batch_size=2)
    buffer.extend(items)
    before = descriptors()
    content = ForkingPickler.dumps([buffer, buffer.storage, buffer.sampler])
    assert descriptors() == before
    assert not any(item.is_shared() for item in buffer.storage.get(slice(None)))
    copied, storage, _ = pickle.loads(content)
    assert [item.tolist() for item in copied.storage.get(slice(None))] == [item.tolist() for item in items]
    assert [item.tolist() for item in storage.get(slice(None))] == [item.tolist() for item in items]


def test_what_is_shared_stays_shared_in_what_is_not() -> None:
    shared, own = torch.zeros(2).share_memory_(), torch.zeros(2)
    storage = ListStorage(2)
    storage.set(range(2), [shared, own])
    other = pickle.loads(ForkingPickler.dumps(storage))
    shared += 1
    own += 1
    assert [item.tolist() for item in other.get(slice(None))] == [[1, 1], [0, 0]]
    assert not other.get(1).is_shared(), "or what it sends on would be shared with it"


def test_a_copied_index_reads_its_own_memory() -> None:
    index = TrajectoryIndex(DoneSignal(("done",)))
    index.sync(done_storage(0))
    expected = index.eligible().runs.tolist()
    for other in (copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        other.sync(done_storage(1))
        assert index.eligible().runs.tolist() == expected
        again = TrajectoryIndex(DoneSignal(("done",)))
        again.sync(done_storage(1))
        assert other.eligible().runs.tolist() == again.eligible().runs.tolist() != expected


def check(sent: dict[str, Any], kept: dict[str, Any]) -> None:
    """The copies answered as the originals: neither changed the other, and both went on from one place."""
    for name, expected in kept.items():
        assert (name, sent[name]) == (name, expected)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
