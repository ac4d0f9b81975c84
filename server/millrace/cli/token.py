"""`millrace token`: the file of tokens of a server, created, listed and revoked on its machine.

The file decides, not the server: these commands work while it runs, which then reads the file within a second, and
while it does not. Whoever may write the data directory may do everything anyway. A running server of the same user is
found by its announcement.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli import show
from millrace.cli.journal import JsonOption
from millrace.cli.link import DEFAULT_ADMIN, Link
from millrace.cli.serving import ConfigOption
from millrace.protocol import MillraceError

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="The server's data directory. By default the one in --config, else that of the server that runs here.",
    ),
]
AdminOption = Annotated[
    str,
    typer.Option(
        "--admin",
        envvar="MILLRACE_ADMIN",
        metavar="HOST:PORT",
        help="The HTTP port of a server that you run on this machine.",
    ),
]


def create(
    name: Annotated[str, typer.Argument(metavar="TOKEN", help="Who uses the token: letters, digits and '._@-'.")],
    role: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROLE...",
            help="feed, read, operate, change or admin; read:board,trams is for these streams and queries alone. "
            "Without a role: those of the existing token, which stays valid.",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="How long it is valid, such as '30 days'.")
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate",
            metavar="NAME",
            help="Give the roles to client certificates with this name, such as CN=sensors or DNS:sensors.example.org. "
            "No token is created.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="A new file for the token, which only you can read."),
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    admin: AdminOption = DEFAULT_ADMIN,
    as_json: JsonOption = False,
) -> None:
    """Create a token, and print it: the server keeps only its hash. With an existing name both tokens are valid."""
    from millrace.access import tokens
    from millrace.access.roles import BadGrantError, parse_grant, shown

    path, other_admin = _tokens_file(config, data_dir, admin)
    now_us = time.time_ns() // 1_000
    try:
        grants = [parse_grant(text) for text in role or ()]
    except BadGrantError as error:
        raise typer.BadParameter(error.text, param_hint="ROLE") from None
    expires_us = None if expires is None else now_us + _duration_us(expires)
    handle = None if output is None or certificate is not None else _new_file(output)
    try:
        created = tokens.create(
            path, name, grants, now_us, expires_us=expires_us, certificate=certificate, other_admin=other_admin
        )
    except MillraceError:
        if handle is not None and output is not None:
            os.close(handle)
            output.unlink(missing_ok=True)
        raise
    what = f"token {name}" if certificate is None else f"{name}, client certificates with {certificate}"
    also = "; the earlier one is still valid, until `millrace token revoke --older`" if created.replaces else ""
    if handle is not None:
        with os.fdopen(handle, "w") as file:
            file.write(f"{created.token}\n")
    if as_json:
        show.as_json({**_facts(created.entry), "token": None if handle is not None else created.token})
        return
    if handle is None and created.token is not None:
        show.out(created.token)
    show.tell(f"created {what}: {shown(created.entry.grants)}{also}")


def list_(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    admin: AdminOption = DEFAULT_ADMIN,
    as_json: JsonOption = False,
) -> None:
    """List the tokens of a server: name, roles, id, and until when they are valid. The tokens themselves are not
    stored."""
    from millrace.access.roles import shown
    from millrace.access.tokens import read_tokens
    from millrace.cli import details

    path, _ = _tokens_file(config, data_dir, admin)
    found, now_us = read_tokens(path), time.time_ns() // 1_000
    if as_json:
        show.as_json([_facts(token) for token in found])
        return
    rows = [
        (
            token.name,
            shown(token.grants),
            token.certificate or token.id,
            details.instant(token.created_us),
            "-"
            if token.expires_us is None
            else details.instant(token.expires_us) + (" (expired)" if token.expired(now_us) else ""),
        )
        for token in found
    ]
    show.table(("name", "roles", "id", "created", "expires"), rows)


def revoke(
    which: Annotated[str, typer.Argument(metavar="TOKEN", help="Its name, or the id of one token of that name.")],
    older: Annotated[
        bool, typer.Option("--older", help="Keep the newest token of the name, and revoke the others.")
    ] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    admin: AdminOption = DEFAULT_ADMIN,
    as_json: JsonOption = False,
) -> None:
    """Revoke the tokens of a name. The server closes the connections that use them."""
    from millrace.access import tokens

    path, _ = _tokens_file(config, data_dir, admin)
    gone = tokens.revoke(path, which, older=older)
    if as_json:
        show.as_json([_facts(token) for token in gone])
    else:
        show.tell(f"revoked {', '.join(f'{token.name} ({token.id})' for token in gone)}")


def _facts(token: Any) -> dict[str, Any]:
    return {
        "name": token.name,
        "id": token.id,
        "roles": [str(grant) for grant in token.grants],
        "created_us": token.created_us,
        "expires_us": token.expires_us,
        "certificate": token.certificate,
    }


def _tokens_file(config: Path | None, data_dir: Path | None, admin: str) -> tuple[Path, bool]:
    """The file of tokens, whose folder exists; and whether the configuration has a token with the role admin."""
    from millrace.formats.durable import make_folder
    from millrace.run.config import read, tokens_path

    server = read(config, {"server": {"data_dir": data_dir}}).server
    path = tokens_path(server)
    if path is None:
        return _tokens_of_running(Link(admin))
    try:
        make_folder(path.parent)
    except OSError as error:
        raise MillraceError(f"cannot create {path.parent}: {(error.strerror or str(error)).lower()}") from None
    return path, (server.admin_token_file or server.token_file) is not None


def _tokens_of_running(link: Link) -> tuple[Path, bool]:
    """The same of a server that this user runs on this machine."""
    from millrace.client.local import local_server
    from millrace.run.config import FIRST_TOKENS

    ways = "name its data directory with --data-dir, or its configuration with --config"
    about = local_server(*link.address())
    if about is None:
        raise MillraceError(
            f"you run no server at {link.admin} on this machine, and its tokens are in its data directory: {ways}"
        )
    if about.get("tokens_file") is None:
        raise MillraceError(f"the server at {link.admin} has no data directory for tokens: restart it with --data-dir")
    path, token_file = Path(about["tokens_file"]), about.get("token_file")
    return path, token_file is not None and Path(token_file).name not in FIRST_TOKENS


def _duration_us(text: str) -> int:
    from millrace.protocol import Refuse
    from millrace.values.intervals import parse_duration

    try:
        us = parse_duration(text)
    except Refuse as error:
        raise typer.BadParameter(error.text, param_hint="--expires") from None
    if us <= 0:
        raise typer.BadParameter(f"expected a time above 0, got {text!r}", param_hint="--expires")
    return us


def _new_file(path: Path) -> int:
    """A file that did not exist, for its owner alone."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise MillraceError(f"{path} exists: name a new file, or remove it") from None
    except OSError as error:
        raise MillraceError(f"cannot create {path}: {(error.strerror or str(error)).lower()}") from None
