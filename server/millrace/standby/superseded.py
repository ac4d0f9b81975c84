"""What keeps a server from serving clients after another one has taken over: a file in its data directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from millrace.formats.durable import write_whole
from millrace.protocol import MillraceError
from millrace.standby.epoch import Epoch

SUPERSEDED: Final = "superseded.json"


class Superseded(MillraceError):  # noqa: N818 - named after the event
    """Another server has a higher epoch: this one has ended, and does not start again."""

    code = "superseded"


def write_superseded(folder: Path, epoch: Epoch) -> None:
    """Have no later start of this data directory serve clients."""
    write_whole(folder / SUPERSEDED, json.dumps({"epoch": epoch.number}).encode())


def check_superseded(folder: Path) -> None:
    """Superseded if a server of a higher epoch has replaced the one of this data directory."""
    path = folder / SUPERSEDED
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise Superseded(f"cannot read {path}: {error}") from None
    try:
        number: Any = json.loads(text)["epoch"]
    except (ValueError, TypeError, KeyError):
        number = "?"
    raise Superseded(
        f"superseded by epoch {number} ({path}): another server was promoted and has newer data; to make this one its "
        "standby, start it with an empty data directory and --follow"
    )


def forget_superseded(folder: Path) -> None:
    """The server of this directory follows the one that has taken over."""
    (folder / SUPERSEDED).unlink(missing_ok=True)
