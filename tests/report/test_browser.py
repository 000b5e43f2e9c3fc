"""The page in a browser: it plays, fits a phone, follows dark mode, and asks the network for nothing."""

from __future__ import annotations

import io
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright

from lerobot_files import numbered_frame, shown_numbers
from memory_source import FIELDS, Frames, MemorySource, episode
from patience import PATIENCE
from replaybank.datasets.openx.sources.base import Episode
from replaybank.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")

STEPS = 21
EPISODES = 3
FIRST = 1000
"""What the first frame shows; every frame shows another number."""


def numbered(number: int) -> Episode:
    """An episode whose frames show their numbers, and whose instruction would run if it were markup."""
    one = episode(number, STEPS)
    frames = np.stack([numbered_frame(FIRST + 100 * number + step) for step in range(STEPS)])
    text = f'</script><script>document.title = "run"</script><img src=x onerror="document.title=1"> {number}'
    texts = [text] * (STEPS - 1) + ["the last step"]
    steps = {**one.steps, ("observation", "image"): Frames(frames), ("language_instruction",): texts}
    return replace(one, steps=steps)


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {**FIELDS, ("observation", "image"): replace(FIELDS["observation", "image"], shape=(64, 64, 3))}
    source = MemorySource([[numbered(n) for n in range(EPISODES)]], fields)
    return write_report(source, tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as started:
        # Root has no sandbox in a container; the page is ours.
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        running = started.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=1000 * PATIENCE)
        yield running
        running.close()


class Opened:
    """The page in a browser, with all that went wrong and all that was asked for."""

    def __init__(self, browser: Browser, path: Path, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def shown(self, which: str = ".views .frame") -> list[int]:
        """The numbers that frames show, as they are painted."""
        numbers = []
        for frame in self.page.locator(which).all():
            picture = Image.open(io.BytesIO(frame.screenshot())).convert("RGB").resize((64, 64))
            numbers += shown_numbers(np.asarray(picture)[None])
        return numbers


@pytest.fixture
def opened(browser: Browser, page_path: Path) -> Iterator[Opened]:
    here = Opened(browser, page_path, viewport={"width": 1280, "height": 900})
    yield here
    here.context.close()


def test_it_opens_without_an_error_and_asks_for_nothing(opened: Opened, page_path: Path) -> None:
    assert opened.page.title() == "memory · replaybank report"
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [page_path.as_uri()]
    told = opened.page.locator(".told").all_inner_texts()
    assert sum("</script><script>" in text for text in told) == EPISODES


def test_the_slider_moves_the_frames_the_numbers_and_the_text(opened: Opened) -> None:
    card = opened.page.locator(".player").nth(1)
    slider = card.locator("input[type=range]")
    assert opened.shown() == [FIRST, FIRST + 100, FIRST + 200]
    assert card.locator("output").inner_text() == "step 0"
    before = card.locator(".values dd").all_inner_texts()
    slider.fill("7")
    assert opened.shown() == [FIRST, FIRST + 107, FIRST + 200]
    assert card.locator("output").inner_text() == "step 7"
    assert slider.get_attribute("aria-valuetext") == f"step 7 of {STEPS}"
    action = np.asarray(episode(1, STEPS).steps["action",])[7]
    after = card.locator(".values dd").all_inner_texts()
    assert after != before
    for text, value in zip(after, action, strict=False):
        assert abs(float(text.replace("\N{MINUS SIGN}", "-")) - value) < 0.01
    slider.fill(str(STEPS - 1))
    assert card.locator(".told").last.inner_text() == "the last step"
    assert opened.errors == []


def test_the_keyboard_moves_the_slider(opened: Opened) -> None:
    card = opened.page.locator(".player").first
    card.locator("input[type=range]").focus()
    for key, step in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", STEPS - 1),
        ("Home", 0),
    ):
        opened.page.keyboard.press(key)
        assert card.locator("output").inner_text() == f"step {step}"
    opened.page.keyboard.press("Shift+Tab")
    assert opened.page.evaluate("document.activeElement.className") == "play"


def test_playing_goes_to_the_end_and_stops(opened: Opened) -> None:
    card = opened.page.locator(".player").first
    card.locator("input[type=range]").fill(str(STEPS - 3))
    card.locator(".play").click()
    output = card.locator("output")
    expect(output).to_have_text(f"step {STEPS - 1}", timeout=1000 * PATIENCE)
    expect(card.locator(".play")).to_have_attribute("aria-pressed", "false")
    assert opened.shown()[0] == FIRST + STEPS - 1


def test_the_strip_leads_to_its_steps(opened: Opened) -> None:
    card = opened.page.locator(".player").first
    last = card.locator(".film .frame").last
    last.click()
    assert card.locator("output").inner_text() == f"step {STEPS - 1}"
    assert opened.shown()[0] == FIRST + STEPS - 1


def test_contact_sheets_show_the_first_the_middle_and_the_last_frame(opened: Opened) -> None:
    steps = (0, (STEPS - 1) // 2, STEPS - 1)
    expected = [FIRST + 100 * number + step for number in range(EPISODES) for step in steps]
    assert opened.shown(".sheet .frame") == expected


def test_instructions_can_be_searched(opened: Opened, browser: Browser, tmp_path: Path) -> None:
    source = MemorySource([[episode(n, 2) for n in range(30)]])
    page = Opened(browser, write_report(source, tmp_path / "page.html", episodes=0))
    card = page.page.locator("#texts .card", has_text="language_instruction")
    card.locator("input").fill("text 27")
    assert [text.split("\n")[-1] for text in card.locator("li:visible").all_inner_texts()] == ["text 27"]
    assert card.locator(".matches").inner_text() == "1 found"
    page.context.close()


def test_nothing_is_wider_than_the_screen(browser: Browser, page_path: Path) -> None:
    here = Opened(browser, page_path, viewport={"width": 1280, "height": 740})
    here.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    beyond = """[...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, .skip, .plot")
        && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.className || e.tagName)"""
    for width in (1280, 768, 390, 360):
        here.page.set_viewport_size({"width": width, "height": 740})
        assert here.page.evaluate("document.documentElement.scrollWidth") == width
        assert here.page.evaluate(beyond) == []
    here.context.close()


def brightness(here: Opened) -> float:
    return float(np.asarray(Image.open(io.BytesIO(here.page.screenshot())).convert("L")).mean())


def test_dark_mode_is_dark_and_light_mode_light(browser: Browser, page_path: Path) -> None:
    found = {}
    for scheme in ("light", "dark"):
        here = Opened(browser, page_path, color_scheme=scheme)
        found[scheme] = brightness(here)
        fill = "getComputedStyle(document.querySelector('.plot [style*=plot-fill]')).fill"
        found[f"{scheme} plot"] = here.page.evaluate(fill)
        here.context.close()
    assert found["light"] > 200
    assert found["dark"] < 70
    assert found["light plot"] != found["dark plot"]


def test_every_picture_and_control_has_a_name(opened: Opened) -> None:
    nameless = """[...document.querySelectorAll("[role=img], button, input, img, svg[role]")]
        .filter((e) => !(e.getAttribute("aria-label") || e.getAttribute("alt"))).length"""
    assert opened.page.evaluate(nameless) == 0
    headings = opened.page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3')].map((e) => Number(e.tagName[1]))"
    )
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))


def test_a_printed_page_is_white_and_has_the_frames_and_no_controls(
    browser: Browser, page_path: Path
) -> None:
    here = Opened(browser, page_path, color_scheme="dark")
    here.page.emulate_media(media="print")
    assert brightness(here) > 200
    assert not here.page.locator(".controls").first.is_visible()
    assert not here.page.locator("nav").is_visible()
    assert here.shown()[0] == FIRST
    here.context.close()


def test_without_javascript_the_frames_are_there(browser: Browser, page_path: Path) -> None:
    here = Opened(browser, page_path, java_script_enabled=False)
    assert here.page.locator("noscript p").count() == 1
    assert here.shown() == [FIRST, FIRST + 100, FIRST + 200]
    here.context.close()


def test_what_the_frames_show_survives_the_jpeg() -> None:
    frame = numbered_frame(0xA5C3)
    again = simplejpeg.decode_jpeg(simplejpeg.encode_jpeg(frame, quality=40))
    assert shown_numbers(again[None]) == [0xA5C3]
