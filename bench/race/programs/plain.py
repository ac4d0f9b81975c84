"""The race's workloads as loops in plain Python. Nothing is emitted before the end of the data."""

from __future__ import annotations

from collections import defaultdict

from exchange import SECOND_US, WINDOW_US, Alternating, Rows, Streams, by_pane, main, score


def w1(streams: Streams) -> Rows:
    counts: defaultdict[tuple[int, int], int] = defaultdict(int)
    for stream in streams.values():
        for ts, k, v in zip(stream["ts"], stream["k"], stream["v"], strict=True):
            if v < 500:
                counts[k, ts // SECOND_US] += 1
    return [(k, n, (second + 1) * SECOND_US) for (k, second), n in counts.items()]


def w2(streams: Streams) -> Rows:
    groups: dict[tuple[int, int, int], list[int]] = {}
    for ts, a, b, v in zip(*(streams["s"][name] for name in ("ts", "a", "b", "v")), strict=True):
        key = a, b, ts // WINDOW_US
        group = groups.get(key)
        if group is None:
            groups[key] = [1, v]
        else:
            group[0] += 1
            group[1] += v
    return [(a, b, n, total, (window + 1) * WINDOW_US) for (a, b, window), (n, total) in groups.items()]


def w3(streams: Streams) -> Rows:
    left: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    right: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    counts: defaultdict[int, int] = defaultdict(int)
    names = ("ts", "src", "dst", "sport", "dport")
    sides = [zip(*(streams[name][column] for column in names), strict=True) for name in ("s", "t")]
    for (ts, *s), (_, *t) in zip(*sides, strict=True):
        for key, own, other in ((tuple(s), left, right), (tuple(t), right, left)):
            for earlier in other.get(key, ()):
                if ts - earlier <= SECOND_US:
                    counts[ts // WINDOW_US] += 1
            own[key].append(ts)
    return [(n, (window + 1) * WINDOW_US) for window, n in counts.items()]


def w4(streams: Streams) -> Rows:
    panes: dict[tuple[int, int], list[int]] = {}
    for ts, k, v in zip(*(streams["s"][name] for name in ("ts", "k", "v")), strict=True):
        key = k, ts // WINDOW_US
        pane = panes.get(key)
        if pane is None:
            panes[key] = [v, 1]
        else:
            pane[0] += v
            pane[1] += 1
    return by_pane(panes)


def function(streams: Streams) -> Rows:
    totals: defaultdict[int, int] = defaultdict(int)
    for ts, k, v in zip(*(streams["s"][name] for name in ("ts", "k", "v")), strict=True):
        totals[ts // WINDOW_US] += score(k, v)
    return [(total, (window + 1) * WINDOW_US) for window, total in totals.items()]


def aggregate(streams: Streams) -> Rows:
    states: dict[tuple[int, int], int] = {}
    for ts, k, v in zip(*(streams["s"][name] for name in ("ts", "k", "v")), strict=True):
        key = k, ts // WINDOW_US
        state = states.get(key)
        states[key] = Alternating.iterate(Alternating.init() if state is None else state, v)
    return [(k, Alternating.terminate(state), (window + 1) * WINDOW_US) for (k, window), state in states.items()]


if __name__ == "__main__":
    own = {"function": function, "aggregate": aggregate}
    main(own | {"w1": w1, "w1-ordered": w1, "w2": w2, "w2-260000": w2, "w3": w3, "w4": w4})
