"""What a query was waiting for at a moment of the past: `millrace why QUERY --at T`.

The engine is restored and replayed up to the moment, and answers as it does in a running server. That may take long,
and as much memory as the server's state. So a server has another process do it (`python -m millrace.run.moments`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from millrace.journal.past import Past
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.timestamps import format_timestamp

# A replay of the most that the journal keeps by default takes less than a minute.
SECONDS: Final = 50.0
# The process must not take time from the server.
NICENESS: Final = 10


def why_at(data_dir: Path, query: str, at_us: int, alive_us: int | None = None) -> dict[str, Any]:
    """The answer of `why` at this moment. `alive_us` is until when a running server knows that nothing has happened."""
    past = Past(data_dir)
    past.refuse_outside(at_us, past.span(alive_us))
    playback = past.at(at_us)
    try:
        if query not in playback.engine.queries_by_name:
            raise Refuse(f"query {query} did not exist at {format_timestamp(at_us)}", code="unknown_query")
        found = playback.engine.why(query, at_us)
        if playback.restarts and at_us > playback.at_us:
            found["text"] += (
                f" The server took its last step at {format_timestamp(playback.at_us)} and was started again later."
            )
        return {"at_us": at_us, **found}
    finally:
        playback.close()


class Moments:
    """Answers questions about the past of a running server, one at a time, in another process."""

    def __init__(self, data_dir: Path | None, functions: str | None) -> None:
        self._data_dir = data_dir
        self._functions = functions
        self._one_at_a_time = asyncio.Lock()

    async def why(self, query: str, at_us: int, now_us: int) -> dict[str, Any]:
        if self._data_dir is None:
            raise Refuse("the server has no past: it needs a data directory (server.data_dir)", code="not_retained")
        if at_us > now_us:
            raise Refuse(f"{format_timestamp(at_us)} is in the future of the server's clock", code="bad_value")
        request = {
            "data_dir": str(self._data_dir),
            "functions": self._functions,
            "query": query,
            "at_us": at_us,
            "alive_us": now_us,
        }
        if self._one_at_a_time.locked():
            raise Refuse("the server is answering another question about its past: try again", code="busy")
        async with self._one_at_a_time:
            return await _in_process(request)


async def _in_process(request: dict[str, Any]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "millrace.run.moments"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate(json.dumps(request).encode())
    except TimeoutError:
        text = f"replaying up to that moment takes more than {SECONDS:g} seconds"
        raise Refuse(f"{text}: use `millrace why --data-dir DIR` on the server's machine", code="timeout") from None
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
    found: dict[str, Any] = answer["why"]
    return found


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    os.nice(NICENESS)
    try:
        if request["functions"] is not None:
            from millrace.sql.functions import install_module

            install_module(request["functions"])
        found = why_at(Path(request["data_dir"]), request["query"], request["at_us"], request["alive_us"])
        answer: dict[str, Any] = {"why": found}
    except MillraceError as error:
        answer = {"code": error.code, "text": error.text}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
