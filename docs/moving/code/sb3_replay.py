"""A replaybank buffer where Stable-Baselines3's off-policy algorithms expect theirs."""

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from tensordict import TensorDict

from replaybank import LazyTensorStorage, TensorDictReplayBuffer


class Replay(BaseBuffer):
    """Steps of all environments side by side; `buffer` is the replaybank buffer."""

    def __init__(self, buffer_size, observation_space, action_space, device="auto", n_envs=1, **kwargs):
        super().__init__(buffer_size, observation_space, action_space, device, n_envs)
        storage = LazyTensorStorage(buffer_size, ndim=2, next_observation="derive")  # a column an environment
        self.buffer = TensorDictReplayBuffer(storage=storage)

    def add(self, obs, next_obs, action, reward, done, infos):
        done = torch.as_tensor(done)
        limit = torch.tensor([info.get("TimeLimit.truncated", False) for info in infos])
        after = {
            "observation": torch.as_tensor(next_obs),
            "reward": torch.as_tensor(reward).float()[:, None],
            "done": done[:, None],
            "terminated": (done & ~limit)[:, None],
        }
        action = torch.as_tensor(action).reshape(self.n_envs, -1)
        step = {"observation": torch.as_tensor(obs), "action": action, "next": after}
        self.buffer.add(TensorDict(step, [self.n_envs]))

    def sample(self, batch_size, env=None):
        batch = self.buffer.sample(batch_size).to(self.device)
        scaled = env.normalize_obs if env is not None else lambda observation: observation
        return ReplayBufferSamples(
            observations=scaled(batch["observation"]),
            actions=batch["action"],
            next_observations=scaled(batch["next", "observation"]),
            dones=batch["next", "terminated"].float(),
            rewards=batch["next", "reward"],
        )

    def size(self):
        return len(self.buffer)

    def _get_samples(self, batch_inds, env=None):
        raise NotImplementedError("This buffer draws for itself, in sample.")


if __name__ == "__main__":
    model = DQN(
        "MlpPolicy", "CartPole-v1", replay_buffer_class=Replay, learning_starts=500, buffer_size=10_000
    )
    model.learn(1_000)
    model.replay_buffer.buffer.dumps("replay")  # without a pickle
    print(len(model.replay_buffer.buffer))
