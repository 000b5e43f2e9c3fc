"""Takes the pictures of `replaybank report`: ``make pictures`` writes them beside this script.

They show the embedded arm's dataset and a buffer of random numbers. A Chromium must be on the PATH.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from tensordict import TensorDict

from replaybank import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
from replaybank.demo.arm import write_arm_dataset
from replaybank.report import write_report

COLOURS = 256
"""Of a picture: a page has few, and a palette makes a file of a third of the size."""
GAP = 24


def saved_buffer(path: Path) -> Path:
    """A checkpoint of a prioritized buffer that has seen some updates."""
    torch.manual_seed(0)
    step = torch.arange(2000)
    data = {
        "observation": torch.randn(2000, 4).cumsum(0) / 40,
        "action": torch.randn(2000, 2).tanh(),
        "next": {"reward": torch.rand(2000, 1), "done": (step % 50 == 49)[:, None]},
    }
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(2000), batch_size=32
    )
    buffer.extend(TensorDict(data, [2000]))
    buffer.update_priority(step, torch.distributions.Exponential(0.5).sample((2000,)) ** 2)
    buffer.dumps(path)
    return path


def picture(
    browser: Browser, page: Path, width: int, height: int, *, dark: bool, at: str = ""
) -> Image.Image:
    """What a screen of that size shows of a page, with the first episode played to its middle."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab = context.new_page()
    tab.goto(page.as_uri())
    for slider in tab.locator("input[type=range]").all():
        slider.fill(str(int(slider.get_attribute("max") or 0) // 2))
    tab.evaluate("document.activeElement.blur(); scrollTo({top: 0, behavior: 'instant'})")
    if at:
        tab.evaluate(f"document.getElementById('{at}').scrollIntoView({{behavior: 'instant'}})")
    shot = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    context.close()
    return shot


def beside(pictures: list[Image.Image]) -> Image.Image:
    """Pictures of one height, side by side."""
    width = sum(one.width for one in pictures) + GAP * (len(pictures) - 1)
    whole = Image.new("RGB", (width, pictures[0].height), "white")
    left = 0
    for one in pictures:
        whole.paste(one, (left, 0))
        left += one.width + GAP
    return whole


def main(folder: Path) -> None:
    """Write the pictures into a folder."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as started:
        os.chdir(scratch)  # the pages show the paths that they are given
        dataset = write_arm_dataset("two_link_arm/1.0.0", episodes=40)
        arm = write_report(dataset, Path(scratch, "arm.html"))
        buffer = write_report(saved_buffer(Path("checkpoint")), Path(scratch, "buffer.html"), episodes=2)
        browser = started.chromium.launch(executable_path=chromium, args=sandbox)
        taken = {
            "report": picture(browser, arm, 1180, 1330, dark=False),
            "report-phone": beside(
                [
                    picture(browser, arm, 390, 800, dark=False, at="episodes"),
                    picture(browser, arm, 390, 800, dark=True, at="state"),
                    picture(browser, arm, 390, 800, dark=False, at="cameras"),
                ]
            ),
            "report-buffer": picture(browser, buffer, 1180, 560, dark=True, at="draws0"),
        }
        browser.close()
    for name, one in taken.items():
        small = one.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=8)
        small.save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent).resolve())
