"""Options and helpers of the commands that read a data directory's past without its server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from millrace.protocol.errors import MillraceError, Refuse

if TYPE_CHECKING:
    from millrace.journal.past import Past


def opened(config: Path | None, data_dir: Path | None) -> Past:
    """The past in the data directory of the options or the configuration, with the configured functions."""
    from millrace.journal.past import Past
    from millrace.run.config import load
    from millrace.sql.functions import install_module

    server = load(config, {"server": {"data_dir": data_dir}}).server
    if server.data_dir is None:
        raise MillraceError("this needs a data directory: name it with --data-dir, or the server's --config")
    if server.functions is not None:
        install_module(server.functions)
    return Past(server.data_dir)


def moment(flag: str, text: str) -> int:
    """The time that an option names."""
    from millrace.values.intervals import parse_moment

    try:
        return parse_moment(text, time.time_ns() // 1_000)
    except Refuse as refused:
        raise typer.BadParameter(refused.text, param_hint=flag) from None


def alive_us(folder: Path) -> int | None:
    """Until when the directory's server is known to have run, if it still does or was killed."""
    from millrace.store.restarts import MARKER

    try:
        return (folder / MARKER).stat().st_mtime_ns // 1_000
    except OSError:
        return None


def late_in(data_dir: Path, stream: str, from_: str | None, to: str | None) -> dict[str, Any]:
    """The answer of `late` for a span, from a data directory."""
    from millrace.protocol.admin.data import to_data
    from millrace.run.moments import late_between

    from_us, to_us = (None if text is None else moment(flag, text) for flag, text in (("--from", from_), ("--to", to)))
    folder = opened(None, data_dir).folder
    return to_data(late_between(folder, stream, from_us, to_us, alive_us(folder)))


def why_in(data_dir: Path, query: str, at: str) -> dict[str, Any]:
    """The answer of `why --at` from a data directory."""
    from millrace.protocol.admin.data import to_data
    from millrace.run.moments import why_at

    at_us = moment("--at", at)
    past = opened(None, data_dir)
    return to_data(why_at(past.folder, query, at_us, alive_us(past.folder)))
