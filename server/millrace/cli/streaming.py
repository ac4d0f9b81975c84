"""`millrace feed` and `millrace tail`: a client of the TCP port. The HTTP API reports that port's address."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from millrace.cli import show
from millrace.cli.link import CHOICE_SECONDS, Link
from millrace.cli.names import explain_unknown, request
from millrace.protocol.errors import MillraceError, Refuse
from millrace.protocol.timestamps import format_timestamp

if TYPE_CHECKING:
    from millrace.client import ArrowBatch, Client, Feed, RowBatch, ServerError, Subscription
    from millrace.engine.plan import StreamDefinition, Timestamps
    from millrace.offline.files import Promise
    from millrace.protocol import Schema
    from millrace.protocol.admin.server import ServerView
    from millrace.protocol.units import UnitName
    from millrace.values.batch import Batch, Row

# With --rate, rows leave in portions of this many seconds.
PORTION_SECONDS: Final = 0.05
# The largest sequence number.
MAX_SEQUENCE: Final = 2**63 - 1
# The exit code that shells use for a command that Ctrl-C ended.
INTERRUPTED: Final = 130
# Nothing is stated about how often the rows are read.
NO_READS: Final[Mapping[str, Any]] = {}


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


def feed(
    link: Link,
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, or - for standard input.")] = "-",
    format: Annotated[  # noqa: A002 - the option's name
        Format | None, typer.Option(help="The file's format. Its ending decides by default.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="ROWS", help="Send at most this many rows per second.")
    ] = None,
    reconnect: Annotated[
        bool,
        typer.Option(
            "--reconnect/--no-reconnect",
            help="Reconnect for about two minutes and continue with the first row that is not acknowledged.",
        ),
    ] = True,
) -> None:
    """Feed a stream from a file or standard input.

    Prints how many rows the server acknowledged and how many were late. After an interruption it prints how far the
    feed got. A line of JSON {"punctuation": TIME} promises that no later row is earlier; with "where" and the values of
    the stream's punctuation_key it is about one group.
    """
    from millrace.offline.files import Promise, has_promises, read_feed

    definition = _definition(request(link, "GET", "stream", stream)[0])
    started = time.monotonic()
    progress = _Progress(stream, file, format, promises=has_promises(definition, "jsonl"))
    announce = progress.connection_lost if reconnect else None
    with (
        connected(link, on_lost=announce) as client,
        client.open(stream, schema=definition.schema) as opened,
        _bar(file) as advanced,
    ):
        progress.opened = opened
        with _interruptions(progress):
            for item in _paced(read_feed(file, definition, advanced, format), rate):
                if isinstance(item, Promise):
                    opened.punctuate(format_timestamp(item.time_us), item.where)
                else:
                    opened.send(_wire_rows(item, definition))
            opened.close()
    seconds = time.monotonic() - started
    acknowledged, late = progress.acknowledged, opened.late
    if link.as_json:
        counts = {"acknowledged": acknowledged, "refused": opened.refused, "late": late}
        show.as_json({"stream": stream, "tuples": acknowledged, **counts, "seconds": round(seconds, 3)})
    else:
        show.tell(f"fed {_rows(acknowledged, 'tuple')} to {stream} in {seconds:.1f} s{progress.late_words(late)}")


class _Progress:
    """How far one file got into its stream. `opened` is the feed, once there is one."""

    def __init__(
        self,
        stream: str,
        file: str,
        format: str | None,  # noqa: A002 - the option's name
        *,
        promises: bool,
    ) -> None:
        self._promises = promises
        self._stream = stream
        self._file = file
        self._format = format
        self._opened: Feed | None = None
        self._first = 0
        self._losses = 0

    @property
    def opened(self) -> Feed:
        assert self._opened is not None
        return self._opened

    @opened.setter
    def opened(self, opened: Feed) -> None:
        self._opened, self._first = opened, opened.next_sequence

    @property
    def acknowledged(self) -> int:
        return self.opened.acknowledged - self._first

    def connection_lost(self, error: BaseException | None) -> None:
        """Announce that the client reconnects."""
        self._losses += 1
        so_far = "" if self._opened is None else f" after {_rows(self.acknowledged, 'acknowledged row')}"
        show.tell(f"connection lost{so_far} ({_reason(error)}); reconnecting for up to two minutes")

    def late_words(self, late: int | None) -> str:
        if not late:
            return ""
        since = " since the last reconnect" if self._losses else ""
        hint = f"`millrace tail {self._stream}.late` prints late tuples"
        return f"; {_rows(late, 'tuple')} late{since}, in no result ({hint})"

    def reached(self) -> str:
        """How far an interrupted feed got: `1,423 of 3,000 rows acknowledged`."""
        from millrace.offline.files import count_rows

        sent, acknowledged = self.opened.next_sequence - self._first, self.acknowledged
        total = count_rows(self._file, self._format, promises=self._promises)
        rows = f"{_rows(sent)} read so far" if total is None else _rows(total)
        text = f"{acknowledged:,} of {rows} acknowledged"
        unknown = sent - acknowledged
        return f"{text}; {_rows(unknown, 'further row')} may be in the stream, too" if unknown else text

    def of_file(self, refused: ServerError) -> MillraceError:
        """The server's refusal of a row, with the row's place in the file instead of its place in a frame."""
        if refused.sequence is None or refused.row is None:
            return MillraceError(f"{refused.text} ({self.reached()})", code=refused.code)
        _settle(self.opened)
        before = refused.sequence - self._first
        text = re.sub(r"^.*?\brow \d+(, |: )", "", refused.text)  # the row of the frame
        where = "standard input" if self._file == "-" else self._file
        accepted = self.acknowledged - self.opened.refused
        return Refuse(
            f"{where}, row {before + refused.row + 1}: {text} ({first_rows(before)}; "
            f"the server accepts or refuses a frame as a whole). {_rows(self.acknowledged)} acknowledged: "
            f"{accepted:,} fed, {self.opened.refused:,} refused",
            code=refused.code,
        )

    def of_reading(self, error: Refuse) -> MillraceError:
        """A row of the file that does not fit, with the number of rows that were fed before it."""
        self.opened.flush()
        return Refuse(f"{error.text} ({first_rows(self.acknowledged)})", code=error.code)


@contextmanager
def _interruptions(progress: _Progress) -> Iterator[None]:
    """Every way in which a feed may end early reports how far it got."""
    from millrace.client import ConnectionLost, ServerError

    try:
        yield
    except ServerError as refused:
        raise progress.of_file(refused) from None
    except ConnectionLost as lost:
        raise type(lost)(f"{lost.text} ({progress.reached()})", code=lost.code) from None
    except Refuse as error:
        raise progress.of_reading(error) from None
    except KeyboardInterrupt:
        show.tell(f"interrupted: {progress.reached()}")
        raise typer.Exit(INTERRUPTED) from None


def _settle(opened: Feed) -> None:
    """Wait until the server has answered the frames that were on their way when it refused one."""
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


def first_rows(rows: int) -> str:
    """How much of a file is in the stream: the user continues from there after correcting the file."""
    return f"its first {_rows(rows)} {'was' if rows == 1 else 'were'} fed" if rows else "nothing was fed"


def tail(
    link: Link,
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY", help="A query, STREAM.late for late tuples, or millrace.changes for applied changes."
        ),
    ],
    from_sequence: Annotated[
        int | None,
        typer.Option("--from", min=0, max=MAX_SEQUENCE, metavar="SEQ", help="The sequence number of the first row."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many rows.")] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="Also print the time below which the rows are complete.")
    ] = False,
    refresh: Annotated[
        str | None,
        typer.Option(metavar="INTERVAL", help="How often you look: LATEST USING DEADLINE serves keys for that."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="JSON", help="A key that you look at so often, with --refresh; repeatable. Default: all."),
    ] = None,
) -> None:
    """Print a query's rows as they arrive, one JSON object per line.

    With --json each line also has the query, the row's sequence number and its history. Tail reconnects when the server
    restarts.
    """
    from millrace.client import ServerError

    reads = _reads(refresh, key or [])
    try:
        print_rows(link, query, from_sequence, limit, progress=progress, reads=reads)
    except ServerError as refused:
        if refused.code != "unknown_query":
            raise
        raise explain_unknown(link, "query", query, refused.text) from None
    except (KeyboardInterrupt, BrokenPipeError):
        # Buffered output is dropped: writing it could block forever if the reader has stopped reading.
        show.discard_output()


def _reads(refresh: str | None, keys: Sequence[str]) -> Mapping[str, Any]:
    """How often the user looks, as the client's arguments. A key is JSON, or text that is none; an array per key of
    several columns."""
    if refresh is None:
        if keys:
            raise typer.BadParameter("expected --refresh with it", param_hint="--key")
        return NO_READS
    try:
        from millrace.values.intervals import parse_duration

        refresh_us = parse_duration(refresh)
    except Refuse as refused:
        raise typer.BadParameter(refused.text, param_hint="--refresh") from None
    if refresh_us < 1:
        raise typer.BadParameter(f"expected an interval above 0, got {refresh!r}", param_hint="--refresh")
    return {"refresh_us": refresh_us, "keys": [_key(text) for text in keys] or None}


def _key(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


def print_rows(
    link: Link,
    query: str,
    from_sequence: int | None,
    limit: int | None,
    *,
    progress: bool = False,
    follow: bool = True,
    reads: Mapping[str, Any] = NO_READS,
) -> None:
    """Print at most `limit` rows. With `follow` it reconnects after the connection is lost."""
    from millrace.client import ProgressTo

    left = limit
    with (
        connected(link, on_lost=_announce_loss if follow else None) as client,
        client.subscribe(
            query, from_sequence=from_sequence, progress=progress, on_gap="continue", **reads
        ) as subscription,
    ):
        expected = subscription.next_sequence if from_sequence is None else from_sequence
        history = subscription.history
        show.tell(f"reading {query} from sequence {expected}; Ctrl-C ends it")
        for batch in subscription.updates():
            if isinstance(batch, ProgressTo):
                _print_progress(link, query, batch.below_us)
                continue
            if batch.history != history:
                history = batch.history
                show.tell(_new_history(query, batch.sequence, history))
            elif expected is not None and batch.sequence > expected:
                show.tell(_missed(query, expected, batch.sequence))
            printed = _print_batch(link, query, batch, subscription, left)
            expected = batch.sequence + len(batch)
            left = None if left is None else left - printed
            if left == 0:
                break


def _print_batch(
    link: Link, query: str, batch: RowBatch | ArrowBatch, subscription: Subscription, limit: int | None
) -> int:
    """Print at most `limit` rows; how many there were."""
    rows = batch.dicts()[:limit]
    for sequence, row in enumerate(rows, batch.sequence):
        readable = _readable(row, subscription.schema)
        line = _numbered(query, sequence, readable, batch.history) if link.as_json else readable
        show.out(show.compact(line))
    show.flush()
    return len(rows)


def _numbered(query: str, sequence: int, row: dict[str, object], history: str | None) -> dict[str, object]:
    """A row as the server writes it in JSON lines; a server of an earlier version has no histories."""
    line: dict[str, object] = {"query": query, "seq": sequence, "row": row}
    return line if history is None else {**line, "history": history}


def _new_history(query: str, sequence: int, history: str | None) -> str:
    """The meaning of the rows that follow, and of those before."""
    name = "" if history is None else f" {history}"
    return (
        f"{query} restarted: its new history{name} continues here at sequence {sequence}; "
        "earlier sequence numbers mean other rows, and windows and joins started with empty state"
    )


def _missed(query: str, expected: int, sequence: int) -> str:
    last = sequence - 1
    span = f"sequence {expected}" if last == expected else f"sequence {expected} to {last}"
    return f"missed {_rows(sequence - expected)} of {query} ({span}): the server no longer retains them"


def _announce_loss(error: BaseException | None) -> None:
    show.tell(f"connection lost ({_reason(error)}); reconnecting for up to two minutes")


def _reason(error: BaseException | None) -> str:
    return str(getattr(error, "text", None) or error or "the server closed it")


def _rows(count: int, noun: str = "row") -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _print_progress(link: Link, query: str, below_us: int) -> None:
    """With --json a line among the rows, as in the server's JSON lines; otherwise a line on standard error."""
    if link.as_json:
        show.out(show.compact({"query": query, "progress": format_timestamp(below_us)}))
        show.flush()
    else:
        show.tell(f"complete up to {format_timestamp(below_us)}")


@contextmanager
def connected(link: Link, *, on_lost: Callable[[BaseException | None], None] | None = None) -> Iterator[Client]:
    """A client on the server's TCP port, and on its standbys' if those are known. With `on_lost` it reconnects after
    each loss of the connection, which it announces there. The first connection is tried once."""
    from millrace.client import Backoff, Client, ServerError
    from millrace.protocol.admin.server import ServerView

    server = link.view(ServerView, "server")
    addresses = link.server.split(",") if link.server else _listening(link, server)
    tls: Any = link.tls() if server.listen_tls else None
    try:
        client = Client(
            addresses,
            token=link.feed_token,
            tls=tls,
            name="millrace cli",
            reconnect=None if on_lost is None else Backoff(),
            on_lost=on_lost,
        )
    except ValueError as error:
        raise MillraceError(f"--server: {error}") from None
    except ServerError as refused:
        raise link.turned_away_from_streams(addresses[0]) if refused.code == "unauthorised" else refused from None
    with client:
        yield client


def _listening(link: Link, server: ServerView) -> list[str]:
    """The TCP ports of the servers that a link names, that of the leading one first."""
    from millrace.protocol.admin.server import ServerView

    found = [server.listen]
    for address in link.addresses if len(link.addresses) > 1 else ():
        with suppress(MillraceError):  # it may come back later, at another port
            found.append(link.at(address).within(CHOICE_SECONDS).view(ServerView, "server").listen)
    return list(dict.fromkeys(found))


def _definition(answer: Any) -> StreamDefinition:
    from millrace.engine.plan import StreamDefinition
    from millrace.protocol import Schema
    from millrace.protocol.admin.data import from_data
    from millrace.protocol.admin.streams import StreamView

    stream = from_data(StreamView, answer)
    return StreamDefinition(
        stream.name,
        Schema.from_data(stream.fields),
        timestamps=cast("Timestamps", stream.timestamps),
        time=stream.time,
        time_unit=cast("UnitName", stream.time_unit or "us"),
        punctuation_key=tuple(stream.punctuation_key or ()),
    )


def _wire_rows(batch: Batch, stream: StreamDefinition) -> Sequence[Row]:
    """The rows as a feed sends them: times as text if the stream's integers are not microseconds."""
    if stream.time_unit == "us" or stream.time_position is None:
        return batch.rows()
    import numpy as np

    columns = batch.lists()
    columns[stream.time_position] = np.datetime_as_string(batch.ts.astype("datetime64[us]")).tolist()
    return list(zip(*columns, strict=True))


def _paced(batches: Iterator[Batch | Promise], rate: float | None) -> Iterator[Batch | Promise]:
    """The rows, at most at this rate."""
    from millrace.offline.files import Promise

    if rate is None:
        yield from batches
        return
    portion = max(int(rate * PORTION_SECONDS), 1)
    due = time.monotonic()
    for batch in batches:
        if isinstance(batch, Promise):
            yield batch
            continue
        for start in range(0, len(batch), portion):
            part = batch.slice(start, min(start + portion, len(batch)))
            time.sleep(max(due - time.monotonic(), 0))
            due = max(due, time.monotonic() - 1) + len(part) / rate
            yield part


@contextmanager
def _bar(file: str) -> Iterator[Any]:
    """A progress bar in bytes read, if stderr is a terminal."""
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

    from millrace.formats.writers import tombstone_or_row
    from millrace.protocol import Type, format_timestamp

    readable = dict(row)
    for field in schema:
        value = row[field.name]
        if isinstance(value, int) and field.type is Type.TIMESTAMP:
            readable[field.name] = format_timestamp(value)
        elif isinstance(value, bytes):
            readable[field.name] = b64encode(value).decode()
    return tombstone_or_row(readable) if schema.retracts else readable
