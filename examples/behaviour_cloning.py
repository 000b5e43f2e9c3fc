"""Behaviour cloning from two robot datasets at once, with chunks of actions.

    python examples/behaviour_cloning.py                # two minutes on one core, from disk
    python examples/behaviour_cloning.py --streaming    # from the files as published, nothing converted
    python examples/behaviour_cloning.py --data PATH    # your own data, RLDS or LeRobot; repeat it to mix
    python examples/behaviour_cloning.py --quick        # seconds: is it learning?

Without ``--data`` a simulated arm is filmed as it reaches for dots, once led by a steady hand and once by a
shaky one, from which it learns what to do about errors. An ``OpenXMixture`` draws slices of both. From the
image and the joints of a step a network predicts a chunk: this action and the next ones. Where a slice ends
within a chunk, a mask leaves out what is not known. A tenth of the episodes is for judging only.

Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", 2023, arXiv 2304.13705.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn import functional

from replaybank import Normalize, OpenXExperienceReplay, OpenXMixture, convert, split_trajectories
from replaybank.demo import arm

CHUNK, SLICE = 8, 16  # actions predicted at once; steps of a slice
STRIDE = 4  # of neighbouring images, which are much alike, the network looks at one in so many
HELD_OUT = 10  # one episode in so many is for judging
WANTED = 0.5  # of the error of always predicting the mean action, and of all dots
STATE = ("observation", "state")
# What the policy must not see of the arm's state: the joints' speeds. They follow from its last commands, and
# it would repeat those instead of looking (de Haan et al., "Causal Confusion in Imitation Learning", 2019).
SPEEDS = [4, 5]

Key = tuple[str, ...]


class Policy(nn.Module):
    """Where things are in the image, and the robot's state, become normalised actions."""

    def __init__(self, channels: int, state: int, actions: int, unseen: Sequence[int]) -> None:
        super().__init__()
        features = 32
        self.seen = torch.ones(state)
        self.seen[list(unseen)] = 0
        self.maps = nn.Sequential(
            *(nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.ReLU()),
            nn.Conv2d(16, features, 3, stride=2, padding=1),
        )
        self.sharpness = nn.Parameter(torch.full((features, 1), 2.0))
        self.head = nn.Sequential(
            *(nn.Linear(2 * features + state, 128), nn.ReLU()),
            *(nn.Linear(128, 128), nn.ReLU()),
            nn.Linear(128, CHUNK * actions),
        )

    def forward(self, image: Tensor, state: Tensor) -> Tensor:
        """Of uint8 ``[B, C, H, W]`` and float32 ``[B, S]`` chunks ``[B, CHUNK, A]``."""
        maps = self.maps(image / 127.5 - 1.0)
        # A feature's place is the mean of the places where its map is bright ("spatial softmax").
        bright = (maps.flatten(2) * self.sharpness).softmax(-1).view_as(maps)
        x = (bright.sum(-2) * torch.linspace(-1, 1, maps.shape[-1])).sum(-1)
        y = (bright.sum(-1) * torch.linspace(-1, 1, maps.shape[-2])).sum(-1)
        actions: Tensor = self.head(torch.cat([x, y, state * self.seen], -1))
        return actions.unflatten(-1, (CHUNK, -1))  # type: ignore[no-any-return]


def chunks(actions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Of each step ``[slices, steps]`` the next actions ``[..., CHUNK, A]``, and which of them are there."""
    behind = CHUNK - 1
    later = functional.pad(actions, (0, 0, 0, behind)).unfold(1, CHUNK, 1).transpose(-1, -2)
    return later, functional.pad(mask, (0, behind)).unfold(1, CHUNK, 1)


def error(policy: Policy | None, rows: TensorDictBase, camera: Key) -> Tensor:
    """Mean squared error over the actions that are there; without a policy, of always predicting the mean."""
    target, known = chunks(rows["action"], rows["mask"])
    rows, target, known = rows[:, ::STRIDE], target[:, ::STRIDE], known[:, ::STRIDE]
    steps = rows["mask"]  # a slice that is shorter than others is filled up
    predicted = 0.0 if policy is None else policy(rows[camera][steps], rows[STATE][steps])
    return (target[steps] - predicted).square()[known[steps]].mean()


def draw(mixture: OpenXMixture) -> tuple[TensorDictBase, TensorDictBase]:
    """Slices ``[slices, steps]`` to learn from, and others to judge by, of which there may be none."""
    rows = split_trajectories(mixture.sample())
    held_out = rows["episode"][:, 0] % HELD_OUT == 0
    return rows[~held_out], rows[held_out]


@torch.no_grad()
def success_rate(policy: Policy, normalize: Normalize, camera: Key, episodes: int) -> float:
    """How often the arm brings its hand to rest on a dot where it has not seen one before."""
    won = 0
    for number in range(episodes):
        task = arm.simulate(number, seed=1_000)  # its start and its dot; not what the expert does
        angles, speeds, held = task.angles[0], task.speeds[0], 0
        for step in range(arm.MAX_STEPS):
            now = step % (CHUNK // 2)  # of each chunk the first half: by then the camera knows better
            if now == 0:
                moment = replace(task, angles=angles[None], speeds=speeds[None], actions=task.actions[:1])
                seen = arm.as_steps(moment)
                state = TensorDict({STATE: torch.from_numpy(np.asarray(seen[STATE]))}, [1])
                image = torch.from_numpy(np.asarray(seen[camera])).movedim(-1, 1)
                chunk = TensorDict({"action": policy(image, normalize(state)[STATE])[0]}, [CHUNK])
                commands = normalize.inv(chunk)["action"].double().numpy()  # in the robot's units again
            angles, speeds = arm.advance(angles, speeds, commands[now].clip(-arm.MAX_SPEED, arm.MAX_SPEED))
            distance = np.hypot(*(arm.forward(angles)[1] - task.target))
            held = held + 1 if distance < arm.DOT_RADIUS else 0
        won += held > arm.HOLD
    return won / episodes


def arm_datasets(folder: Path, episodes: int, seed: int) -> dict[str, Path]:
    """The arm led by a steady and by a shaky hand, as RLDS files."""
    hands = {"steady": arm.TREMBLING, "shaky": 4 * arm.TREMBLING}
    return {
        name: arm.write_arm_dataset(
            folder / name, episodes=episodes, seed=2 * seed + number, trembling=trembling
        )
        for number, (name, trembling) in enumerate(hands.items())
    }


def normalisers(sources: Mapping[str, Any], folder: Path) -> dict[str, Normalize]:
    """For each dataset its own scale. Without the images, a dataset is converted in a moment."""
    found = {}
    for name, source in sources.items():
        convert(source, folder / name, image_keys=[])
        numbers = OpenXExperienceReplay(name, streaming=False, source=folder / name)
        found[name] = Normalize(numbers.stats([STATE, "action"]))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn, judge, act."""
    parser = argparse.ArgumentParser(description="Behaviour cloning from a mixture of robot datasets")
    parser.add_argument("--data", action="append", help="an RLDS or LeRobot dataset; repeat it to mix")
    parser.add_argument("--camera", default="image", help="which of its cameras")
    parser.add_argument("--streaming", action="store_true", help="read the files as they are")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds: is it learning?")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        learn(options, Path(folder))


def learn(options: argparse.Namespace, folder: Path) -> None:
    """All of it; what is written goes into the folder."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # a network this small is fastest on one
    updates, episodes, every, batch = (240, 8, 60, 64) if options.quick else (1_200, 100, 200, 256)
    began = time.process_time()
    sources: dict[str, Any] = {f"data{number}": path for number, path in enumerate(options.data or ())}
    sources = sources or arm_datasets(folder / "rlds", episodes, options.seed)
    normalize = normalisers(sources, folder / "numbers")
    mixture = OpenXMixture(
        dict.fromkeys(sources, 1.0),
        batch,
        slice_len=SLICE,
        strict_length=False,  # shorter episodes come whole
        source=sources,
        streaming=options.streaming,
        root=folder / "converted",
        image_keys={name: [options.camera] for name in sources},
        transforms=normalize,
        generator=torch.Generator().manual_seed(options.seed),
    )
    camera = next(key for key in mixture.keys if key[0] == "observation" and key[-1] == options.camera)
    rows, _ = draw(mixture)
    sizes = rows[camera].shape[2], rows[STATE].shape[-1], rows["action"].shape[-1]
    policy = Policy(*sizes, unseen=[] if options.data else SPEEDS)
    optimiser = torch.optim.AdamW(policy.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    print(f"{mixture}\nready in {time.process_time() - began:.0f} s of CPU. Mean squared errors:")
    errors: list[list[float]] = []
    for update in range(1, updates + 1):
        rows, held_out = draw(mixture)
        loss = error(policy, rows, camera)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if len(held_out):
            with torch.no_grad():
                judged = [error(judge, held_out, camera).item() for judge in (policy, None)]
            errors.append([loss.item(), *judged])
        if update % every == 0:
            learnt, unseen, mean = np.mean(errors[-every // 2 :], axis=0)
            said = f"{learnt:.3f} learnt from, {unseen:.3f} held out, {mean:.3f} for the mean action"
            print(f"{update:6,d} updates: {said}", flush=True)
    mixture.close()
    if options.data:
        return
    rate = success_rate(policy, normalize["steady"], camera, 4 if options.quick else 40)
    print(
        f"The arm comes to rest on {rate:.0%} of the dots; {time.process_time() - began:.0f} s of CPU in all"
    )
    # From a handful of episodes, as in the quick form, it can learn them, and not what is common to all.
    good = learnt < WANTED * mean if options.quick else unseen < WANTED * mean and rate > WANTED
    if not good:
        raise SystemExit(f"That is too little: an error under {WANTED:.0%} of the mean action's was wanted.")


if __name__ == "__main__":
    main()
