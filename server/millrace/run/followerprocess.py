"""The server's end of its follower: starts the process, hears its reports, and ends it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from millrace.journal.replay import Differs
from millrace.protocol import MillraceError
from millrace.run.processes import start_python

# How long a process that is to end may take: it ends as soon as its pipe is closed, unless it hangs in the system.
END_SECONDS: Final = 2.0


class FollowerGone(MillraceError):  # noqa: N818 - named after the event
    """The follower has ended, or is not waited for any longer."""

    code = "follower"


class FollowerProcess:
    """One process.

    lsn         the newest record that it has taken; None: it has not restored its checkpoint yet
    difference  operators whose state differs from the server's
    ended       why it has ended; None: it runs
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.lsn: int | None = None
        self.difference: Differs | None = None
        self.ended: str | None = None
        self.pid = process.pid
        self._process = process
        self._error: str | None = None
        self._saved = 0
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name="follower")

    @classmethod
    async def start(cls, folder: Path, functions: str | None) -> FollowerProcess:
        """Start a process that follows the journal of this data directory."""
        arguments = [str(folder), *([] if functions is None else [functions])]
        return cls(await start_python("millrace.run.follow", *arguments))

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                self._hear(json.loads(line))
        finally:
            code = await self._process.wait()
            if self.ended is None:
                self.ended = self._error or _end(code)
            self._news.set()

    def _hear(self, report: dict[str, Any]) -> None:
        match report:
            case {"lsn": int(lsn), "differs": operators}:
                self.difference = Differs(lsn, operators)
                self._error = f"the state of {' and '.join(operators)} differs after step {lsn}"
            case {"lsn": int(lsn)}:
                self.lsn = lsn
            case {"saved": int(lsn)}:
                self.lsn = self._saved = lsn
            case {"error": str(text)}:
                self._error = text
        self._news.set()

    async def wait_saved(self, lsn: int) -> None:
        """Wait until the state after this record is on the disk."""
        while self._saved < lsn:
            if self.ended is not None:
                raise FollowerGone(self.ended)
            self._news.clear()
            await self._news.wait()

    async def stop(self, why: str) -> None:
        """End the process, and wait for that."""
        if self.ended is None:
            self.ended = why
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await asyncio.shield(self._reading)
        if not self._reading.done():
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._reading
        self._news.set()


def _end(code: int) -> str:
    """How a process ended that has reported nothing about it."""
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with {code}"
