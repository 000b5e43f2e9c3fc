"""What objects say of themselves, in a terminal and in a notebook."""

from __future__ import annotations

import html.parser
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import replaybank
from patience import PATIENCE
from replaybank import (
    BurnIn,
    CompressedListStorage,
    ConsumingSampler,
    EncodedFrames,
    FrameStack,
    HindsightRelabel,
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    NStep,
    OpenXExperienceReplay,
    OpenXMixture,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    Sampler,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SampleTransform,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
    Storage,
    StorageEnsemble,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
    Writer,
    WriterEnsemble,
    convert,
)
from replaybank.buffers.transforms import TransformChain
from replaybank.demo import arm
from replaybank.showing import MOST_PARTS, html_of, text_of


class Outline(html.parser.HTMLParser):
    """The text of a page, once all of its tags are seen to be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.words = ""
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in ("div", "table", "tr", "th", "td", "b", "span")
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def steps(count: int) -> TensorDict:
    flags = {"done": torch.zeros(count, 1, dtype=torch.bool), "reward": torch.zeros(count, 1)}
    return TensorDict({"observation": torch.zeros(count, 4), "next": flags}, [count])


def written(storage: Storage, count: int = 10) -> Storage:
    storage.set(range(count), steps(count))
    return storage


SHOWN: list[tuple[Any, str]] = [
    (lambda: ListStorage(), "ListStorage(max_size=unbounded, len=0)"),
    (lambda: ListStorage(5), "ListStorage(max_size=5, len=0)"),
    (lambda: LazyStackStorage(5), "LazyStackStorage(max_size=5, len=0)"),
    (
        lambda: CompressedListStorage(5, compression_fn=bytes, decompression_fn=bytes),
        "CompressedListStorage(max_size=5, len=0)",
    ),
    (lambda: LazyTensorStorage(9), "LazyTensorStorage(max_size=9, len=0, device=cpu, memory=none yet)"),
    (
        lambda: LazyTensorStorage(9, ndim=2),
        "LazyTensorStorage(max_size=9, len=0, ndim=2, device=cpu, memory=none yet)",
    ),
    (
        lambda: written(LazyTensorStorage(1_000_000)),
        "LazyTensorStorage(max_size=1000000, len=10, device=cpu, item=21 B, leaves=3, memory=32.0 MB)",
    ),
    (
        lambda: LazyTensorStorage(
            9, shared_init=True, next_observation="derive", encoded={("next", "pixels"): EncodedFrames("png")}
        ),
        "LazyTensorStorage(max_size=9, len=0, device=cpu, memory=none yet, encoded=[next/pixels], "
        "next_observation='derive', shared_init=True)",
    ),
    (
        lambda: TensorStorage(torch.zeros(4, 2)),
        "TensorStorage(max_size=4, len=4, device=cpu, item=8 B, memory=32 B)",
    ),
    (
        lambda: StorageEnsemble(ListStorage(5), ListStorage(6)),
        "StorageEnsemble(ListStorage(max_size=5, len=0), ListStorage(max_size=6, len=0))",
    ),
    (lambda: RandomSampler(), "RandomSampler()"),
    (lambda: SamplerWithoutReplacement(), "SamplerWithoutReplacement(drop_last=False, shuffle=True)"),
    (
        lambda: PrioritizedSampler(100, alpha=0.6, beta=0.4),
        "PrioritizedSampler(max_capacity=100, alpha=0.6, beta=0.4, eps=1e-08, reduction='max')",
    ),
    (
        lambda: PrioritizedSliceSampler(100, alpha=1, beta=0, num_slices=4),
        "PrioritizedSliceSampler(max_capacity=100, alpha=1.0, beta=0.0, eps=1e-08, reduction='max', "
        "num_slices=4)",
    ),
    (lambda: SliceSampler(slice_len=4), "SliceSampler(slice_len=4)"),
    (
        lambda: SliceSampler(slice_len=4, traj_key=("next", "id"), strict_length=False),
        "SliceSampler(slice_len=4, traj_key=('next', 'id'), strict_length=False)",
    ),
    (
        lambda: SliceSampler(num_slices=4, ends=torch.zeros(9, 1)),
        "SliceSampler(num_slices=4, ends=[9, 1] given)",
    ),
    (
        lambda: SliceSamplerWithoutReplacement(slice_len=4),
        "SliceSamplerWithoutReplacement(slice_len=4, drop_last=False, shuffle=True)",
    ),
    (lambda: ConsumingSampler(3), "ConsumingSampler(max_times_sampled=3)"),
    (lambda: StalenessAwareSampler(7), "StalenessAwareSampler(max_staleness=7, decay=1.0)"),
    (
        lambda: SamplerEnsemble(RandomSampler(), RandomSampler(), p=[1.0, 3.0]),
        "SamplerEnsemble(RandomSampler(), RandomSampler(), p=[0.25, 0.75])",
    ),
    (lambda: RoundRobinWriter(), "RoundRobinWriter(no storage)"),
    (lambda: TensorDictMaxValueWriter(), "TensorDictMaxValueWriter(no storage)"),
    (
        lambda: WriterEnsemble(ImmutableDatasetWriter(), TensorDictRoundRobinWriter()),
        "WriterEnsemble(ImmutableDatasetWriter(no storage), TensorDictRoundRobinWriter(no storage))",
    ),
    (lambda: NStep(3, 0.99), "NStep(n_steps=3, gamma=0.99)"),
    (lambda: BurnIn(5), "BurnIn(n=5)"),
    (lambda: TransformChain([NStep(3, 0.9), abs]), "TransformChain([NStep(n_steps=3, gamma=0.9), abs])"),
]


@pytest.mark.parametrize(("make", "text"), SHOWN, ids=[text.partition("(")[0] for _, text in SHOWN])
def test_a_part_says_in_a_line_what_it_holds_and_how_it_is_set(make: Any, text: str) -> None:
    thing = make()
    assert repr(thing) == text
    words = Outline(thing._repr_html_()).words
    assert type(thing).__name__ in words
    assert words.count("no storage") == text.count("no storage")


def test_all_parts_that_users_make_can_be_shown() -> None:
    parts = (Storage, Sampler, Writer, SampleTransform, ReplayBuffer, OpenXMixture, StorageEnsemble)
    for name in replaybank.__all__:
        kind = getattr(replaybank, name)
        if isinstance(kind, type) and issubclass(kind, parts):
            assert hasattr(kind, "_facts"), name
            assert hasattr(kind, "_repr_html_"), name


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_a_buffer_shows_its_parts_in_a_few_lines(kind: type[ReplayBuffer]) -> None:
    buffer = kind(storage=LazyTensorStorage(50), batch_size=4, transform=NStep(2, 0.9))
    buffer.extend(steps(10))
    assert repr(buffer) == (
        f"{kind.__name__}(\n"
        f"    storage={buffer.storage!r},\n"
        "    sampler=RandomSampler(),\n"
        f"    writer={type(buffer.writer).__name__}(cursor=10, write_count=10),\n"
        "    transform=TransformChain([NStep(n_steps=2, gamma=0.9)]),\n"
        "    batch_size=4,\n"
        "    items=10,\n"
        ")"
    )
    words = Outline(buffer._repr_html_()).words
    for part in ("LazyTensorStorage", "max_size 50", "RandomSampler", "n_steps 2", "batch_size4"):
        assert part in words
    assert words.startswith(kind.__name__)


def test_prioritized_buffers_show_their_exponents() -> None:
    plain = PrioritizedReplayBuffer(alpha=0.6, beta=0.5, storage=ListStorage(10), batch_size=2)
    dicts = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.5, storage=LazyTensorStorage(10), batch_size=2
    )
    for buffer in (plain, dicts):
        assert "alpha=0.6, beta=0.5" in repr(buffer)
        assert "alpha 0.6" in Outline(buffer._repr_html_()).words


def test_an_ensemble_shows_its_buffers_up_to_a_number() -> None:
    buffers = [ReplayBuffer(storage=ListStorage(5)) for _ in range(MOST_PARTS + 3)]
    ensemble = ReplayBufferEnsemble(*buffers, batch_size=2)
    assert repr(ensemble).count("ReplayBuffer(") == MOST_PARTS
    assert "    3 more,\n" in repr(ensemble)
    words = Outline(ensemble._repr_html_()).words
    assert words.count("ListStorage") == MOST_PARTS
    assert "3 more" in words
    assert repr(StorageEnsemble(*(buffer.storage for buffer in buffers))).endswith(", 3 more)")


def test_hindsight_and_frame_stacks_show_their_settings() -> None:
    relabel = HindsightRelabel(lambda achieved, desired: torch.zeros(1))
    assert repr(relabel).startswith("HindsightRelabel(strategy='future', ratio=")
    assert "in_keys=" in repr(FrameStack(4, in_keys=["pixels"]))
    assert "FrameStack" in FrameStack(4, in_keys=["pixels"])._repr_html_()


def test_what_is_left_of_a_pass_is_shown() -> None:
    buffer = ReplayBuffer(storage=ListStorage(10), sampler=SamplerWithoutReplacement(), batch_size=3)
    buffer.extend(list(range(10)))
    buffer.sample()
    assert "left=7 of 10" in repr(buffer)


# --- when things are not as they should be -----------------------------------------------------------------


def test_a_buffer_that_is_in_use_is_shown_without_waiting() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), sampler=PrioritizedSampler(50, 0.6, 0.4), batch_size=4, prefetch=2
    )
    buffer.extend(steps(10))
    ensemble = ReplayBufferEnsemble(buffer, batch_size=2)
    shown: list[str] = []
    with buffer._lock.lock, buffer._sampler._lock, ensemble._lock.lock:  # type: ignore[attr-defined]
        asks = threading.Thread(
            target=lambda: shown.extend([repr(buffer), buffer._repr_html_(), repr(ensemble)]), daemon=True
        )
        asks.start()
        asks.join(PATIENCE)
        assert len(shown) == 3
    assert "prefetch=2" in shown[0]


def test_nothing_is_made_to_be_shown() -> None:
    def refuses() -> Any:
        raise AssertionError("made")

    buffer = ReplayBuffer(storage=refuses, transform_factory=refuses, batch_size=2)
    assert repr(buffer) == "ReplayBuffer(not initialized, batch_size=2)"
    assert "not initialized" in Outline(buffer._repr_html_()).words
    lazy = ReplayBuffer(storage=LazyMemmapStorage(100), batch_size=2)
    assert "disk=none yet" in repr(lazy)
    assert lazy.storage.folder is None  # type: ignore[attr-defined]


def test_files_that_are_gone_are_no_error(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(100, scratch_dir=tmp_path / "scratch")
    written(storage)
    text = repr(storage)
    assert f"disk=3.2 kB, folder='{tmp_path / 'scratch'}'" in text
    shutil.rmtree(tmp_path / "scratch")
    assert repr(storage) == text
    storage.cleanup()
    assert "len=0" in repr(storage)


def test_a_shared_buffer_is_shown() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50, shared_init=True),
        sampler=PrioritizedSampler(50, 0.6, 0.4),
        batch_size=4,
        shared=True,
    )
    assert "shared=True" in repr(buffer)
    buffer.extend(steps(10))
    assert "len=10" in repr(buffer)
    assert "shared_init True" in Outline(buffer._repr_html_()).words


KINDS = [
    kind
    for kind in (getattr(replaybank, name) for name in replaybank.__all__)
    if isinstance(kind, type) and hasattr(kind, "_facts")
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_object_that_was_never_made_can_be_shown(kind: Any) -> None:
    abstract = getattr(kind, "__abstractmethods__", ())
    whole: Any = type(kind.__name__, (kind,), dict.fromkeys(abstract)) if abstract else kind
    empty: Any = object.__new__(whole)
    assert repr(empty).startswith(kind.__name__)
    assert kind.__name__ in Outline(empty._repr_html_()).words


def test_text_in_a_notebook_is_escaped_and_colours_are_the_pages_own() -> None:
    evil = "<script>alert('&')</script>"

    class Named:
        def _facts(self) -> dict[str, Any]:
            return {evil: evil, "list": [evil]}

    page = html_of(Named())
    assert "<script" not in page
    assert Outline(page).words.count(evil) == 3
    assert evil in text_of(Named())
    buffer = ReplayBuffer(storage=ListStorage(5), transform=torch.nn.Identity())
    page = buffer._repr_html_()
    for color in ("black", "white", "#"):
        assert color not in page


def test_a_repr_of_ones_own_that_raises_is_named() -> None:
    class Broken:
        def __call__(self, x: Any) -> Any:
            return x

        def __repr__(self) -> str:
            raise KeyError("gone")

    buffer = ReplayBuffer(storage=ListStorage(5), transform=Broken())
    assert "Broken, whose repr raises KeyError" in repr(buffer)
    assert "Broken, whose repr raises KeyError" in Outline(buffer._repr_html_()).words

    class Unready:
        def _facts(self) -> dict[str, Any]:
            raise ValueError

    assert text_of(Unready()) == "Unready(cannot be shown: ValueError)"


# --- datasets ----------------------------------------------------------------------------------------------


def test_datasets_say_what_they_hold(tmp_path: Path) -> None:
    published = arm.write_arm_dataset(tmp_path / "arm", episodes=3, shards=1)
    made = convert(published, tmp_path / "made", progress=False)
    stored = OpenXExperienceReplay("arm", 32, slice_len=8, streaming=False, source=tmp_path / "made")
    text = repr(stored)
    for part in (
        "OpenXExperienceReplay(\n    dataset_id='arm',\n    storage=DatasetStorage(name='two_link_arm', ",
        f"split='train', episodes=3, steps={made.steps}, ",
        "cameras=[observation/image, observation/hand_image], disk=",
        "SliceSampler(slice_len=8)",
        f"items={made.steps}",
    ):
        assert part in text
    assert f"steps {made.steps}" in Outline(stored._repr_html_()).words
    rows = OpenXExperienceReplay("arm", 2, split_trajs=True, streaming=False, source=tmp_path / "made")
    assert "TrajectoryRows(len=3, longest=" in repr(rows)
    shutil.rmtree(tmp_path / "made")
    assert repr(stored) == text


def test_streams_and_mixtures_say_what_they_read(tmp_path: Path) -> None:
    published = arm.write_arm_dataset(tmp_path / "arm", episodes=3, shards=1)
    stream = OpenXExperienceReplay("arm", 32, slice_len=8, source=published)
    mixture = OpenXMixture({"a": 1.0, "b": 3.0}, 32, slice_len=8, source={"a": published, "b": published})
    assert repr(stream) == (
        "OpenXExperienceReplay(\n"
        "    dataset_id='arm',\n"
        "    stream=StreamSampler(source='two_link_arm', split='train', episodes=3, slice_len=8, "
        "shuffle=True, buffer=268.4 MB),\n"
        "    batch_size=32,\n"
        ")"
    )
    assert repr(mixture) == "OpenXMixture(proportions={'a': 0.25, 'b': 0.75}, slice_len=8, batch_size=32)"
    for thing in (stream, mixture):
        words = Outline(thing._repr_html_()).words
        thing.close()
        assert Outline(thing._repr_html_()).words == words
    assert "OpenXExperienceReplay" in Outline(stream._repr_html_()).words
