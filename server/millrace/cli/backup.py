"""`millrace backup` and `millrace restore`: a data directory into a folder, and back.

Both work on directories, so they run on the server's machine, with or without a running server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli import show
from millrace.cli.journal import DataDirOption, JsonOption, data_folder
from millrace.cli.serving import ConfigOption
from millrace.store.backups import Backup, make_backup, restore_backup


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder for the backup.")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a server's data directory consistently, also while the server runs. Changes nothing in it."""
    made = make_backup(data_folder(config, data_dir), folder, time.time_ns() // 1_000)
    _report(made, as_json, f"{folder} is a complete backup")


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="The folder that `millrace backup` made.")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a data directory of a backup, after verifying every checksum. The directory must be new or empty."""
    target = data_folder(config, data_dir)
    _report(restore_backup(source, target), as_json, f"{target} is restored")


def _report(made: Backup, as_json: bool, text: str) -> None:
    from millrace.cli import details

    steps = made.last_lsn - made.checkpoint
    facts: dict[str, Any] = {
        "files": len(made.files),
        "bytes": made.bytes,
        "checkpoint": made.checkpoint,
        "last_lsn": made.last_lsn,
        "version": made.version,
    }
    if as_json:
        show.as_json(facts)
    else:
        show.tell(
            f"{text}: {len(made.files)} files, {details.size(made.bytes)}; a start replays {steps} steps after "
            f"checkpoint {made.checkpoint}"
        )
