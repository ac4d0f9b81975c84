"""What a query waited for at a moment of the past (`millrace why QUERY --at T`), and which disorder would have kept the
tuples of a span (`millrace late STREAM --from T --to T`).

The engine is restored and replayed up to the moment, and answers as it does in a running server. That may take long,
and as much memory as the server's state. So a server has another process do it (`python -m millrace.run.moments`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from millrace.engine import views
from millrace.journal.past import Past
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.queries import Why
from millrace.protocol.admin.streams import LateView
from millrace.protocol.timestamps import format_timestamp
from millrace.run.processes import start_python

# A replay of the most that the journal keeps by default takes less than a minute.
SECONDS: Final = 50.0
# The process must not take time from the server.
NICENESS: Final = 10


def why_at(data_dir: Path, query: str, at_us: int, alive_us: int | None = None) -> Why:
    """The answer of `why` at this moment. `alive_us` is until when a running server knows that nothing has happened."""
    past = Past(data_dir)
    past.refuse_outside(at_us, past.span(alive_us))
    playback = past.at(at_us)
    try:
        if query not in playback.engine.queries_by_name:
            raise Refuse(f"query {query} did not exist at {format_timestamp(at_us)}", code="unknown_query")
        found = playback.engine.why(query, at_us)
        if playback.restarts and at_us > playback.at_us:
            ended = f"The server took its last step at {format_timestamp(playback.at_us)} and was started again later."
            found = replace(found, text=f"{found.text} {ended}")
        return replace(found, at_us=at_us)
    finally:
        playback.close()


def late_between(
    data_dir: Path, stream: str, from_us: int | None, to_us: int | None, alive_us: int | None = None
) -> LateView:
    """The answer of `late` for the tuples of this span, by default as far as the past reaches. The ledger is a part of
    the engine's state, so the steps between the newest checkpoints before both ends are not replayed."""
    past = Past(data_dir)
    span = past.span(alive_us)
    from_us, to_us = span.from_us if from_us is None else from_us, span.to_us if to_us is None else to_us
    for at_us in (from_us, to_us):
        past.refuse_outside(at_us, span)
    if from_us >= to_us:
        raise Refuse(
            f"the span begins at {format_timestamp(from_us)} and ends at {format_timestamp(to_us)}: expected a later "
            "end",
            code="bad_span",
        )
    playback = past.at(from_us)
    try:
        known = playback.engine.streams_by_name.get(stream)
        before = None if known is None else known.source.lateness()
        if any(from_us < moment.at_us <= to_us for moment in past.moments()):
            playback.close()
            playback = past.at(to_us)
        else:
            for _ in playback.steps(to_us):
                pass
        found = playback.engine.stream(stream)
        return views.late(playback.engine, found, to_us, None if before is None else (from_us, before))
    finally:
        playback.close()


QUESTIONS: Final[Mapping[str, Callable[..., Why | LateView]]] = {"why": why_at, "late": late_between}


class Moments:
    """Answers questions about the past of a running server, one at a time, in another process."""

    def __init__(self, data_dir: Path | None, functions: str | None) -> None:
        self._data_dir = data_dir
        self._functions = functions
        self._one_at_a_time = asyncio.Lock()

    async def why(self, query: str, at_us: int, now_us: int) -> dict[str, Any]:
        return await self._ask("why", now_us, query=query, at_us=at_us)

    async def late(self, stream: str, from_us: int | None, to_us: int | None, now_us: int) -> dict[str, Any]:
        return await self._ask("late", now_us, stream=stream, from_us=from_us, to_us=to_us)

    async def _ask(self, question: str, now_us: int, **about: Any) -> dict[str, Any]:
        if self._data_dir is None:
            raise Refuse("the server has no past: it needs a data directory (server.data_dir)", code="not_retained")
        for name, at_us in about.items():
            if name.endswith("_us") and at_us is not None and at_us > now_us:
                raise Refuse(f"{format_timestamp(at_us)} is in the future of the server's clock", code="bad_value")
        request = {
            "question": question,
            "functions": self._functions,
            "about": {"data_dir": str(self._data_dir), "alive_us": now_us, **about},
        }
        if self._one_at_a_time.locked():
            raise Refuse("the server is answering another question about its past: try again", code="busy")
        async with self._one_at_a_time:
            return await _in_process(request)


async def _in_process(request: dict[str, Any]) -> dict[str, Any]:
    process = await start_python("millrace.run.moments", stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate(json.dumps(request).encode())
    except TimeoutError:
        text = f"replaying up to that moment takes more than {SECONDS:g} seconds"
        raise Refuse(f"{text}: use --data-dir DIR on the server's machine", code="timeout") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        answer = json.loads(output)
    except ValueError:
        text = f"the process that replays ended with {process.returncode}"
        raise Refuse(f"{text}: is there enough memory for a second copy of the state?", code="past") from None
    if "code" in answer:
        raise Refuse(answer["text"], code=answer["code"])
    found: dict[str, Any] = answer["found"]
    return found


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    os.nice(NICENESS)
    try:
        if request["functions"] is not None:
            from millrace.sql.functions import install_module

            install_module(request["functions"])
        about = request["about"]
        found = QUESTIONS[request["question"]](Path(about.pop("data_dir")), **about)
        answer: dict[str, Any] = {"found": to_data(found)}
    except MillraceError as error:
        answer = {"code": error.code, "text": error.text}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
