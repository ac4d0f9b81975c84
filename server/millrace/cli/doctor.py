"""`millrace doctor`: examines a running server once and advises what to improve.

It reads the API and changes nothing. The rules are in `observe/advice.py`.
"""

from __future__ import annotations

import time

from millrace.cli import show
from millrace.cli.link import Link, ServerError, segment
from millrace.observe.advice import CLOCK_US, Snapshot, advise
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.operators import OperatorView
from millrace.protocol.admin.queries import QueryView, SinkView, Why
from millrace.protocol.admin.server import Advice, ServerView
from millrace.protocol.admin.streams import StreamView


def doctor(link: Link) -> None:
    """Examine a running server and its configuration, and print advice, each with the command to try.

    Exits with 0 whether or not there is advice, and with 1 if the server cannot be reached.
    """
    advices = advise(look(link))
    if link.as_json:
        show.as_json([to_data(advice) for advice in advices])
    elif not advices:
        show.out("nothing to advise")
    else:
        show.out("\n\n".join(_format(advice) for advice in advices))


def look(link: Link) -> Snapshot:
    """A snapshot of the API's answers."""
    before_us = time.time_ns() // 1_000
    server = link.view(ServerView, "server")
    own_clock_us = _middle(before_us, time.time_ns() // 1_000)
    queries = link.views(QueryView, "queries")
    whys = {}
    for query in queries:
        try:
            whys[query.name] = link.view(Why, f"queries/{segment(query.name)}/why")
        except ServerError as error:
            if error.code != "unknown_query":  # dropped meanwhile
                raise
    return Snapshot(
        server,
        link.get("configuration"),
        link.views(StreamView, "streams"),
        queries,
        link.views(SinkView, "sinks"),
        link.views(OperatorView, "operators"),
        whys,
        own_clock_us,
    )


def _middle(before_us: int, after_us: int) -> int | None:
    """This machine's clock when the server read its own; unknown if the answer took long, as from a busy server."""
    return (before_us + after_us) // 2 if after_us - before_us < CLOCK_US else None


def _format(advice: Advice) -> str:
    return f"{advice.text}\n  try: {advice.try_}"
