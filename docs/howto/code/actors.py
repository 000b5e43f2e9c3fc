"""Two actors write to one buffer, the learner samples from it by priority."""

import multiprocessing

import torch
from tensordict import TensorDict

from replaybank import LazyTensorStorage, TensorDictPrioritizedReplayBuffer


def act(buffer, number):
    """An actor: twenty episodes of ten steps."""
    torch.set_num_threads(1)
    for _ in range(20):
        done = torch.zeros(10, 1, dtype=torch.bool)
        done[-1] = True
        buffer.extend(
            TensorDict(
                {
                    "observation": torch.randn(10, 4),
                    "actor": torch.full((10,), number),
                    "next": {"observation": torch.randn(10, 4), "done": done},
                },
                [10],
            )
        )


def main():
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6,
        beta=0.4,
        storage=LazyTensorStorage(10_000, shared_init=True),  # in memory that processes can share
        batch_size=64,
        shared=True,  # a lock between processes
    )
    act(buffer, 0)  # the first write allocates: before the buffer is sent
    context = multiprocessing.get_context("spawn")
    actors = [context.Process(target=act, args=(buffer, number)) for number in (1, 2)]
    for actor in actors:
        actor.start()
    while any(actor.is_alive() for actor in actors):
        batch = buffer.sample()
        batch["td_error"] = torch.rand(64)  # of your network
        buffer.update_tensordict_priority(batch)
    for actor in actors:
        actor.join()
    print(len(buffer), buffer[:]["actor"].bincount().tolist())


if __name__ == "__main__":
    main()
