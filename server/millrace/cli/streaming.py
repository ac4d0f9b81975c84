"""`millrace feed` and `millrace tail`: the client on the TCP port, whose address the API tells."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli import show
from millrace.cli.link import Link, segment
from millrace.protocol.errors import MillraceError, Refuse
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.words import counted

if TYPE_CHECKING:
    from millrace.client import Client, Feed, ServerError
    from millrace.engine.plan import StreamDefinition
    from millrace.operators.batch import Batch
    from millrace.protocol import Schema

# With --rate, rows leave in portions of this many seconds.
PORTION_SECONDS: Final = 0.05
# The largest number that a row can have.
MOST: Final = 2**63 - 1
# What a shell reports of a command that Ctrl-C ended.
INTERRUPTED: Final = 130


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


def feed(
    link: Link,
    stream: Annotated[str, typer.Argument()],
    file: Annotated[str, typer.Argument(help="A file, or - for the standard input.")] = "-",
    format: Annotated[  # noqa: A002 - the option's name
        Format | None, typer.Option(help="What the file is; by its ending if not given.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Rows per second at most.")] = None,
) -> None:
    """Feed a stream from a file or the standard input."""
    from millrace.client import ConnectionLost, ServerError
    from millrace.offline.files import read_batches

    definition = _definition(link.get(f"streams/{segment(stream)}"))
    started = time.monotonic()
    with connected(link) as client, client.open(stream, schema=definition.schema) as opened, _bar(file) as advanced:
        first = opened.next_sequence
        try:
            for batch in _paced(read_batches(file, definition, advanced, format), rate):
                opened.send(batch.rows())
            opened.close()
        except ServerError as refused:
            raise _in_file(refused, file, first, opened) from None
        except ConnectionLost as lost:
            raise type(lost)(f"{lost.text} ({_reached(opened, first)})", code=lost.code) from None
        except Refuse as unfit:
            # What was sent stays sent: whoever goes on after mending the file must know how much that is.
            opened.flush()
            raise Refuse(f"{unfit.text} ({_fed(opened.acknowledged - first)})", code=unfit.code) from None
        except KeyboardInterrupt:
            show.tell(f"interrupted: {_reached(opened, first)}")
            raise typer.Exit(INTERRUPTED) from None
    seconds = time.monotonic() - started
    fed, late = opened.acknowledged - first, opened.late
    if link.as_json:
        counts = {"acknowledged": fed, "refused": opened.refused, "late": late}
        show.as_json({"stream": stream, "tuples": fed, **counts, "seconds": round(seconds, 3)})
    else:
        show.tell(f"fed {counted(fed, 'tuple')} to {stream} in {seconds:.1f} s{_late(stream, late)}")


def _late(stream: str, late: int | None) -> str:
    if not late:
        return ""
    verbs = "was late and is" if late == 1 else "were late and are"
    return f"; {late:,} of them {verbs} in no result (`millrace tail {stream}.late` reads late tuples)"


def _reached(opened: Feed, first: int) -> str:
    """How far an interrupted feed got."""
    sent, acknowledged = opened.next_sequence - first, opened.acknowledged - first
    verb = "was" if acknowledged == 1 else "were"
    text = f"{acknowledged:,} of {counted(sent, 'row')} read so far {verb} acknowledged"
    return text if sent == acknowledged else f"{text}; the others may or may not be in the stream"


def _in_file(refused: ServerError, file: str, first: int, opened: Feed) -> MillraceError:
    """What the server said of a row, with the row's place in the file instead of the one in its frame."""
    if refused.sequence is None or refused.row is None:
        return refused
    _settle(opened)
    before = refused.sequence - first
    fault = re.sub(r"^.*?\brow \d+(, |: )", "", refused.text)  # servers before 0.2 count from 0 in texts
    where = "the standard input" if file == "-" else file
    acknowledged = opened.acknowledged - first
    taken = acknowledged - opened.refused
    return Refuse(
        f"{where}, row {before + refused.row + 1}: {fault} ({_fed(before)}; a frame is taken whole or not at all). "
        f"{counted(acknowledged, 'row')} acknowledged: {taken:,} fed, {opened.refused:,} refused",
        code=refused.code,
    )


def _settle(opened: Feed) -> None:
    """Wait until the server has dealt with the frames that were under way when it refused one."""
    from millrace.client import ServerError

    refusals = True
    while refusals:
        try:
            opened.flush()
            refusals = False
        except ServerError as refused:
            refusals = refused.row is not None
        except MillraceError:
            return


def _fed(rows: int) -> str:
    """How much of a file is in the stream, for whoever goes on after mending it."""
    return f"its first {counted(rows, 'row')} {'was' if rows == 1 else 'were'} fed" if rows else "nothing was fed"


def tail(
    link: Link,
    query: Annotated[str, typer.Argument()],
    from_sequence: Annotated[
        int | None, typer.Option("--from", min=0, max=MOST, help="The first row's sequence number.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many rows.")] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="Show the time below which the rows are complete, too.")
    ] = False,
) -> None:
    """Print a query's rows as they come, a JSON object per line; with --json each with its query and number."""
    try:
        print_rows(link, query, from_sequence, limit, progress=progress)
    except (KeyboardInterrupt, BrokenPipeError):
        # What is still buffered is dropped: writing it could block for ever if whoever reads has stopped reading.
        show.nobody_reads()


def print_rows(
    link: Link,
    query: str,
    from_sequence: int | None,
    limit: int | None,
    *,
    progress: bool = False,
    follow: bool = True,
) -> None:
    """Print rows until there are `limit` of them. With `follow` across lost connections."""
    from millrace.client import ProgressTo

    left = limit
    with (
        connected(link, follow=follow) as client,
        client.subscribe(query, from_sequence=from_sequence, progress=progress, on_gap="continue") as subscription,
    ):
        first = subscription.next_sequence if from_sequence is None else from_sequence
        history = subscription.history
        show.tell(f"reading {query} from sequence {first}; Ctrl-C ends it")
        for batch in subscription.updates():
            if isinstance(batch, ProgressTo):
                _print_progress(link, query, batch.below_us)
                continue
            if batch.history != history:
                history = batch.history
                show.tell(_new_history(query, batch.sequence, history))
            rows = batch.dicts()[:left]
            for number, row in enumerate(rows, batch.sequence):
                readable = _readable(row, subscription.schema)
                said = _numbered(query, number, readable, history) if link.as_json else readable
                show.out(show.compact(said))
            show.flush()
            left = None if left is None else left - len(rows)
            if left == 0:
                break


def _numbered(query: str, number: int, row: dict[str, object], history: str | None) -> dict[str, object]:
    """A row as the server writes it in JSON lines; a server of an earlier version has no histories."""
    said: dict[str, object] = {"query": query, "seq": number, "row": row}
    return said if history is None else {**said, "history": history}


def _new_history(query: str, first: int, history: str | None) -> str:
    """What the rows that follow are, and what that means for those before."""
    name = "" if history is None else f" ({history})"
    return (
        f"{query} started again: a new history began{name}, and this is its sequence {first}; "
        "earlier sequence numbers mean other rows, and windows and joins started with empty state"
    )


def _tell_lost(error: BaseException | None) -> None:
    show.tell(f"{getattr(error, 'text', None) or error or 'the connection broke'}; trying to connect again")


def _print_progress(link: Link, query: str, below_us: int) -> None:
    """With --json a line among the rows, as the server says it to JSON lines; else talk, beside them."""
    if link.as_json:
        show.out(show.compact({"query": query, "progress": format_timestamp(below_us)}))
        show.flush()
    else:
        show.tell(f"complete up to {format_timestamp(below_us)}")


@contextmanager
def connected(link: Link, *, follow: bool = False) -> Iterator[Client]:
    """A client on the server's TCP port. There is one attempt, because a person is there to try again; only to `follow`
    it connects again after the connection broke."""
    from millrace.client import Backoff, Client, ServerError

    server = link.get("server")
    address = link.server or server["listen"]
    tls: Any = link.tls() if server["listen_tls"] else None
    try:
        client = Client(
            address,
            token=link.feed_token,
            tls=tls,
            name="millrace cli",
            reconnect=Backoff() if follow else None,
            on_lost=_tell_lost,
        )
    except ValueError as error:
        raise MillraceError(f"--server: {error}") from None
    except ServerError as refused:
        raise link.turned_away_from_streams(address) if refused.code == "unauthorised" else refused from None
    with client:
        yield client


def _definition(stream: dict[str, Any]) -> StreamDefinition:
    from millrace.engine.plan import StreamDefinition
    from millrace.protocol import Schema

    schema = Schema.from_data(stream["fields"])
    return StreamDefinition(stream["name"], schema, timestamps=stream["timestamps"], time=stream["time"])


def _paced(batches: Iterator[Batch], rate: float | None) -> Iterator[Batch]:
    """The rows at this rate at most."""
    if rate is None:
        yield from batches
        return
    portion = max(int(rate * PORTION_SECONDS), 1)
    due = time.monotonic()
    for batch in batches:
        for start in range(0, len(batch), portion):
            part = batch.slice(start, min(start + portion, len(batch)))
            time.sleep(max(due - time.monotonic(), 0))
            due = max(due, time.monotonic() - 1) + len(part) / rate
            yield part


@contextmanager
def _bar(file: str) -> Iterator[Any]:
    """A progress bar on stderr, in bytes read; nothing where stderr is no terminal."""
    import sys

    if not sys.stderr.isatty():
        yield lambda read: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    total = Path(file).stat().st_size if Path(file).is_file() else None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(file, total=total)
        yield lambda read: progress.advance(task, read)


def _readable(row: dict[str, object], schema: Schema) -> dict[str, object]:
    """Timestamps in ISO 8601, bytes in base64: as `millrace run` prints them."""
    from base64 import b64encode

    from millrace.protocol import Type, format_timestamp
    from millrace.server.writers import tombstone_or_row

    made = dict(row)
    for field in schema:
        value = row[field.name]
        if isinstance(value, int) and field.type is Type.TIMESTAMP:
            made[field.name] = format_timestamp(value)
        elif isinstance(value, bytes):
            made[field.name] = b64encode(value).decode()
    return tombstone_or_row(made) if schema.retracts else made
