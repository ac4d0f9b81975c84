"""The file of tokens: who has which roles, until when. It holds hashes, never tokens.

A token is 256 random bits, so its SHA-256 cannot be guessed, and needs neither salt nor a slow hash. Several tokens may
have one name: the old and the new one of a client, until the old one is revoked. An entry may name a client certificate
in place of a hash.

Rule: the file is written as a whole, by one process at a time, and is readable by its owner alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from millrace.access.roles import BadGrantError, Grant, Role, parse_grant
from millrace.formats.durable import write_whole
from millrace.protocol import MillraceError

FORM: Final = 1
# A look-up compares with each of them: a third of a millisecond.
MOST_TOKENS: Final = 1_000
# Bytes of the file at the most: a kilobyte a token.
MOST_BYTES: Final = 2**20
_NAME: Final = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# The kinds of names in a certificate.
CERTIFICATE_NAMES: Final = ("CN=", "DNS:", "URI:", "email:", "IP Address:")


class TokensError(MillraceError):
    """The file of tokens cannot be used; what was known of it before still holds."""

    code = "tokens"


@dataclass(frozen=True, slots=True)
class Token:
    """A token, or a client certificate, with its roles."""

    name: str
    grants: tuple[Grant, ...]
    created_us: int
    expires_us: int | None = None
    digest: bytes | None = None
    certificate: str | None = None

    @property
    def id(self) -> str:
        """Distinguishes tokens of one name."""
        return "certificate" if self.digest is None else self.digest.hex()[:8]

    def expired(self, now_us: int) -> bool:
        return self.expires_us is not None and self.expires_us <= now_us

    def to_data(self) -> dict[str, Any]:
        shown = {"sha256": self.digest.hex()} if self.digest is not None else {"certificate": self.certificate}
        return {
            "name": self.name,
            "roles": [str(grant) for grant in self.grants],
            "created_us": self.created_us,
            "expires_us": self.expires_us,
            **shown,
        }


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def new_token() -> str:
    return secrets.token_urlsafe(32)


# -- the file ----------------------------------------------------------------------------------------------------------


def read_tokens(path: Path) -> list[Token]:
    """The tokens of a file; none if it does not exist. Raises TokensError."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TokensError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    if len(data) > MOST_BYTES:
        raise TokensError(f"{path}: expected at most {MOST_BYTES} bytes, got more; revoke tokens, or restore the file")
    try:
        content = json.loads(data)
        if content["version"] != FORM:
            raise TokensError(f"{path}: expected version {FORM}, got {content['version']!r:.20}; a newer one wrote it")
        return [_token(entry) for entry in content["tokens"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BadGrantError) as error:
        why = error.text if isinstance(error, BadGrantError) else "it is damaged"
        raise TokensError(f"{path}: {why}; restore the file, or remove it and create the tokens again") from None


def _token(entry: dict[str, Any]) -> Token:
    """An entry of the file. ValueError and the like: it is damaged."""
    name, digest, certificate = entry["name"], entry.get("sha256"), entry.get("certificate")
    created_us, expires_us = entry["created_us"], entry["expires_us"]
    if not (_NAME.fullmatch(name) and type(created_us) is int and (expires_us is None or type(expires_us) is int)):
        raise ValueError
    if (digest is None) == (certificate is None) or not isinstance(certificate, str | None):
        raise ValueError
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise ValueError
    grants = tuple(map(parse_grant, entry["roles"]))
    return Token(name, grants, created_us, expires_us, None if digest is None else bytes.fromhex(digest), certificate)


def write_tokens(path: Path, tokens: Sequence[Token]) -> None:
    """Replace the file. Raises TokensError."""
    data = {"version": FORM, "tokens": [token.to_data() for token in tokens]}
    try:
        write_whole(path, json.dumps(data, indent=1).encode() + b"\n", private=True)
    except OSError as error:
        raise TokensError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes from changing the file meanwhile. Raises TokensError."""
    try:
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise TokensError(f"cannot open {path.parent}: {(error.strerror or str(error)).lower()}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# -- changing it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Created:
    """A new entry, and its token unless it is a certificate. `replaces` counts earlier ones that are still valid."""

    entry: Token
    token: str | None
    replaces: int


def create(
    path: Path,
    name: str,
    grants: Sequence[Grant],
    now_us: int,
    *,
    expires_us: int | None = None,
    certificate: str | None = None,
    other_admin: bool = False,
) -> Created:
    """Add a token to the file. Without grants it has those of the earlier tokens of its name. The first one must be an
    admin's, unless there is an `other_admin`: with it the server starts to require tokens. Raises TokensError."""
    _check(name, certificate)
    with alone(path):
        tokens = read_tokens(path)
        earlier = [one for one in tokens if one.name == name]
        chosen = tuple(grants) or (earlier[-1].grants if earlier else ())
        if not chosen:
            raise TokensError(f"token {name} does not exist yet: say its roles, such as {name} read")
        if earlier and set(chosen) != set(earlier[-1].grants):
            has = " ".join(map(str, earlier[-1].grants))
            raise TokensError(f"token {name} has {has}: revoke it first, or choose another name")
        admins = [one for one in tokens if Grant(Role.ADMIN) in one.grants]
        if not (admins or other_admin or Grant(Role.ADMIN) in chosen):
            raise TokensError(
                "create an admin's token first, with `millrace token create NAME admin`: from then on the server "
                "requires a token"
            )
        if certificate is not None and any(one.certificate == certificate for one in tokens):
            raise TokensError(f"the certificate {certificate} has roles already: revoke them first")
        if len(tokens) >= MOST_TOKENS:
            raise TokensError(f"{path} has {len(tokens)} tokens, the limit: revoke one first")
        text = None if certificate is not None else new_token()
        entry = Token(name, chosen, now_us, expires_us, None if text is None else digest_of(text), certificate)
        write_tokens(path, [*tokens, entry])
    return Created(entry, text, len([one for one in earlier if not one.expired(now_us)]))


def _check(name: str, certificate: str | None) -> None:
    if not _NAME.fullmatch(name):
        raise TokensError(f"expected a name of letters, digits and '._@-' (at most 64), got {name!r:.80}")
    if certificate is not None and not certificate.startswith(CERTIFICATE_NAMES):
        kinds = ", ".join(CERTIFICATE_NAMES)
        raise TokensError(
            f"expected a name in the certificate that starts with one of {kinds}, got {certificate!r:.80}"
        )


def revoke(path: Path, which: str, *, older: bool = False) -> list[Token]:
    """Remove the tokens of a name, or the one of an id; with `older` all of the name but the newest. Raises
    TokensError."""
    with alone(path):
        tokens = read_tokens(path)
        found = [one for one in tokens if one.name == which] or [one for one in tokens if one.id == which]
        if not found:
            raise TokensError(f"token {which} does not exist: `millrace token list` shows the tokens")
        gone = found[:-1] if older else found
        if not gone:
            raise TokensError(f"token {which} has no older one: leave out --older to revoke it")
        write_tokens(path, [one for one in tokens if one not in gone])
    return gone
