"""The server's page in a real browser: typed text is coloured, its numbers are the server's, words go in by keyboard.

Needs Chromium (browser.py finds or installs it) and is skipped where there is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser as browsers
import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from small_corpus import small_run

from .server_process import ServerProcess, serving

pytestmark = pytest.mark.browser

TEXT = "ba be Xyzzy bi .\nfu"


@pytest.fixture(scope="session", autouse=True)
def path_of_browser() -> str:
    """Find the browser before anything else is made: where there is none, no model is trained in vain."""
    path = browsers.find()
    if path is None:
        pytest.skip("there is no browser")
    return path


@pytest.fixture(scope="module")
def browser(path_of_browser: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path_of_browser, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[ServerProcess]:
    with serving(trained) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: ServerProcess) -> Iterator[Page]:
    """Give the page, open and ready; whatever it asks of other hosts, or complains of, fails the test."""
    with_page = browser.new_page()
    told: list[str] = []
    asked: list[str] = []
    with_page.on("console", lambda message: told.append(message.text))
    with_page.on("pageerror", lambda error: told.append(str(error)))
    with_page.on("request", lambda request: asked.append(request.url))
    with_page.set_default_timeout(15_000)
    with_page.goto(server.url)
    expect(with_page.locator("#next li")).to_have_count(10)
    yield with_page
    with_page.close()
    assert [url for url in asked if not url.startswith((server.url, "data:"))] == []
    # The browser itself reports a refused or broken request; anything else is a fault of the page.
    assert [line for line in told if not line.startswith("Failed to load resource")] == []


def check_words(page: Page, server: ServerProcess, text: str, *, spells: bool) -> None:
    """Hold the page's words, colours and numbers to what the server says."""
    asked = {"sentences": text.split("\n"), "spell": spells}
    answer: dict[str, Any] = httpx.post(f"{server.url}/score", json=asked).json()
    words = [
        columns
        for sentence in answer["sentences"]
        for columns in zip(*(sentence[key] for key in ("words", "log10_probs", "oov")), strict=True)
    ]
    chips = page.locator("#words .word")
    expect(chips).to_have_count(len(words))
    for chip, (word, log10_prob, oov) in zip(chips.all(), words, strict=True):
        bits = -log10_prob * math.log2(10)
        assert chip.inner_text().split("\n") == [word, "unknown" if oov else f"{bits:.2f}"]
        level = sum(bits >= bound for bound in (2, 5, 8, 11, 14))
        assert (chip.get_attribute("class") or "").split() == ["word", "unknown" if oov else f"level-{level}"]
        background = chip.evaluate("element => getComputedStyle(element).backgroundColor")
        assert background not in ("rgba(0, 0, 0, 0)", "transparent")
    summary = page.locator("#summary").inner_text()
    assert summary.startswith(
        f"6 words, {answer['totals']['num_oov']} unknown. Perplexity of the known words and sentence ends: "
    )
    assert summary.endswith(f"{answer['totals']['ppl_no_oov']:.4g}, with the constant Z.")


def test_typed_text_is_coloured_and_unknown_words_are_spelt(page: Page, server: ServerProcess) -> None:
    page.locator("#text").press_sequentially(TEXT)
    check_words(page, server, TEXT, spells=True)


def test_an_unknown_word_is_grey_where_the_run_cannot_spell(browser: Browser, tmp_path: Path) -> None:
    text = "w3 w4 Xyzzy w5 w7\nw6"
    with serving(small_run(tmp_path / "run", spelt=())) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.locator("#text").press_sequentially(text)
        check_words(page, server, text, spells=False)
        grey = page.locator("#words .unknown").first.evaluate("element => getComputedStyle(element).backgroundColor")
        red, green, blue = (int(part) for part in re.findall(r"\d+", grey)[:3])
        assert red == green == blue
        page.close()


def test_next_words_go_in_by_keyboard_alone(page: Page, server: ServerProcess) -> None:
    def listed() -> list[str]:
        return [text.split(" (")[0] for text in page.locator("#next b").all_inner_texts()]

    def likeliest(prompt: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.post(f"{server.url}/next", json={"prompt": prompt}).json()["next"]
        return found

    text = page.locator("#text")
    expect(text).to_be_focused()
    page.keyboard.type("ba be")
    expected = likeliest("ba be")
    expect(page.locator("#next li").first).to_contain_text(f"{100 * expected[0]['prob']:.2f} %")
    assert listed() == [word["word"] for word in expected]
    # Tab goes to the list, and Enter comes back with the word.
    place = next(place for place, word in enumerate(expected) if place and word["word"] not in ("</s>", "<unk>"))
    page.keyboard.press("Tab")
    expect(page.locator("#next")).to_be_focused()
    for _ in range(place):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#next li[aria-selected=true] b")).to_have_text(expected[place]["word"])
    assert page.locator("#next").get_attribute("aria-activedescendant") == f"next-{place}"
    page.keyboard.press("Enter")
    typed = f"ba be {expected[place]['word']} "
    expect(text).to_have_value(typed)
    expect(text).to_be_focused()
    expect(page.locator("#words .word")).to_have_count(4)
    expect(page.locator("#next li").first).to_contain_text(f"{100 * likeliest(typed)[0]['prob']:.2f} %")
    # Escape comes back, too; what is typed then goes on.
    page.keyboard.press("Tab")
    expect(page.locator("#next")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.type("bo")
    expect(text).to_have_value(f"{typed}bo")
    expect(page.locator("#words .word")).to_have_count(5)


def test_what_is_refused_is_told_and_forgotten(page: Page) -> None:
    problem = page.locator("#problem")
    page.fill("#text", "ba\n" * 2001)
    expect(problem).to_have_text(re.compile("sentences: List should have at most 2000 items"))
    assert problem.get_attribute("role") == "alert"
    page.fill("#text", "ba be")
    expect(problem).to_be_hidden()
    expect(page.locator("#words .word")).to_have_count(3)
    page.route("**/score", lambda route: route.abort())
    page.fill("#text", "ba be bi")
    expect(problem).to_have_text(re.compile("The server does not answer: is it still running"))
    page.unroute("**/score")
    # It is back, and the page finds out by itself.
    expect(problem).to_be_hidden()
    expect(page.locator("#words .word")).to_have_count(4)
    page.fill("#text", "")
    expect(page.locator("#summary")).to_have_text("Nothing typed yet.")


def test_every_control_has_a_name_and_text_is_text(page: Page) -> None:
    for selector in ("#text", "#next"):
        name = page.locator(selector).evaluate(
            "e => (e.labels && e.labels.length && e.labels[0].textContent)"
            " || document.getElementById(e.getAttribute('aria-labelledby')).textContent"
        )
        assert name.strip()
    page.fill("#text", "<img src=x onerror=alert(1)> ba")
    expect(page.locator("#words .word").last).to_contain_text("</s>")
    expect(page.locator("#words")).to_contain_text("onerror")
    assert page.locator("#words img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(browser: Browser, server: ServerProcess, scheme: Any) -> None:
    """Text on every level's colour has a contrast of 4.5 or more, as WCAG 2.2 (1.4.3) asks."""
    page = browser.new_page(color_scheme=scheme)
    page.goto(server.url)
    colours = page.locator("#legend .word").evaluate_all(
        "all => all.map(e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor])"
    )
    page.close()
    assert len(colours) == 7

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for ink, ground in colours:
        dark, light = sorted(map(luminance, (ink, ground)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_a_token_is_asked_for_and_kept_while_the_tab_is_open(browser: Browser, trained: Path, tmp_path: Path) -> None:
    token = "0123456789abcdef"
    (tmp_path / "token").write_text(token, encoding="ascii")
    with serving(trained, "--token-file", tmp_path / "token") as locked:
        page = browser.new_page()
        page.set_default_timeout(15_000)
        page.goto(locked.url)
        expect(page.locator("#problem")).to_have_text("This server needs a token.")
        expect(page.locator("#token")).to_be_focused()
        page.keyboard.type("not the token at all")
        page.keyboard.press("Enter")
        expect(page.locator("#problem")).to_have_text("The server refused this token.")
        expect(page.locator("#next li")).to_have_count(0)
        page.keyboard.type(token)
        page.keyboard.press("Enter")
        expect(page.locator("#next li")).to_have_count(10)
        expect(page.locator("#problem")).to_be_hidden()
        expect(page.locator("#unlock")).to_be_hidden()
        page.reload()
        expect(page.locator("#next li")).to_have_count(10)
        # A new tab knows nothing.
        other = browser.new_page()
        other.goto(locked.url)
        expect(other.locator("#unlock")).to_be_visible()
        other.close()
        page.close()
