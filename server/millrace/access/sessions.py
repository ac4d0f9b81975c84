"""Browsers that are logged in, and the one-time links that log them in.

Rule: a session has the roles of the token that opened it, and ends with that token, with a logout, or after twelve
hours. The server keeps hashes of cookies and of links, in memory alone: a restart ends every session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from millrace.access.access import Access
from millrace.access.callers import Caller
from millrace.access.tokens import digest_of, new_token

LINK_US: Final = 5 * 60 * 1_000_000
SESSION_US: Final = 12 * 3600 * 1_000_000
# The most of each: a hundred kilobytes. One more ends the oldest.
MOST: Final = 1_000


class _Entry(NamedTuple):
    """Whose it is, and when it ends."""

    caller: Caller
    expires_us: int


class Sessions:
    """The open sessions and links of a server."""

    def __init__(self, access: Access, now_us: Callable[[], int]) -> None:
        self._access = access
        self._now_us = now_us
        self._links: dict[bytes, _Entry] = {}
        self._sessions: dict[bytes, _Entry] = {}

    def make_link(self, caller: Caller) -> tuple[str, int]:
        """A code that opens one session with this client's roles, and when it expires."""
        expires_us = self._now_us() + LINK_US
        return _enter(self._links, _Entry(caller, expires_us)), expires_us

    def follow(self, code: str) -> str | None:
        """Open the session of a code: its cookie. None: the code is used, expired, or was never valid."""
        entry = self._links.pop(digest_of(code), None)
        return self.open(entry.caller) if entry is not None and self._valid(entry) else None

    def open(self, caller: Caller) -> str:
        """Open a session: its cookie."""
        return _enter(self._sessions, _Entry(caller, self._now_us() + SESSION_US))

    def find(self, cookie: str) -> Caller | None:
        """The client of a cookie; None if its session has ended."""
        digest = digest_of(cookie)
        entry = self._sessions.get(digest)
        if entry is None or self._valid(entry):
            return None if entry is None else entry.caller
        del self._sessions[digest]
        return None

    def close(self, cookie: str) -> None:
        self._sessions.pop(digest_of(cookie), None)

    def _valid(self, entry: _Entry) -> bool:
        return self._now_us() < entry.expires_us and self._access.holds("admin", entry.caller)


def _enter(entries: dict[bytes, _Entry], entry: _Entry) -> str:
    """Enter it under a new secret."""
    if len(entries) >= MOST:
        del entries[next(iter(entries))]
    secret = new_token()
    entries[digest_of(secret)] = entry
    return secret
