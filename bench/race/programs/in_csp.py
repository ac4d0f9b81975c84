"""The race's workloads in csp: historical columns through a graph, grouped by a node in Python.

csp's own operators filter in C++. It has no operator that groups by keys which arrive with the data, so a node in
Python with a dictionary does that, as csp's documentation recommends.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path

import csp
import numpy as np
from csp import ts
from exchange import SECOND_US, WINDOW_US, Alternating, Streams, by_pane, finish, read
from exchange import score as scored

EPOCH = datetime(2020, 1, 1)  # noqa: DTZ001 - csp takes times in UTC without a zone
EPOCH_US = 1_577_836_800 * SECOND_US
counts: defaultdict[tuple[int, int], int] = defaultdict(int)
groups: dict[tuple[int, int, int], list[int]] = {}
panes: dict[tuple[int, int], list[int]] = {}
pairs: defaultdict[int, int] = defaultdict(int)
totals: defaultdict[int, int] = defaultdict(int)
states: dict[tuple[int, int], int] = {}
texts: dict[str, list[int]] = {}


@csp.node
def count_seconds(k: ts[int], at: ts[int]):
    if csp.ticked(k):
        counts[k, at // 1_000_000] += 1


@csp.node
def group(a: ts[int], b: ts[int], v: ts[int], at: ts[int]):
    if csp.ticked(a):
        key = a, b, at // 10_000_000
        found = groups.get(key)
        if found is None:
            groups[key] = [1, v]
        else:
            found[0] += 1
            found[1] += v


@csp.node
def average(k: ts[int], v: ts[int], at: ts[int]):
    if csp.ticked(k):
        key = k, at // 10_000_000
        found = panes.get(key)
        if found is None:
            panes[key] = [v, 1]
        else:
            found[0] += v
            found[1] += 1


@csp.node
def by_text(k: ts[str], v: ts[int]):
    if csp.ticked(k):
        found = texts.get(k)
        if found is None:
            texts[k] = [1, v]
        else:
            found[0] += 1
            found[1] += v


@csp.node
def score(k: ts[int], v: ts[int], at: ts[int]):
    if csp.ticked(k):
        totals[at // 10_000_000] += scored(k, v)


@csp.node
def alternate(k: ts[int], v: ts[int], at: ts[int]):
    if csp.ticked(k):
        key = k, at // 10_000_000
        state = states.get(key)
        states[key] = Alternating.iterate(Alternating.init() if state is None else state, v)


@csp.node
def join(
    at: ts[int],
    a1: ts[int],
    b1: ts[int],
    c1: ts[int],
    d1: ts[int],
    a2: ts[int],
    b2: ts[int],
    c2: ts[int],
    d2: ts[int],
):
    with csp.state():
        s_left = defaultdict(list)
        s_right = defaultdict(list)

    if csp.ticked(at):
        for key, own, other in (((a1, b1, c1, d1), s_left, s_right), ((a2, b2, c2, d2), s_right, s_left)):
            for earlier in other.get(key, ()):
                if at - earlier <= 1_000_000:
                    pairs[at // 10_000_000] += 1
            own[key].append(at)


def curves(columns, names):
    """Each column as a time series at the rows' times."""
    when = times_of(columns)
    return [csp.curve(int, (when, np.array(columns[name], np.int64))) for name in names]


def times_of(columns):
    return ((np.array(columns["ts"], np.int64) + EPOCH_US) * 1000).astype("datetime64[ns]")


@csp.graph
def w1(streams: object):
    sides = []
    for columns in streams.values():
        k, v, at = curves(columns, ("k", "v", "ts"))
        kept = v < 500
        sides.append((csp.filter(kept, k), csp.filter(kept, at)))
    (k1, at1), (k2, at2) = sides
    count_seconds(csp.merge(k1, k2), csp.merge(at1, at2))


@csp.graph
def w2(streams: object):
    group(*curves(streams["s"], ("a", "b", "v", "ts")))


@csp.graph
def w3(streams: object):
    names = ("src", "dst", "sport", "dport")
    join(*curves(streams["s"], ("ts", *names)), *curves(streams["t"], names))


@csp.graph
def w4(streams: object):
    average(*curves(streams["s"], ("k", "v", "ts")))


@csp.graph
def function(streams: object):
    score(*curves(streams["s"], ("k", "v", "ts")))


@csp.graph
def aggregate(streams: object):
    alternate(*curves(streams["s"], ("k", "v", "ts")))


@csp.graph
def text_keys(streams: object):
    columns = streams["s"]
    (values,) = curves(columns, ("v",))
    by_text(csp.curve(str, (times_of(columns), columns["names"])), values)


GRAPHS = {
    "texts": text_keys,
    "function": function,
    "aggregate": aggregate,
    "w1": w1,
    "w1-ordered": w1,
    "w2": w2,
    "w2-260000": w2,
    "w3": w3,
    "w4": w4,
}


def rows():
    """The rows of whichever workload has run."""
    yield from ((k, n, (second + 1) * SECOND_US) for (k, second), n in counts.items())
    yield from ((a, b, n, total, (window + 1) * WINDOW_US) for (a, b, window), (n, total) in groups.items())
    yield from ((n, (window + 1) * WINDOW_US) for window, n in pairs.items())
    yield from ((total, (window + 1) * WINDOW_US) for window, total in totals.items())
    yield from ((k, Alternating.terminate(state), (window + 1) * WINDOW_US) for (k, window), state in states.items())
    yield from ((int(k[7:]), n, total) for k, (n, total) in texts.items())
    yield from by_pane(panes)


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    streams: Streams = read(folder)
    if name == "texts":
        streams["s"]["names"] = np.array([f"sensor-{key:07d}" for key in streams["s"]["k"]])
    begin = time.process_time()
    csp.run(GRAPHS[name], streams, starttime=EPOCH, endtime=timedelta(days=10))
    seconds = time.process_time() - begin
    finish(folder, rows(), seconds)


if __name__ == "__main__":
    main()
