"""The first tokens of a new data directory.

Rule: a server with a new data directory requires tokens from its first moment. The two files of tokens are written
before `tokens.json`, which makes them valid; a directory that has nothing else is still new, so a start that was killed
in between is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from millrace.access.roles import Grant, Role
from millrace.access.tokens import Token, digest_of, new_token, write_tokens
from millrace.formats.durable import write_whole
from millrace.protocol import MillraceError
from millrace.run.config import FIRST_TOKENS, Address, Settings, makes_tokens, tokens_path

log = structlog.get_logger()

ADMIN: Final = FIRST_TOKENS[0]
SCRAPE: Final = FIRST_TOKENS[1]


class FirstTokens(NamedTuple):
    """The files of the tokens that were created: of an admin, and of a monitoring system that only reads."""

    admin: Path
    scrape: Path

    def uses(self, listen: Address, admin_url: str) -> Iterator[str]:
        """A line for each kind of client."""
        yield f"commands     millrace query list --token-file {self.admin}"
        yield f'curl         curl -H "Authorization: Bearer $(cat {self.admin})" {admin_url}/api/v1/queries'
        yield f"""nc           echo '{{"token": "'$(cat {self.admin})'"}}' | nc {listen.host} {listen.port}"""
        yield f"Prometheus   authorization: {{credentials_file: {self.scrape}}}"


def prepare(settings: Settings) -> FirstTokens | None:
    """Create the first tokens if the data directory gets them; None if it does not."""
    if not makes_tokens(settings):
        return None
    folder, path = settings.server.data_dir, tokens_path(settings.server)
    assert folder is not None
    assert path is not None
    now_us, entries = time.time_ns() // 1_000, []
    made = FirstTokens(folder.absolute() / ADMIN, folder.absolute() / SCRAPE)
    try:
        for file, name, role in ((made.admin, "admin", Role.ADMIN), (made.scrape, "prometheus", Role.READ)):
            token = new_token()
            write_whole(file, f"{token}\n".encode(), private=True)
            entries.append(Token(name, (Grant(role),), now_us, digest=digest_of(token)))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise MillraceError(f"server.data_dir: cannot write a token: {reason}") from None
    write_tokens(path, entries)
    log.info("created the first tokens", admin=str(made.admin), scrape=str(made.scrape))
    return made
