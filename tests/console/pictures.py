"""Takes the pictures of docs/console.md and of the README again.

    python -m tests.console.pictures       docs/assets/console/*.png (`make record-console`)

They show a real server with feeds. One feed is silent where a picture is about that. Look at each before you commit it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tests.console.browser import Screen, browser, screen
from tests.console.world import World
from tests.patience import wait_until

FOLDER: Final = Path(__file__).parents[2] / "docs/assets/console"
SIZE: Final = {"width": 1440, "height": 860}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, World(Path(folder)) as world, browser() as running:
        for scheme in ("light", "dark"):
            with screen(running, world.url, color_scheme=scheme, viewport=SIZE) as page:
                take(page, world, scheme)


def take(page: Screen, world: World, scheme: str) -> None:
    """All pictures in one colour scheme; the README and the documents show the light ones, and the graph in both."""

    def picture(name: str) -> None:
        page.page.screenshot(path=FOLDER / f"{name}{'-dark' if scheme == 'dark' else ''}.png")

    page.open()
    page.until("#queries .spark polyline")
    wait_until(lambda: points(page) >= 25)
    world.feeds.silent.add("trams")
    page.see("holds \\d+ tuples", ".trouble")
    picture("overview")
    page.open("graph/trams")
    page.until(".graph .edge.is-held")
    page.see("waits [1-9]\\d s", '[data-id="crossings.union1"]')
    page.open("graph/trams?at=crossings.union1")
    page.see("holds \\d+ tuples", ".why-words")
    page.see("in order of time", ".graph-panel")
    page.until(".graph-panel .tail")
    picture("graph")
    world.feeds.silent.clear()
    page.until(".graph .edge.is-held", present=False)
    if scheme == "dark":
        return
    page.open("queries/crossings")
    page.see("Measured|operators|Operators", "main")
    picture("query")
    page.open("queries/crossings/rows")
    wait_until(lambda: page.count("table.rows tbody tr") > 15)
    picture("rows")
    page.open("queries/speeds/chart")
    wait_until(lambda: chart_points(page) >= 8)
    picture("chart")
    page.open("queries/speeds/time")
    page.until(".axis rect.open")
    page.until(".axis rect.closed")
    page.until(".axis circle.late")
    page.until("#ledger")
    picture("time")
    page.open("components/trams")
    page.try_strategy("chain", seconds=4, condition="p99 > 2x")
    page.see("kept|reverted", ".trial")
    picture("strategy")
    assert world.command("strategy", "set", "trams", "dfs").returncode == 0
    page.open("editor/speeds")
    page.until(".cm-content")
    page.page.locator(".cm-line").nth(2).click()
    page.page.keyboard.press("End")
    page.page.keyboard.type(" HAVING count(*) > 3")
    page.see("keeps|kept|starts empty", ".plan")
    page.see("measured on [\\d,]+ tuples", ".price")
    page.see("newest [1-9]\\d\\d tuples", "#preview")
    picture("editor")
    page.open("changes")
    page.see("created stream", ".ledger")
    picture("changes")
    page.open("streams/cars/late")
    page.until("#ledger")
    picture("late")


def points(page: Screen) -> int:
    """How many rates the first small chart shows."""
    text = page.page.locator("#queries .spark polyline").first.get_attribute("points") or ""
    return len(text.split())


def chart_points(page: Screen) -> int:
    label = page.page.locator(".plot").get_attribute("aria-label") or ""
    return int(label.rsplit(",", 1)[-1].split()[0])


if __name__ == "__main__":
    main()
