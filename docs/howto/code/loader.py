"""The workers of a DataLoader make batches: of a replay on the disk, and of a stream of robot data."""

import tempfile

import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader, IterableDataset

from replaybank import LazyMemmapStorage, OpenXExperienceReplay, SliceSampler, TensorDictReplayBuffer
from replaybank.demo.arm import write_arm_dataset


class Batches(IterableDataset):
    """So many batches of a buffer, in each worker."""

    def __init__(self, buffer, count):
        self.buffer = buffer
        self.count = count

    def __iter__(self):
        for _ in range(self.count):
            yield self.buffer.sample()


def as_it_is(batch):
    """Torch's own collating would take a TensorDict apart."""
    return batch


def main():
    with tempfile.TemporaryDirectory() as folder:
        # Without a generator of its own: each worker has another seed, from torch's.
        buffer = TensorDictReplayBuffer(
            storage=LazyMemmapStorage(10_000, scratch_dir=folder + "/replay"),  # workers map the same files
            sampler=SliceSampler(slice_len=8),
            batch_size=64,
        )
        buffer.extend(TensorDict({"x": torch.arange(1000), "episode": torch.arange(1000) // 100}, [1000]))
        loader = DataLoader(Batches(buffer, 10), batch_size=None, num_workers=2, collate_fn=as_it_is)
        firsts = [int(batch["x"][0]) for batch in loader]
        print(len(firsts), "batches,", "all alike" if len(set(firsts)) == 1 else "of their own")

        stream = OpenXExperienceReplay(
            "arm", source=write_arm_dataset(folder + "/arm", episodes=6, shards=2), shuffle=False
        )
        loader = DataLoader(stream, batch_size=None, num_workers=2, collate_fn=as_it_is)
        print("episodes", sorted(int(episode["episode"][0]) for episode in loader))


if __name__ == "__main__":
    main()
