"""The process that follows a server's journal: `python -m millrace.run.follow DIR [MODULE]`, started by the server.

Rule: it ends with its server, whatever ends that: the server keeps a pipe to it open and writes nothing into it. It
reports in lines of JSON on its output, and has nothing else to say.

    {"lsn": n}                  it has taken all records up to n
    {"saved": n}                the state of checkpoint n is on the disk
    {"lsn": n, "differs": [..]} these operators have another state than the server's; it ends
    {"error": "..."}            it cannot follow; it ends

MODULE is `server.functions`. It may print: everything but the report goes to the log.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from millrace.journal.follower import Follower
from millrace.protocol import MillraceError
from millrace.sql.functions import install_module

# How often the journal is looked at when it has nothing new, and how often the place is reported at the most.
LOOK_SECONDS: Final = 0.1
REPORT_SECONDS: Final = 0.25
# The lowest priority. The system derives the priority of reads and writes from it.
NICE: Final = 19
# New objects that may wait for the cyclic collector: what the server lets wait.
YOUNG_OBJECTS: Final = 100_000


Report = Callable[..., None]


def follow(folder: Path, functions: str | None, report: Report) -> None:
    """Follow the journal until a state differs."""
    if functions is not None:
        install_module(functions)
    follower = Follower(folder)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 50, 100)
    report(lsn=follower.lsn)
    reported, reported_at = follower.lsn, time.monotonic()
    while True:
        records, asked = follower.advance()
        if follower.difference is not None:
            report(lsn=follower.difference.lsn, differs=follower.difference.operators)
            return
        if asked:
            follower.save()
            report(saved=follower.lsn)
        if not records:
            time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        if follower.lsn != reported and (not records or now - reported_at > REPORT_SECONDS):
            reported, reported_at = follower.lsn, now
            report(lsn=reported)


def _reporter() -> Report:
    """Reports on the output, and directs to the log whatever else is printed there."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(**facts: Any) -> None:
        output.write(json.dumps(facts) + "\n")
        output.flush()

    return report


def _end_with_the_server() -> None:
    with suppress(OSError):
        while os.read(sys.stdin.fileno(), 1):
            pass
    os._exit(0)


def main(folder: str, functions: str | None = None) -> int:
    # Signals to all processes of a service or a terminal are meant for the server, which ends this one.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # a sandbox may forbid it
        os.nice(NICE)
    with suppress(OSError):  # where memory runs out, this process is the one to end
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    report = _reporter()
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    try:
        follow(Path(folder), functions, report)
    except MillraceError as error:
        report(error=error.text)
        return 1
    except Exception as error:
        traceback.print_exc()
        report(error=repr(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
