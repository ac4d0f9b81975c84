"""A browser for each module, a server with feeds, and a page for each test."""

import pytest

from tests.console import browser
from tests.console.world import World


@pytest.fixture(scope="module")
def chromium():
    with browser.browser() as running:
        yield running


@pytest.fixture(scope="module")
def world(chromium, tmp_path_factory):
    with World(tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture
def screen(chromium, world):
    """A page of the console; at the end the browser must have reported nothing."""
    with browser.screen(chromium, world.url) as page:
        yield page
        page.quiet()
    world.feeds.silent.clear()
