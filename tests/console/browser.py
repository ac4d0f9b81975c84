"""Debian's Chromium, driven by Playwright, and a page that keeps everything that the browser reports.

Where one of them is missing, `make check` skips the tests with the reason. `make check-console` sets
MILLRACE_BROWSER, and then it is an error.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.patience import HANG_SECONDS

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS: Final = ("--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb")
AXE: Final = Path(__file__).parents[2] / "build/console/axe.min.js"
SIZE: Final = {"width": 1440, "height": 900}


def playwright() -> Any:
    """Playwright's API, or a skip with the reason."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return _missing("Playwright is not installed")
    return sync_playwright if CHROMIUM else _missing("Chromium is missing")


def _missing(what: str) -> Any:
    reason = f"{what}: `make check-console` installs it"
    if os.environ.get("MILLRACE_BROWSER"):
        pytest.fail(reason)
    return pytest.skip(reason)


class Screen:
    """A page of the console at a server, with helpers that wait, and the messages that the browser has reported."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.messages: list[str] = []
        page.set_default_timeout(HANG_SECONDS * 1_000)
        page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))

    def open(self, place: str = "") -> None:
        """Open the page, or go to another one as a click does."""
        if self.page.url.startswith(self.url):
            self.page.evaluate("place => { location.hash = place }", f"#/{place}")
        else:
            self.page.goto(f"{self.url}/#/{place}")
        self.see("live", ".status")

    def see(self, words: str, where: str = "body") -> None:
        """Wait until these words are there."""
        self.page.locator(where).filter(has_text=re.compile(words)).first.wait_for()

    def click(self, words: str, role: str = "button") -> None:
        """Click in the dialog, which covers the page, or on the page if none is open."""
        dialog = self.page.locator("dialog[open]")
        where = dialog if dialog.count() else self.page
        where.get_by_role(role, name=words, exact=False).first.click()

    def count(self, selector: str) -> int:
        number: int = self.page.locator(selector).count()
        return number

    def until(self, selector: str, present: bool = True) -> None:
        """Wait until a selector has an element, or none."""
        self.page.locator(selector).first.wait_for(state="attached" if present else "detached")

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def write(self, sql: str) -> None:
        """Replace the text of the editor."""
        self.page.locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(sql)

    def try_strategy(self, strategy: str, *, seconds: int, condition: str) -> None:
        """On the page of a component: look at the rows that a strategy changes, and put it on trial."""
        self.page.locator("#strategy").select_option(strategy)
        self.see("rows would change", "main")
        self.see(f"{strategy.upper()}-", ".table-diff")
        seconds_box, condition_box = self.page.locator(".trial-form input").all()
        seconds_box.fill(str(seconds))
        condition_box.fill(condition)
        self.click(f"Try {strategy}")

    def quiet(self, *expected: str) -> None:
        """The browser has reported nothing, except messages with these words."""
        unexpected = [message for message in self.messages if not any(words in message for words in expected)]
        assert unexpected == [], unexpected


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    with playwright()() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@contextmanager
def screen(running: Any, url: str, **options: Any) -> Iterator[Screen]:
    """A page in a separate window: no cookies, and this colour scheme."""
    context = running.new_context(**{"viewport": SIZE, "color_scheme": "light", "reduced_motion": "reduce", **options})
    try:
        yield Screen(context.new_page(), url)
    finally:
        context.close()
