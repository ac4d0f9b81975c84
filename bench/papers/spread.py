"""The spread of a figure over its seeds: a band per line, a whisker per bar.

Rule: a figure is drawn from its first seed. The others are drawn in the same way on figures that nobody sees, so lines
and bars of the same position belong together, and no experiment has to know about seeds when it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

ALPHA: Final = 0.22


def draw_with_spread(figure: Figure, draws: Sequence[Callable[[Figure], None]]) -> None:
    """Draw the first result, and from its least to its most value over all of them."""
    first, *others = draws
    first(figure)
    twins = []
    for draw in others:
        twin = Figure(figsize=tuple(figure.get_size_inches()), layout="constrained")
        draw(twin)
        twins.append(twin)
    if not twins:
        return
    for axes, *same in zip(figure.axes, *(twin.axes for twin in twins), strict=True):
        _spread_lines(axes, same)
        _spread_bars(axes, same)


def _spread_lines(axes: Axes, twins: Sequence[Axes]) -> None:
    for line, *others in zip(list(axes.lines), *(twin.lines for twin in twins), strict=True):
        lines: list[Line2D] = [line, *others]
        heights = [np.asarray(each.get_ydata(), np.float64) for each in lines]
        across = [np.asarray(each.get_xdata(), np.float64) for each in lines]
        if all(np.array_equal(x, across[0]) for x in across):
            low, high = np.min(heights, axis=0), np.max(heights, axis=0)
            if np.array_equal(low, high):
                continue
            style: dict[str, Any] = {"color": line.get_color(), "alpha": ALPHA, "linewidth": 0}
            axes.fill_between(across[0], low, high, transform=line.get_transform(), **style)
        else:
            for x, y in zip(across[1:], heights[1:], strict=True):
                axes.plot(x, y, color=line.get_color(), alpha=ALPHA, linewidth=1)
        _make_room(axes, max(float(np.nanmax(values)) for values in heights))


def _spread_bars(axes: Axes, twins: Sequence[Axes]) -> None:
    for bars, *others in zip(*(_bars(each) for each in (axes, *twins)), strict=True):
        heights = np.array([[bar.get_height() for bar in each] for each in (bars, *others)])
        middle = [bar.get_x() + bar.get_width() / 2 for bar in bars]
        reach = np.vstack([heights[0] - heights.min(axis=0), heights.max(axis=0) - heights[0]])
        axes.errorbar(middle, heights[0], yerr=reach, fmt="none", ecolor="black", capsize=3)
        _make_room(axes, float(heights.max()))


def _bars(axes: Axes) -> list[BarContainer]:
    return [container for container in axes.containers if isinstance(container, BarContainer)]


def _make_room(axes: Axes, height: float) -> None:
    """An axis whose limits are fixed does not grow by itself."""
    if height > axes.get_ylim()[1]:
        axes.set_ylim(top=height * 1.05)
