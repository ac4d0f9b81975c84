"""`millrace journal`: the journal in a data directory, read and trimmed without a server.

`check` and `show` change nothing and need no lock, so they also work while a server writes the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli import show
from millrace.cli.serving import ConfigOption
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.layout import Record, Torn
from millrace.journal.reader import JournalReader
from millrace.journal.segments import Journal
from millrace.protocol import MillraceError
from millrace.protocol.timestamps import format_timestamp

# Says in a few words what a record contains.
Describe = Callable[[bytes], str]

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The server's data directory. By default the one in --config."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check(config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Read every record of the journal, and verify checksums, numbers and segments. Changes nothing."""
    from millrace.cli import details

    reader = JournalReader(journal_disk(config, data_dir))
    checked = reader.check()
    reader.close()
    facts: dict[str, Any] = {
        "segments": checked.segments,
        "bytes": checked.bytes if as_json else details.size(checked.bytes),
        "records": checked.records,
        "first_lsn": checked.first_lsn,
        "next_lsn": checked.next_lsn,
        "past_from": _past_from(data_folder(config, data_dir)),
    }
    if as_json:
        torn = checked.torn
        facts["torn"] = torn and {"file": torn.file, "offset": torn.offset, "bytes": torn.bytes}
        show.as_json(facts)
    else:
        show.details(facts)
    if checked.torn is not None:
        show.tell(
            f"{_torn(checked.torn)}: a server is writing there now, or the next start cuts it off. No record in it was "
            "acknowledged as durable."
        )


def _past_from(folder: Path) -> str | None:
    """From when on `replay` and `why --at` can answer."""
    from millrace.journal.past import Past

    try:
        return format_timestamp(Past(folder).moments()[0].at_us)
    except MillraceError:  # what is wrong with a checkpoint is not said of the journal
        return None


def show_records(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    first: Annotated[
        int | None, typer.Option("--from", min=1, metavar="LSN", help="Start at this record, by default the first.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Print at most N records.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per record.")] = False,
) -> None:
    """Print a line per record: its number (LSN), its bytes and the time when it was written. Changes nothing."""
    from millrace.journal.steps import described

    reader = JournalReader(journal_disk(config, data_dir))
    try:
        if not print_records(reader, first or reader.first_lsn, limit, as_json, described):
            show.tell(f"no records: the journal ends before LSN {reader.next_lsn}")
        show.flush()
    except BrokenPipeError:
        show.discard_output()
    finally:
        reader.close()


def print_records(
    reader: JournalReader, first: int, limit: int | None, as_json: bool, describe: Describe | None = None
) -> int:
    """A line per record, with a description of its contents if there is one; returns how many there were."""
    count = 0
    for record in islice(reader.records(first), limit):
        show.out(_json(record, describe) if as_json else _line(record, describe))
        count += 1
    return count


def _line(record: Record, describe: Describe | None) -> str:
    line = f"{record.lsn:>12}  {len(record.payload):>10}  {format_timestamp(record.time_us)}"
    return line if describe is None else f"{line}  {describe(record.payload)}"


def _json(record: Record, describe: Describe | None) -> str:
    facts: dict[str, Any] = {
        "lsn": record.lsn,
        "bytes": len(record.payload),
        "time": format_timestamp(record.time_us),
    }
    if describe is not None:
        facts["text"] = describe(record.payload)
    return show.compact(facts)


def trim(
    before: Annotated[
        int,
        typer.Option("--before", min=1, metavar="LSN", help="Remove segments whose records are all before this one."),
    ],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove whole segments from the start of the journal, never the last one. Refused while a server runs."""
    from millrace.cli import details
    from millrace.journal.checkpoints import Checkpoints
    from millrace.journal.keeping import NEEDED

    checkpoints = Checkpoints(data_folder(config, data_dir))
    complete = checkpoints.complete()
    needed = complete[-NEEDED:]
    if needed and before > needed[0] + 1:
        raise MillraceError(
            f"a start may need the records after {needed[0]}, the older of the newest two checkpoints: use --before "
            f"{needed[0] + 1} at the most"
        )
    journal = Journal.open(journal_disk(config, data_dir), create=False)
    try:
        starts = [segment.first_lsn for segment in journal.segments if segment.first_lsn <= before]
        for lsn in complete:
            if starts and lsn + 1 < starts[-1]:
                checkpoints.forget(lsn)  # first: the records after a checkpoint that is there are there, too
        removed = journal.trim(before)
        torn, first_lsn, next_lsn = journal.torn, journal.first_lsn, journal.next_lsn
    finally:
        journal.close()
    if torn is not None:
        show.tell(f"cut off {_torn(torn)}")
    amount = sum(segment.bytes for segment in removed)
    if as_json:
        show.as_json({"segments": len(removed), "bytes": amount, "first_lsn": first_lsn, "next_lsn": next_lsn})
    elif removed:
        show.tell(f"removed {len(removed)} segments ({details.size(amount)}): the journal starts at LSN {first_lsn}")
    else:
        show.tell(
            f"removed nothing: the journal starts at LSN {first_lsn}, in a segment that also has LSN {before} or later "
            "ones, or is the last"
        )


def _torn(torn: Torn) -> str:
    return f"an unfinished write of {torn.bytes} bytes at offset {torn.offset} of {torn.file}"


def journal_disk(config: Path | None, data_dir: Path | None) -> RealDisk:
    """The journal's folder, in the data directory of the options or the configuration."""
    return RealDisk(data_folder(config, data_dir) / JOURNAL_FOLDER)


def data_folder(config: Path | None, data_dir: Path | None) -> Path:
    """The data directory of the options or the configuration."""
    from millrace.run.config import load

    folder = load(config, {"server": {"data_dir": data_dir}}).server.data_dir
    if folder is None:
        raise MillraceError("this needs a data directory: name it with --data-dir, or the server's --config")
    return folder
