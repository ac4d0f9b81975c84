"""The clients that a server knows: by token, by certificate, or all of them where it requires neither.

Rule: a server with a file of tokens requires one at both ports, even if the file is empty. Files that cannot be read
change nothing: what was known before still holds, and the server's health says so.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from millrace.access.callers import ANYONE, Caller
from millrace.access.certificates import signature
from millrace.access.roles import EVERYTHING
from millrace.access.tokens import Token, TokensError, digest_of, read_tokens
from millrace.net.refusals import PORTS, Port
from millrace.protocol import MillraceError, PeerError, format_timestamp
from millrace.run.config import ConfigError, ServerSection, read_token, tokens_path

log = structlog.get_logger()

Reason = Literal["missing", "wrong", "expired", "role"]
REASONS: Final[tuple[Reason, ...]] = ("missing", "wrong", "expired", "role")


class AccessDenied(PeerError):  # noqa: N818 - an answer
    """A client that showed no valid token. Whether it `guessed` at one decides how long its answer waits."""

    code = "unauthorised"

    def __init__(self, text: str, reason: Reason) -> None:
        super().__init__(text)
        self.reason = reason

    @property
    def guessed(self) -> bool:
        return self.reason != "missing"


@dataclass(frozen=True, slots=True)
class _Known:
    """What the files say. `required`: the server has a file of tokens, or should have. `single` are the names and
    digests of the tokens that have a file each, by port."""

    required: bool
    tokens: Sequence[Token]
    single: Mapping[Port, tuple[str, bytes]]


class Access:
    """Decides who a client is. `problem` says why the newest files do not count."""

    def __init__(self, server: ServerSection, now_us: Callable[[], int]) -> None:
        self.failures: dict[tuple[Port, Reason], int] = {(port, reason): 0 for port in PORTS for reason in REASONS}
        self.problem: str | None = None
        self._server = server
        self._now_us = now_us
        self._known = self._read(had_tokens=False)
        self._seen = self._signatures()
        self._looked_us = now_us()
        self._news = False

    # -- the files ---------------------------------------------------------------------------------

    def _read(self, *, had_tokens: bool) -> _Known:
        """What the files say now. Raises MillraceError."""
        server, path = self._server, tokens_path(self._server)
        exists = path is not None and path.exists()
        if had_tokens and not exists:
            raise TokensError(f"{path} is gone: restore it, or restart the server without it")
        tokens = read_tokens(path) if path is not None else []
        required = exists or server.tokens_file is not None
        single: dict[Port, tuple[str, bytes]] = {}
        if server.token_file is not None:
            single["listen"] = single["admin"] = "token_file", digest_of(read_token(server.token_file))
        if server.admin_token_file is not None:
            single["admin"] = "admin_token_file", digest_of(read_token(server.admin_token_file))
        return _Known(required, tokens, single)

    def reload(self) -> None:
        """Read the files again. Raises MillraceError, and then the earlier ones are still valid."""
        try:
            self._seen = self._signatures()
            self._known = self._read(had_tokens=bool(self._known.tokens))
        except MillraceError as error:
            log.error("the tokens cannot be read: the earlier ones are still valid", reason=error.text)
            self.problem = f"tokens: {error.text}; the earlier ones are still valid"
            raise
        log.info("read the tokens again", tokens=len(self._known.tokens))
        self.problem, self._news = None, True

    def refresh(self) -> bool:
        """Read the files again if they have changed; whether they have and could be read."""
        if self._signatures() == self._seen:
            return False
        with suppress(MillraceError):
            self.reload()
        return self.problem is None

    @property
    def tokens(self) -> int:
        return len(self._known.tokens)

    # -- clients -----------------------------------------------------------------------------------

    def required(self, port: Port) -> bool:
        """Whether clients of a port must show who they are."""
        return self._server.auth != "off" and (self._known.required or port in self._known.single)

    def unnamed(self, port: Port, certificate: Collection[str]) -> Caller | None:
        """The client that has shown no token: by the names in its certificate, or where none is required."""
        if not self.required(port):
            return ANYONE
        for token in self._known.tokens:
            if token.certificate in certificate and not token.expired(self._now_us()):
                return _caller(token, str(token.certificate))
        return None

    def named(self, port: Port, shown: str | None, wanted: str) -> Caller:
        """The client that shows this token. Raises AccessDenied, which names the `wanted` role."""
        if shown is None:
            raise self._denied(port, "missing", f"expected a token with {wanted}, got none")
        digest = digest_of(shown)
        found = self._found(port, digest) or (self._found(port, digest) if self.refresh() else None)
        if isinstance(found, Caller):
            return found
        if found is None:
            raise self._denied(port, "wrong", f"expected a token with {wanted}, got one that is not known here")
        if found.expired(self._now_us()):
            when = format_timestamp(found.expires_us or 0)
            raise self._denied(port, "expired", f"expected a valid token, got {found.name}, which expired at {when}")
        return _caller(found, digest)

    def _found(self, port: Port, digest: bytes) -> Token | Caller | None:
        """The token with this hash. Each is compared, whichever fits."""
        found = None
        for token in self._known.tokens:
            if token.digest is not None and hmac.compare_digest(token.digest, digest):
                found = token
        single = self._known.single.get(port)
        if single is not None and hmac.compare_digest(single[1], digest):
            return Caller(single[0], EVERYTHING, digest)
        return found

    def _denied(self, port: Port, reason: Reason, text: str) -> AccessDenied:
        self.failures[port, reason] += 1
        return AccessDenied(text, reason)

    def lacks_role(self, port: Port) -> None:
        """Count a known client that may not do what it asked for."""
        self.failures[port, "role"] += 1

    def holds(self, port: Port, caller: Caller) -> bool:
        """Whether a client that was known still is, with the same roles."""
        if caller is ANYONE:
            return not self.required(port)
        single, now_us = self._known.single.get(port), self._now_us()
        if single is not None and caller.proof == single[1]:
            return True
        return any(
            caller.proof in (token.digest, token.certificate)
            and token.grants == caller.grants
            and not token.expired(now_us)
            for token in self._known.tokens
        )

    def news(self) -> bool:
        """Whether tokens have changed or expired since the last call."""
        before, self._looked_us = self._looked_us, self._now_us()
        expired = any(before < (token.expires_us or 0) <= self._looked_us for token in self._known.tokens)
        changed, self._news = self._news, False
        return changed or expired

    def _signatures(self) -> list[tuple[int, ...] | None]:
        paths = (tokens_path(self._server), self._server.token_file, self._server.admin_token_file)
        return [signature(path) for path in paths if path is not None]


def _caller(token: Token, proof: bytes | str) -> Caller:
    return Caller(token.name, token.grants, proof)


def check_tokens(server: ServerSection) -> None:
    """ConfigError if the files of tokens cannot be used."""
    try:
        Access(server, lambda: 0)  # a time that no token has reached
    except TokensError as error:
        raise ConfigError([f"server.tokens_file: {error.text}"]) from None
