"""Images kept as JPEG or PNG bytes."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from replaybank import ReplayBuffer
from replaybank.datasets.openx.sources.images import EncodedImages
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.storages import EncodedFrames, LazyMemmapStorage, LazyTensorStorage
from replaybank.storages.encoded import EncodedTable
from replaybank.storages.frames import jpegs_into
from replaybank.writers import RoundRobinWriter
from shared_data import bridge_path


def _smooth(count: int, height: int = 32, width: int = 48, channels: int = 3, seed: int = 0) -> Tensor:
    """Images such as encoders are made for, uint8 ``[count, height, width, channels]``."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.rand(count, channels, 4, 4, generator=generator)
    large = torch.nn.functional.interpolate(small, (height, width), mode="bilinear")
    return (large * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _table(storage: LazyTensorStorage) -> EncodedTable:
    table = storage._table
    assert isinstance(table, EncodedTable)
    return table


def _png(capacity: int, **kwargs: Any) -> LazyTensorStorage:
    return LazyTensorStorage(capacity, encoded={"image": EncodedFrames("png")}, **kwargs)


@pytest.mark.parametrize(("name", "channels"), [("jpeg", 1), ("jpeg", 3), ("png", 1), ("png", 3), ("png", 4)])
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_images_of_every_form_come_back(
    name: Literal["jpeg", "png"],
    channels: int,
    channels_first: bool,
    threads: int,
) -> None:
    images = _smooth(40, channels=channels)
    if channels_first:
        images = images.permute(0, 3, 1, 2)
    how = EncodedFrames(name, channels_first=channels_first)
    storage = LazyTensorStorage(50, encoded={"image": how})
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        storage.set(range(40), {"image": images})
        index = torch.tensor([[3, -1], [39, 3]])
        found = storage.get(index)["image"]
        everything = storage.get(range(40))["image"]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(everything[index], found)
    assert (found.dtype, found.shape) == (torch.uint8, (2, 2, *images.shape[1:]))
    difference = (found.int() - images[index].int()).abs()
    assert int(difference.max()) <= (0 if name == "png" else 60)
    assert float(difference.float().mean()) <= (0 if name == "png" else 4)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_decoder_takes_jpegs_of_the_very_size_only(channels: int) -> None:
    """What jpegs_into relies on: nothing else gives an image of that shape, or is written beside it."""
    how, color = EncodedFrames("jpeg"), {1: "GRAY", 3: "RGB"}[channels]
    good = how.encode(_smooth(1, 16, 24, channels)[0].numpy())
    png = EncodedFrames("png").encode(_smooth(1, 16, 24, channels)[0].numpy())
    others = [how.encode(_smooth(1, *size, channels)[0].numpy()) for size in ((24, 16), (8, 24), (17, 24))]
    starts = [good[:2] + bytes([byte]) + good[3:] for byte in range(255)]
    starts += [good[:2] + bytes([byte]) + good[2:] for byte in range(255)]
    none: list[bytes | memoryview] = [b"", memoryview(b""), good[:1], good[:2], good[1:], good[:-40], png]
    for bad in [*none, *others, *starts]:
        memory = np.full(3 * 16 * 24 * channels, 77, np.uint8)
        out = memory.reshape(3, 16, 24, channels)
        assert jpegs_into([good, bad, good], out, color) == 1
        assert jpegs_into([bad], out[1:2], color) == 0
        assert (out[2] == 77).all()
        assert jpegs_into([good, bad, good], out, color, start=2) == 3
        assert np.array_equal(out[0], out[2])


def test_images_of_both_forms_lie_together() -> None:
    """As they do where a dump of one form is taken over by a storage of the other."""
    images = _smooth(30)
    png, jpeg = EncodedFrames("png"), EncodedFrames("jpeg")
    contents = [(jpeg if k % 7 == 3 else png).encode(image.numpy()) for k, image in enumerate(images)]
    for channels_first in (False, True):
        out = torch.zeros((30, 3, 32, 48) if channels_first else (30, 32, 48, 3), dtype=torch.uint8)
        EncodedFrames("png", channels_first=channels_first).decode_all(contents.__getitem__, out)
        found = out.permute(0, 2, 3, 1) if channels_first else out
        exact = torch.tensor([k % 7 != 3 for k in range(30)])
        assert torch.equal(found[exact], images[exact])
        assert int((found.int() - images.int()).abs().max()) <= 60


@pytest.mark.parametrize(("side", "ratio"), [(64, 4), (480, 10)])
def test_real_frames_take_a_fraction(side: int, ratio: int) -> None:
    """Of 64 x 64 pixels, as they are, a fourth or less; of a camera's size, a tenth or less."""
    source = RLDSSource(bridge_path())
    episode = next(iter(source.episodes(source.shards()[0])))
    column = next(episode.steps[key] for key in episode.steps if "image" in key[-1])
    assert isinstance(column, EncodedImages)
    frames = torch.from_numpy(column.decode(0, 10))
    if side > frames.shape[1]:
        larger = torch.nn.functional.interpolate(frames.permute(0, 3, 1, 2).float(), side, mode="bicubic")
        frames = larger.clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    data = TensorDict({"observation": {"image": frames}}, [10])
    storage = LazyTensorStorage(25, encoded={("observation", "image"): EncodedFrames("jpeg", quality=85)})
    writer = _registered(storage)
    for _ in range(4):  # round once and a little
        writer.extend(data)
    assert len(storage) == 25
    assert storage.stored_bytes() < 25 * frames[0].numel() / ratio
    found = storage.get(torch.arange(30, 40) % 25)["observation", "image"]
    assert float((found.int() - frames.int()).abs().float().mean()) < 8


def _registered(storage: LazyTensorStorage) -> RoundRobinWriter:
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    return writer


def test_an_image_alone_is_an_item() -> None:
    images = _smooth(6)
    storage = LazyTensorStorage(6, encoded={(): EncodedFrames("png")})
    storage.set(range(6), images)
    assert torch.equal(storage.get([4, 1]), images[[4, 1]])
    assert torch.equal(storage[2], images[2])


def test_a_state_keeps_the_bytes_and_goes_from_and_to_plain_storages(tmp_path: Path) -> None:
    images = _smooth(5)
    first, second = (LazyTensorStorage(6, encoded={"image": EncodedFrames("jpeg")}) for _ in range(2))
    first.set(range(5), TensorDict({"image": images, "n": torch.arange(5)}, [5]))
    first.dumps(tmp_path)
    second.loads(tmp_path)
    assert torch.equal(first[:]["image"], second[:]["image"])  # not encoded a second time
    plain, back = LazyTensorStorage(6), _png(6)
    plain.loads(tmp_path)
    assert torch.equal(plain[:]["image"], first[:]["image"])
    back.load_state_dict(plain.state_dict())
    assert torch.equal(back[:]["image"], first[:]["image"])
    assert back[:]["n"].tolist() == [0, 1, 2, 3, 4]
    other = LazyTensorStorage(6, encoded={"image": EncodedFrames("jpeg", channels_first=True)})
    with pytest.raises(ValueError, match="channels"):
        other.load_state_dict(first.state_dict())


@pytest.mark.parametrize("damage", ["sizes", "content"])
def test_a_damaged_state_is_refused_and_changes_nothing(damage: str) -> None:
    first, second = _png(4), _png(4)
    first.set(range(3), {"image": _smooth(3)})
    second.set(range(2), {"image": _smooth(2, seed=1)})
    state = first.state_dict()
    state["frames"][0][damage] = state["frames"][0][damage][:-1]
    with pytest.raises(ValueError, match="damaged"):
        second.load_state_dict(state)
    assert torch.equal(second[:]["image"], _smooth(2, seed=1))


def test_what_is_no_such_image_is_an_error_when_it_is_read() -> None:
    first, second = _png(4), _png(4)
    first.set(range(3), {"image": _smooth(3)})
    state = first.state_dict()
    state["frames"][0]["content"][:4] = 0
    second.load_state_dict(state)
    with pytest.raises(ValueError, match="neither JPEG nor PNG"):
        second[0]
    with pytest.raises(ValueError, match="expected"):
        EncodedFrames("png").decode(
            EncodedFrames("png").encode(_smooth(1)[0].numpy()), _smooth(1, 9, 9)[0].numpy()
        )
    with pytest.raises(ValueError, match="expected"):
        EncodedFrames().decode(EncodedFrames().encode(_smooth(1)[0].numpy()), _smooth(1, 9, 9)[0].numpy())


def test_files_are_opened_again(tmp_path: Path) -> None:
    encoded: dict[str | tuple[str, ...], EncodedFrames] = {"image": EncodedFrames("png")}
    storage = LazyMemmapStorage(5, scratch_dir=tmp_path, encoded=encoded)
    storage.set(range(5), {"image": _smooth(5)})
    again = LazyMemmapStorage(5, scratch_dir=tmp_path, encoded=encoded, existsok=True)
    again.set(range(2), {"image": _smooth(2, seed=3)})
    assert torch.equal(again[:]["image"], _smooth(2, seed=3))
    with pytest.raises(ValueError, match="describes other items"):
        LazyMemmapStorage(5, scratch_dir=tmp_path, existsok=True).set(range(2), {"image": _smooth(2)})


def test_states_are_derived_beside_encoded_images() -> None:
    storage = LazyTensorStorage(
        10,
        next_observation="derive",
        encoded={
            ("observation", "image"): EncodedFrames("png"),
            ("next", "observation", "image"): EncodedFrames("png"),
        },
    )
    images, states = _smooth(9), torch.arange(9.0)
    data = TensorDict(
        {
            "observation": {"image": images[:-1], "state": states[:-1]},
            "next": {"observation": {"image": images[1:], "state": states[1:]}},
        },
        [8],
    )
    storage.set(range(8), data)
    other = LazyTensorStorage(10)
    other.load_state_dict(storage.state_dict())
    for found in (storage[:], other[:]):
        assert torch.equal(found["next", "observation", "image"], images[1:])
        assert torch.equal(found["next", "observation", "state"], states[1:])
    again = LazyTensorStorage(10, next_observation="derive", encoded=storage.encoded)
    again.load_state_dict(storage.state_dict())
    assert torch.equal(again[:]["next", "observation", "state"], states[1:])


def test_a_buffer_samples_images() -> None:
    buffer = ReplayBuffer(storage=_png(10), batch_size=4)
    images = _smooth(7)
    buffer.extend(TensorDict({"image": images, "n": torch.arange(7)}, [7]))
    batch = buffer.sample()
    assert torch.equal(batch["image"], images[batch["n"]])


@pytest.mark.parametrize(
    "image",
    [
        torch.zeros(2, 8, 8, 2, dtype=torch.uint8),
        torch.zeros(2, 8, 8, 3),
        torch.zeros(2, 8, 8, dtype=torch.uint8),
        torch.zeros(2, 0, 8, 3, dtype=torch.uint8),
    ],
)
def test_what_cannot_be_encoded_is_refused_before_anything_is_written(image: Tensor) -> None:
    storage = _png(4)
    with pytest.raises(ValueError, match=r"image.*PNG.*\[H, W, C\]"):
        storage.set(range(2), {"image": image})
    assert not storage.initialized


def test_what_cannot_be_done_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no such entry"):
        _png(4).set(0, {"other": torch.ones(2)})
    with pytest.raises(ValueError, match="meta"):
        _png(4, device="meta")
    for wrong in ({"format": "gif"}, {"quality": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            EncodedFrames(**wrong)
    storage = _png(4)
    storage.set(range(2), {"image": _smooth(2)})
    with pytest.raises(RuntimeError, match="copy"):
        storage.view()
    with pytest.raises(IndexError, match="2 item"):
        storage.get(torch.tensor([2]))
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in ("simplejpeg", "PIL"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in ("jpeg", "png"):
        with pytest.raises(ImportError, match=r"replaybank\[images\]"):
            EncodedFrames(name)


def test_nothing_is_written_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = _png(4)
    storage.set(range(2), {"image": _smooth(2)})

    def refuse(sizes: list[int]) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(_table(storage)._columns[0].strings, "make_room", refuse)
    with pytest.raises(MemoryError):
        storage.set(range(2, 4), {"image": _smooth(2)})
    with pytest.raises(MemoryError):
        storage[0] = {"image": _smooth(1)[0]}
    assert torch.equal(storage[:]["image"], _smooth(2))
