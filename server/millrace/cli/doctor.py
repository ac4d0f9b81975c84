"""`millrace doctor`: looks at a running server once and says what would make it better.

It asks the API what anybody may ask, and changes nothing. The rules are in `advice.py`.
"""

from __future__ import annotations

import time
from typing import Final

from millrace.cli import show
from millrace.cli.advice import Advice, Snapshot, advise
from millrace.cli.link import Link, ServerError, segment

ASKED: Final = ("streams", "queries", "sinks", "operators")


def doctor(link: Link) -> None:
    """Look at a running server and its configuration, and advise, each time with the command that would help.

    Exits with 0 whether or not there is advice, and with 1 if the server cannot be reached.
    """
    found = advise(look(link))
    if link.as_json:
        show.as_json([advice.to_data() for advice in found])
    elif not found:
        show.out("nothing to advise")
    else:
        show.out("\n\n".join(_told(advice) for advice in found))


def look(link: Link) -> Snapshot:
    """What the API says now."""
    server = link.get("server")
    own_clock_us = time.time_ns() // 1_000
    lists = {name: link.get(name) for name in ASKED}
    whys = {}
    for query in lists["queries"]:
        try:
            whys[query["name"]] = link.get(f"queries/{segment(query['name'])}/why")
        except ServerError as error:
            if error.code != "unknown_query":  # dropped meanwhile
                raise
    return Snapshot(server, link.get("configuration"), whys=whys, own_clock_us=own_clock_us, **lists)


def _told(advice: Advice) -> str:
    return f"{advice.text}\n  try: {advice.try_}"
