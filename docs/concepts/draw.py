"""Draws the pictures of the concept pages as SVG files.

    python docs/concepts/draw.py            write every picture
    python docs/concepts/draw.py --check    fail if a committed picture differs from what this script draws

Rule: a picture brings its own background and follows the reader's colour scheme, light or dark. It loads nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
WIDTH: Final = 760
# Class: (colour in light mode, colour in dark mode).
COLOURS: Final[Mapping[str, tuple[str, str]]] = {
    "ground": ("#ffffff", "#161b22"),
    "ink": ("#1f2933", "#e6edf3"),
    "soft": ("#66727f", "#9aa7b4"),
    "line": ("#b8c2cc", "#4a5560"),
    "blue": ("#2563eb", "#6ea8fe"),
    "pale": ("#dbe7fd", "#1f3560"),
    "green": ("#15803d", "#56d38a"),
    "mint": ("#d9f2e1", "#15402a"),
    "red": ("#c2410c", "#ff9b6a"),
    "rose": ("#fde4d8", "#4d2716"),
    "grey": ("#eef1f4", "#262d36"),
}


def style() -> str:
    def rules(mode: int) -> str:
        return "".join(
            f".{name}{{fill:{colours[mode]}}}.s-{name}{{stroke:{colours[mode]}}}" for name, colours in COLOURS.items()
        )

    return (
        f"<style>text{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:14px}}"
        f".code{{font-family:ui-monospace,'SF Mono',Menlo,'DejaVu Sans Mono',monospace;font-size:13px}}"
        f".small{{font-size:12px}}.bold{{font-weight:600}}.none{{fill:none}}"
        f"{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}</style>"
    )


class Picture:
    """An SVG under construction; coordinates are pixels from the top left."""

    def __init__(self, height: int, description: str) -> None:
        self.height = height
        self.description = description
        self.parts: list[str] = []

    def text(self, x: float, y: float, text: str, look: str = "ink", anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{look}" text-anchor="{anchor}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, look: str, round_by: float = 6) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_by:g}" class="{look}"/>'
        )

    def dot(self, x: float, y: float, look: str, radius: float = 6) -> None:
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{look}" stroke-width="1.6"/>')

    def line(self, points: Sequence[tuple[float, float]], look: str, width: float = 1.5, dashes: str = "") -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<polyline points="{path}" class="none s-{look}" stroke-width="{width:g}"{dashed}/>')

    def arrow(self, start: tuple[float, float], end: tuple[float, float], look: str, dashes: str = "") -> None:
        """A straight arrow; the head is drawn, so that every viewer shows it."""
        (x1, y1), (x2, y2) = start, end
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        self.line([(x1, y1), (x2 - 7 * dx, y2 - 7 * dy)], look, dashes=dashes)
        left = (x2 - 9 * dx + 4.5 * dy, y2 - 9 * dy - 4.5 * dx)
        right = (x2 - 9 * dx - 4.5 * dy, y2 - 9 * dy + 4.5 * dx)
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in ((x2, y2), left, right))
        self.parts.append(f'<polygon points="{corners}" class="{look}"/>')

    def operator(self, x: float, y: float, name: str, look: str = "grey", width: float = 128) -> None:
        """A named box, `x` and `y` being its centre."""
        self.box(x - width / 2, y - 15, width, 30, look)
        self.text(x, y + 4.5, name, "ink code", "middle")

    def svg(self) -> str:
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self.description)}">',
                style(),
                f'<rect width="{WIDTH}" height="{self.height}" rx="10" class="ground"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def event_time() -> Picture:
    """Four arrivals in a stream with a disorder of 5 seconds; the fourth is late."""
    picture = Picture(366, "Event time: the mark follows the newest tuple, and a tuple below the mark is late")
    left, right, first, last = 132.0, 584.0, 4, 14

    def at(second: float) -> float:
        return left + (right - left) * (second - first) / (last - first)

    picture.text(24, 34, "Arrival", "soft small")
    picture.text(left, 34, "Event time: seconds after 12:00:00", "soft small")
    picture.text(right + 24, 34, "Mark = newest - 5 s", "soft small")
    arrivals = [(10, 5, ""), (7, 5, "out of order, on time"), (13, 8, ""), (6, 8, "late by 2 s")]
    for row, (second, mark, note) in enumerate(arrivals):
        y = 82.0 + 70 * row
        late = second < mark
        picture.box(at(first), y - 18, at(mark) - at(first), 36, "rose", 0)
        picture.line([(at(first), y), (at(last), y)], "line", 2)
        picture.line([(at(mark), y - 22), (at(mark), y + 22)], "red", 2)
        for earlier, _, _ in arrivals[:row]:
            picture.dot(at(earlier), y, "ground s-line", 5)
        picture.dot(at(second), y, "red s-red" if late else "blue s-blue", 7)
        picture.text(at(second), y - 14, str(second), "ink bold small", "middle")
        picture.text(24, y + 5, ("1st", "2nd", "3rd", "4th")[row] + " tuple", "ink")
        picture.text(right + 24, y - 1, f"12:00:{mark:02d}", "ink code")
        picture.text(right + 24, y + 17, note, ("red" if late else "soft") + " small")
    y = 330
    for second in range(first, last + 1, 2):
        picture.text(at(second), y, str(second), "soft small", "middle")
    picture.box(24, 343, 14, 12, "rose", 2)
    picture.text(44, 353, "below the mark: a tuple that arrives here is late", "soft small")
    picture.dot(398, 349, "blue s-blue", 5)
    picture.text(408, 353, "arrives now", "soft small")
    picture.dot(498, 349, "ground s-line", 5)
    picture.text(508, 353, "arrived earlier", "soft small")
    return picture


def on_demand() -> Picture:
    """An ordered union with a silent input, and the request that unblocks it."""
    picture = Picture(404, "Sequence chart: an ordered union requests a timestamp from a silent feed")
    columns = {"subscriber": 72.0, "cars feed": 220.0, "union": 376.0, "source trams": 532.0, "trams feed": 688.0}
    for name, x in columns.items():
        picture.operator(x, 38, name, "grey" if name in ("union", "source trams") else "pale", 124)
        picture.line([(x, 56), (x, 372)], "line", 1.5, "3 4")
    subscriber, cars, union, source, trams = columns.values()

    def message(y: float, start: float, end: float, text: str, look: str = "blue", dashes: str = "") -> None:
        step = 7 if end > start else -7
        picture.arrow((start + step, y), (end - step, y), look, dashes)
        picture.text((start + end) / 2, y - 7, text, "ink small", "middle")

    message(92, trams, source, "tuple 08:00:05")
    message(116, source, union, "tuple 08:00:05")
    message(146, cars, union, "tuple 08:00:08")
    picture.box(union - 6, 152, 12, 166, "rose", 3)
    picture.text(union - 14, 190, "blocked: a tram", "red small", "end")
    picture.text(union - 14, 206, "between 5 and 8", "red small", "end")
    picture.text(union - 14, 222, "could still arrive", "red small", "end")
    message(210, union, source, "needs 08:00:08", "red", "5 4")
    message(238, source, trams, "request 08:00:08", "red", "5 4")
    message(290, trams, source, "answer 08:00:09", "green")
    message(318, source, union, "mark 08:00:09", "green")
    message(354, union, subscriber, "", "blue")
    picture.text(142, 347, "row 08:00:08", "ink small", "middle")
    note = "The union requests nothing while it is not blocked, and the trams feed sends nothing extra."
    picture.text(24, 393, note, "soft small")
    return picture


def windows() -> Picture:
    """The same twelve tuples in four kinds of windows."""
    picture = Picture(404, "Tumbling, hopping, session and row windows over the same tuples")
    left, right = 168.0, 732.0
    tuples = [1, 3, 4, 8, 9, 11, 17, 18, 19, 26, 27, 29]

    def at(second: float) -> float:
        return left + (right - left) * second / 30

    def lane(y: float, title: str, details: Sequence[str]) -> None:
        picture.text(24, y - 8, title, "ink bold")
        for number, detail in enumerate(details):
            picture.text(24, y + 10 + 16 * number, detail, "soft code")

    def bar(start: float, end: float, y: float, look: str, label: str) -> None:
        picture.box(at(start) + 1, y, at(end) - at(start) - 2, 20, look, 4)
        picture.text((at(start) + at(end)) / 2, y + 14.5, label, "ink small", "middle")

    def points(y: float) -> None:
        picture.line([(left, y), (right, y)], "line", 2)
        for second in tuples:
            picture.dot(at(second), y, "blue s-blue", 4.5)

    lane(48, "Tumbling", ["TUMBLE 10 s"])
    points(40)
    for start in (0, 10, 20):
        bar(start, start + 10, 52, "pale", f"{sum(start <= t < start + 10 for t in tuples)}")
    lane(134, "Hopping", ["HOP every 5 s,", "10 s long"])
    points(112)
    for number, start in enumerate((0, 5, 10, 15, 20)):
        bar(start, start + 10, 124 + 24 * (number % 2), "pale", f"{sum(start <= t < start + 10 for t in tuples)}")
    lane(222, "Session", ["gap 5 s"])
    points(214)
    for start, end, number in ((1, 16, 6), (17, 24, 3), (26, 30.8, 3)):
        bar(start, end, 226, "mint", str(number))
    picture.text(at(13.5), 262, "the gap belongs to the session", "soft small", "middle")
    lane(312, "Rows", ["ROWS 4 SLIDE 4"])
    points(304)
    for start in range(0, len(tuples), 4):
        bar(tuples[start] - 0.45, tuples[start + 3] + 0.45, 316, "rose", "4")
    for second in range(0, 31, 5):
        picture.text(at(second), 368, f"{second} s", "soft small", "middle")
        picture.line([(at(second), 346), (at(second), 354)], "line")
    picture.line([(left, 350), (right, 350)], "line")
    picture.text(left, 391, "Event time. The number in a bar is how many tuples the window holds.", "soft small")
    return picture


def latest_join() -> Picture:
    """Each sale meets the price that was current at its time."""
    picture = Picture(262, "LATEST join: each sale takes the price that is current at the time of the sale")
    left, right = 150.0, 728.0

    def at(second: float) -> float:
        return left + (right - left) * second / 12

    picture.text(24, 66, "prices", "ink code")
    picture.text(24, 83, "update_key = item", "soft small")
    picture.box(at(0), 50, at(7) - at(0) - 3, 34, "mint")
    picture.text((at(0) + at(7)) / 2, 71, "cup costs 300", "ink", "middle")
    picture.box(at(7), 50, at(12) - at(7), 34, "pale")
    picture.text((at(7) + at(12)) / 2, 71, "cup costs 350", "ink", "middle")
    picture.text(24, 150, "sales", "ink code")
    picture.line([(left, 146), (right, 146)], "line", 2)
    for second, pieces, row in ((5, "2 cups", "600"), (6, "1 pot", "null"), (8, "1 cup", "350")):
        pot = pieces == "1 pot"
        picture.dot(at(second), 146, "blue s-blue", 6)
        if not pot:
            picture.arrow((at(second), 137), (at(second), 87), "blue", "4 3")
        picture.text(at(second), 170, pieces, "ink small", "middle")
        picture.operator(at(second), 206, row, "rose" if pot else "grey", 44)
    picture.text(24, 211, "rows", "ink code")
    picture.text(at(8) + 34, 211, "cents = pieces * price", "soft small")
    for second in range(0, 13, 2):
        picture.text(at(second), 36, f"{second} s", "soft small", "middle")
    note = "The pot has no price yet: LEFT JOIN LATEST returns it with null, JOIN LATEST leaves it out."
    picture.text(24, 246, note, "soft small")
    return picture


def replacement() -> Picture:
    """Operators that keep their state when the condition behind an aggregate changes."""
    picture = Picture(300, "Replacing a query keeps the state of unchanged operators upstream of the change")
    columns = [100.0, 268.0, 452.0, 640.0]

    def chain(y: float, title: str, names: Sequence[str], looks: Sequence[str]) -> None:
        picture.text(24, y - 34, title, "ink bold")
        for x, name, look, width in zip(columns, names, looks, (128, 128, 160, 128), strict=True):
            picture.operator(x, y, name, look, width)
        for (start, end), (before, after) in zip(pairwise(columns), pairwise((64, 64, 80, 64)), strict=True):
            picture.arrow((start + before + 2, y), (end - after - 2, y), "soft")

    looks = ["mint", "mint", "rose", "mint"]
    chain(72, "Before", ["source", "sum by shop", "WHERE cents > 1000", "rows to clients"], looks)
    chain(196, "After", ["source", "sum by shop", "WHERE cents > 500", "rows to clients"], looks)
    for x in (columns[0], columns[1], columns[3]):
        picture.arrow((x, 90), (x, 178), "green", "4 3")
    for x, text in ((columns[0], "same mark"), (columns[1], "same sums"), (columns[3], "seq continues")):
        picture.text(x + 10, 128, text, "green small")
    picture.text(columns[2], 128, "a new operator", "red small", "middle")
    picture.text(columns[2], 144, "with empty state", "red small", "middle")
    picture.box(24, 250, 14, 12, "mint", 2)
    picture.text(44, 260, "unchanged, and so is everything upstream: the state stays", "soft small")
    picture.box(24, 272, 14, 12, "rose", 2)
    picture.text(44, 282, "changed: the state is empty at first, as in a new query", "soft small")
    return picture


def components() -> Picture:
    """Two components: operators that are connected have one scheduler."""
    picture = Picture(300, "Two components, each with its own scheduler and strategy")
    picture.box(16, 30, 728, 152, "pale", 12)
    picture.box(16, 206, 728, 74, "mint", 12)
    picture.text(30, 50, "component cars: strategy dfs", "ink small")
    picture.text(30, 226, "component meters: strategy bfs(64)", "ink small")
    for x, y, name, width in (
        (88, 84, "cars", 100),
        (88, 148, "trams", 100),
        (216, 84, "map", 76),
        (216, 148, "select", 76),
        (336, 116, "union", 84),
        (478, 148, "aggregate", 104),
        (648, 84, "sink crossing", 148),
        (648, 148, "sink per_minute", 148),
    ):
        picture.operator(x, y, name, "ground", width)
    for start, end in (
        ((138, 84), (178, 84)),
        ((138, 148), (178, 148)),
        ((254, 84), (294, 108)),
        ((254, 148), (294, 124)),
        ((378, 110), (574, 86)),
        ((378, 122), (426, 144)),
        ((530, 148), (574, 148)),
    ):
        picture.arrow(start, end, "soft")
    picture.operator(88, 250, "meters", "ground", 100)
    picture.operator(336, 250, "aggregate", "ground", 104)
    picture.operator(648, 250, "sink per_hour", "ground", 148)
    picture.arrow((138, 250), (284, 250), "soft")
    picture.arrow((388, 250), (574, 250), "soft")
    return picture


def update_queue() -> Picture:
    """What waits on an append edge and on a LATEST edge under the same overload."""
    picture = Picture(262, "Under overload an append queue grows, and an update queue keeps one tuple per key")
    updates = [("IBM", "100"), ("SUN", "200"), ("IBM", "101"), ("IBM", "102"), ("SUN", "201"), ("IBM", "103")]
    picture.text(24, 36, "Six updates arrive while the query is busy", "ink bold")
    for number, (key, cents) in enumerate(updates):
        x = 82 + 92 * number
        picture.operator(x, 66, f"{key} {cents}", "pale" if key == "IBM" else "mint", 82)
    picture.text(82 + 92 * 6 - 44, 71, "newest", "soft small")
    picture.text(24, 122, "FROM quotes", "ink code")
    picture.text(24, 139, "append: all six wait", "soft small")
    for number, (key, cents) in enumerate(updates):
        picture.operator(244 + 86 * number, 128, f"{key} {cents}", "pale" if key == "IBM" else "mint", 78)
    picture.text(24, 186, "FROM quotes LATEST", "ink code")
    picture.text(24, 203, "update queue: one per key", "soft small")
    picture.operator(244, 192, "IBM 103", "pale", 78)
    picture.operator(330, 192, "SUN 201", "mint", 78)
    picture.text(386, 197, "4 tuples superseded, counted, not lost", "soft small")
    note = "Every query chooses for itself: one may read LATEST while another reads every tuple."
    picture.text(24, 242, note, "soft small")
    return picture


PICTURES: Final[Mapping[str, Callable[[], Picture]]] = {
    "event-time": event_time,
    "on-demand": on_demand,
    "windows": windows,
    "latest-join": latest_join,
    "replacement": replacement,
    "components": components,
    "update-queue": update_queue,
}


def main() -> None:
    outdated = []
    for name, draw in PICTURES.items():
        path, svg = FOLDER / f"{name}.svg", draw().svg()
        if "--check" not in sys.argv:
            path.write_text(svg, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != svg:
            outdated.append(path.name)
    if outdated:
        sys.exit(f"outdated: {', '.join(outdated)}; run python docs/concepts/draw.py")


if __name__ == "__main__":
    main()
