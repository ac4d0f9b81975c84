"""The daemon's configuration: a TOML file, `MILLRACE_` variables with `__` between section and key, and flags.

Rule: flags win over the environment, the environment over the file, the file over the defaults; an unknown
setting is refused everywhere. `docs/configuration.md` is printed from this file (`reference`), and a test
compares the two.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
)

from millrace.engine.producers import PRODUCERS_KEPT
from millrace.engine.scheduler.table import Strategy
from millrace.http.hosts import host_of
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.frames import FRAME_BYTES, LARGEST_LIMIT
from millrace.values.intervals import parse_duration
from millrace.values.retention import parse_bytes, parse_keep

PREFIX: Final = "MILLRACE_"
# The paths of the server section that are folders; all others are files that must exist, except for the file of tokens:
# `millrace token create` makes it.
FOLDERS: Final = ("data_dir", "history_dir", "sink_dir")
# The catalog's file in `data_dir`.
CATALOG: Final = "catalog.sqlite"
# The file of tokens in `data_dir`.
TOKENS: Final = "tokens.json"
# The files of the first tokens in a new `data_dir`: of an admin, and one that only reads.
FIRST_TOKENS: Final = ("admin.token", "prometheus.token")
# What a new `data_dir` may have besides: the folder of a file system for lost files.
OF_THE_SYSTEM: Final = "lost+found"
DELIMITER: Final = "__"
# The usual HTTP port.
ADMIN_PORT: Final = 7421
# A server without streams takes 100 MB, and one that is loaded needs some for its work.
LEAST_MEMORY: Final = 128 * 2**20
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?%")
# A shorter lease would run out while a loaded machine answers.
LEAST_LEASE_US: Final = 1_000_000


class ConfigError(MillraceError):
    """A configuration that cannot be used; one line per problem."""

    code = "configuration"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Address(NamedTuple):
    """Where to listen. Port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(value: object) -> Address:
    """`HOST:PORT`, or `[HOST]:PORT` for IPv6."""
    if isinstance(value, Address):
        return value
    host, colon, port = str(value).rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"expected HOST:PORT with a port up to 65535, such as 127.0.0.1:7420, got {value!r}")
    if ":" in host and not bracketed:
        raise ValueError(f"expected an IPv6 address in brackets, such as [::1]:7420, got {value!r}")
    return Address(host[1:-1] if bracketed else host, int(port))


class Where(NamedTuple):
    """The HTTP port of another server."""

    scheme: str
    address: Address

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


def parse_where(text: str) -> Where:
    """`HOST`, `HOST:PORT` or a URL. Without a scheme it is https, and on this machine http."""
    parts, host, port = None, None, None
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        pass
    more = parts is None or parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None
    if not host or more or parts is None or parts.scheme not in ("", "http", "https"):
        raise ValueError(f"expected HOST:PORT or a URL, such as https://10.0.0.1:{ADMIN_PORT}, got {text!r}")
    address = Address(host, port or ADMIN_PORT)
    return Where(parts.scheme or ("http" if address.is_loopback else "https"), address)


def _check_where(text: str) -> str:
    parse_where(text)
    return text


AddressField = Annotated[Address, BeforeValidator(parse_address), PlainSerializer(str)]


def _check_strategy(text: str) -> str:
    try:
        return str(Strategy.parse(text))
    except Refuse as error:
        raise ValueError(error.text) from None


def _check_interval(text: str) -> str:
    try:
        us = parse_duration(text)
    except Refuse as error:
        raise ValueError(error.text) from None
    if us < 0:
        raise ValueError(f"expected a time of 0 or more, got {text!r}")
    return text


Interval = Annotated[str, AfterValidator(_check_interval)]


def _check_size(text: str) -> str:
    try:
        parse_bytes(text)
    except Refuse as error:
        raise ValueError(error.text) from None
    return text


Size = Annotated[str, AfterValidator(_check_size)]


def _check_memory(text: str) -> str:
    """A size or a share."""
    found = _SHARE.fullmatch(text)
    if found is not None:
        if not 0 < float(found[1]) <= 100:
            raise ValueError(f"expected a share above 0 % and up to 100 %, got {text!r}")
        return text
    try:
        size = parse_bytes(text)
    except Refuse:
        expected = "a size such as '512 MB', or a share of the system's limit such as '60 %'"
        raise ValueError(f"expected {expected}, got {text!r:.60}") from None
    if size < LEAST_MEMORY:
        raise ValueError(f"expected at least {LEAST_MEMORY >> 20} MiB, because an idle server needs 100, got {text!r}")
    return text


MemoryField = Annotated[str, AfterValidator(_check_memory)]


def _check_keep(text: str) -> str:
    try:
        parse_keep(text)
    except Refuse as error:
        raise ValueError(error.text) from None
    return text


KeepField = Annotated[str, AfterValidator(_check_keep)]


def _check_lease(text: str) -> str:
    if parse_duration(_check_interval(text)) < LEAST_LEASE_US:
        raise ValueError(f"expected at least 1 second, got {text!r}")
    return text


LeaseField = Annotated[str, AfterValidator(_check_lease)]


def _split_paths(value: object) -> object:
    """A list, or the paths of an environment variable with commas between."""
    return [path.strip() for path in value.split(",") if path.strip()] if isinstance(value, str) else value


Paths = Annotated[tuple[Path, ...], BeforeValidator(_split_paths)]


def _split_hosts(value: object) -> object:
    """A list, or the names of an environment variable with commas between."""
    return [name for name in re.split(r"[,\s]+", value) if name] if isinstance(value, str) else value


def _check_host(name: str) -> str:
    """The host alone: no scheme, port or pattern."""
    bare = f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name
    if host_of(bare) is None or (":" in bare and not bare.endswith("]")):
        expected = "a host name without scheme, port or '*', such as millrace.example.org"
        raise ValueError(f"expected {expected}, got {name!r}")
    return bare


HostNames = Annotated[tuple[Annotated[str, AfterValidator(_check_host)], ...], BeforeValidator(_split_hosts)]


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", validate_default=True, frozen=True)


class ServerSection(Section):
    """Addresses, access, and the folders for persistent data."""

    listen: AddressField = Field(
        default=Address("127.0.0.1", 7420), description="Address of the TCP port for feeds and subscribers."
    )
    admin: AddressField = Field(
        default=Address("127.0.0.1", 7421), description="Address of the HTTP port: API, metrics, console."
    )
    data_dir: Path | None = Field(
        default=None,
        description="Folder for the catalog (statements, strategies, paused queries) and `addresses.json`. "
        "Without it the server keeps everything in memory: streams and queries are lost when it ends.",
    )
    history_dir: Path | None = Field(
        default=None,
        description="Folder for the history of streams (history.md). Default: `history` inside `data_dir`.",
    )
    sink_dir: Path | None = Field(
        default=None,
        description="Folder that sinks write to; their relative paths start here. Default: `sinks` inside `data_dir`, "
        "or the working directory without `data_dir`.",
    )
    allow_paths: Paths = Field(
        default=(),
        description="More folders that sinks may write to, as absolute paths, separated by commas in the environment. "
        "Sinks can never write to the server's own files.",
    )
    archive_file_bytes: int = Field(
        default=64 * 2**20,
        ge=2**16,
        le=2**30,
        description="A stream's rows are written to a file of its history when they take this many bytes in memory. "
        "The file itself is smaller.",
    )
    archive_file_age: Interval = Field(
        default="1 minute", description="Maximum time before a row is in a file of the stream's history."
    )
    archive_waiting_bytes: int = Field(
        default=256 * 2**20,
        ge=2**16,
        le=2**40,
        description="Bytes of rows per stream that may wait for a slow or failing disk. Above this limit the stream's "
        "feeds get no new credit.",
    )
    auth: Literal["token", "off"] | None = Field(
        default=None,
        description="Whether clients must send a token. `off`: never, on loopback addresses alone. Default: `token` "
        "for a new data directory, in which the server then creates `admin.token` and `prometheus.token`, and wherever "
        "there is a token; otherwise `off`.",
    )
    tokens_file: Path | None = Field(
        default=None,
        description="File of the tokens that `millrace token` creates, with their roles. Default: `tokens.json` inside "
        "`data_dir`. Where it is set or exists, clients of both ports must send a token.",
    )
    token_file: Path | None = Field(
        default=None,
        description="File whose first line is a token with the role admin, for both ports. Clients must send it, or a "
        "token of `tokens_file`.",
    )
    tls_certificate: Path | None = Field(
        default=None, description="PEM file with the certificate chain, for both ports."
    )
    tls_key: Path | None = Field(default=None, description="PEM file with the certificate's private key.")
    tls_client_ca: Path | None = Field(
        default=None,
        description="PEM file with the authority of client certificates, for both ports. A client whose certificate "
        "has a name of `millrace token create --certificate` needs no token. Certificates of other authorities are "
        "refused.",
    )
    admin_token_file: Path | None = Field(
        default=None, description="The same for the HTTP port alone; `token_file` is then for the other port alone."
    )
    admin_tls_certificate: Path | None = Field(default=None, description="A separate certificate for the HTTP port.")
    admin_tls_key: Path | None = Field(default=None, description="The private key of `admin_tls_certificate`.")
    hosts: HostNames = Field(
        default=(),
        description="Host names that clients without the token use for the HTTP port, such as the service name that "
        'Prometheus scrapes: `["millrace.example.org"]`, separated by commas in the environment. Loopback names, the '
        "address of the connection, and requests with the token need no entry.",
    )
    functions: str | None = Field(
        default=None, description="Name of a Python module with functions and aggregates for SQL (functions.md)."
    )
    memory: MemoryField = Field(
        default="60 %",
        description="Budget for everything that the server has in memory: `512 MB`, or a share of the memory of the "
        "machine or the cgroup. When it is nearly used up, feeds wait, then rows that may be dropped are dropped, "
        "then the query that grows most fails ([more](guides/memory-and-overload.md)). The rest is for checkpoints and "
        "other programs.",
    )
    drain_seconds: float = Field(
        default=10.0, ge=0, le=3600, description="Maximum time that SIGTERM waits for queued work and slow subscribers."
    )


class LimitsSection(Section):
    """What a client may use. The server checks these limits before it allocates memory."""

    frame_bytes: int = Field(
        default=FRAME_BYTES, ge=1024, lt=LARGEST_LIMIT, description="Largest frame, and largest JSON line, in bytes."
    )
    connections: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of open connections of feeds and subscribers; more are refused.",
    )
    admin_connections: int = Field(
        default=1_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of open connections to the HTTP port. Above this limit the server closes the "
        "oldest idle one; a further one is refused if all wait for an answer.",
    )
    unauthenticated_connections: int = Field(
        default=1_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of connections of feeds and subscribers before authentication. Above this limit "
        "the server closes the oldest of them.",
    )
    on_slow: Literal["wait", "drop_oldest", "disconnect", "latest"] = Field(
        default="disconnect",
        description="Policy for a subscriber that is `slow_limit` rows late. `wait`: the feeds of the query's streams "
        "wait until it has caught up, and no row is lost. `drop_oldest`: its oldest rows are dropped. `disconnect`: "
        "its subscription ends. `latest`: the subscriber of an update stream gets the newest row of each key, and "
        "other queries' feeds wait. Sinks set it in their WITH options.",
    )
    slow_limit: int = Field(
        default=100_000,
        ge=1,
        le=2**31,
        description="Undelivered rows of a subscriber at which `on_slow` applies. Retained rows with which it starts "
        "do not count.",
    )
    slow_bytes: int = Field(
        default=64 * 2**20,
        ge=2**16,
        le=2**40,
        description="Bytes in memory of such rows at which `on_slow` applies; the limit that is reached first counts.",
    )
    retained_tuples: int = Field(
        default=10_000,
        ge=0,
        le=2**31,
        description="Newest rows of each query that are retained for subscribers that start at an earlier sequence "
        "number. Rows that wait for a slow subscriber or sink do not count.",
    )
    retained_bytes: int = Field(
        default=32 * 2**20,
        ge=0,
        le=2**40,
        description="Maximum bytes in memory of the retained rows of a query. With large rows the server retains fewer "
        "than `retained_tuples`.",
    )
    write_buffer_bytes: int = Field(
        default=262_144,
        ge=4096,
        le=2**30,
        description="Bytes in the write buffer of a socket at which its subscriptions wait.",
    )
    idle_seconds: float = Field(
        default=0, ge=0, description="Close a connection after this time without input; 0 means never."
    )
    max_ahead: Interval = Field(
        default="1 day",
        description="How far a tuple's time may be ahead of the server's clock; a frame with a later tuple is refused. "
        "Default for streams without the option `max_ahead`.",
    )
    producers_kept: int = Field(
        default=PRODUCERS_KEPT,
        ge=1,
        le=10_000_000,
        description="Producers of each stream whose next sequence number is kept. With more, the server forgets those "
        "without a connection that have sent nothing for the longest time.",
    )
    producers_kept_for: Interval = Field(
        default="30 days",
        description="How long the server keeps the next sequence number of a producer without a connection that sends "
        "nothing. It is forgotten when another producer of the stream sends something.",
    )

    sql_characters: int = Field(
        default=1_000_000, ge=1_000, le=1_000_000, description="Characters of the SQL in one request."
    )
    sql_tokens: int = Field(
        default=4_000,
        ge=100,
        le=1_000_000,
        description="Words, signs and literals in one statement; four constants in `IN (...)` count as one. All "
        "statements of a request together may have 25 times as many. Planning takes about 20 ms per thousand, also of "
        "a statement that is refused at its end.",
    )
    sql_waiting: int = Field(
        default=16,
        ge=1,
        le=1_000,
        description="Maximum number of requests with SQL that are being planned or wait for planning; more are "
        "answered with 503 and `Retry-After`.",
    )
    sql_depth: int = Field(
        default=100,
        ge=10,
        le=100,
        description="Nesting of parentheses, CASEs and signs in a statement.",
    )


class ResultsSection(Section):
    """Rows of queries on disk, in `data_dir`."""

    max: Size = Field(
        default="4 GB",
        description="Maximum size on disk of the retained rows of all queries together; the oldest go first. How much "
        "of a query is retained is its option `retain`.",
    )
    waiting_bytes: int = Field(
        default=32 * 2**20,
        ge=2**20,
        le=2**40,
        description="Bytes in memory of rows that wait to be written to disk, above which feeds wait.",
    )


class EngineSection(Section):
    """How the engine runs."""

    budget: int = Field(
        default=65_536,
        ge=1,
        le=2**31,
        description="Maximum number of tuples that operators read in one step, before the server handles sockets "
        "again. The server reads fewer where a step would take longer than 10 ms.",
    )
    credit: int = Field(
        default=262_144, ge=1, le=2**31, description="Tuples that a feed may send before operators have read them."
    )
    credit_bytes: int = Field(
        default=64 * 2**20,
        ge=2**16,
        le=2**40,
        description="Bytes in memory of such tuples. A feed gets new credit when it has used a quarter of either "
        "limit. The server does not read a connection while one of its feeds has used all of these bytes.",
    )
    most_queued: int = Field(
        default=1_048_576,
        ge=1,
        description="Tuples queued in a component above which its feeds get no new credit.",
    )
    most_queued_bytes: int = Field(
        default=256 * 2**20,
        ge=2**16,
        le=2**40,
        description="Bytes in memory of such tuples above which the component's feeds get no new credit.",
    )
    strategy: Annotated[str, AfterValidator(_check_strategy)] = Field(
        default="dfs", description="Strategy of new components: dfs, bfs, rr or chain, also with (k)."
    )
    threads: int = Field(
        default=1,
        ge=0,
        le=2,
        description="Threads for tuples: with 2, operators work in a separate thread while the server reads and "
        "decodes further tuples. 0: 2 if the process may use several cores, otherwise 1. Rows do not depend on it.",
    )
    grace: Interval = Field(
        default="0 seconds",
        description="How long the server waits for a feed whose connection broke, so that it can come back and "
        "continue. Default for streams without the option `grace`.",
    )


class LogSection(Section):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The lowest level that is logged."
    )
    format: Literal["console", "json"] = Field(default="console", description="Lines for people, or JSON objects.")


class JournalSection(Section):
    """What survives of a server with a data directory, and when its clients learn that it does."""

    sync: Literal["always", "10 ms", "off"] = Field(
        default="always",
        description="When rows and acknowledgements leave. `always`: when their step is synced to the disk, so a power "
        "cut loses nothing that anybody has received. `10 ms`: when it is written to the journal, which survives "
        "`kill -9`; a power cut may lose the last 10 ms. `off`: the same, and the system decides when it syncs.",
    )
    checkpoint_bytes: int = Field(
        default=256 * 2**20,
        ge=2**20,
        description="Bytes of journal after which the server makes a checkpoint: a start replays about so many at the "
        "most.",
    )
    checkpoint_seconds: int = Field(
        default=300, ge=1, description="Seconds after which the server makes a checkpoint, unless nothing has happened."
    )
    keep: KeepField = Field(
        default="1 hour | 256 MB",
        description="How much of the past `millrace replay` and `millrace why --at` can reach, beyond what a start "
        "needs: a time, a size on disk, both (whichever is less), or `none`. It goes first when the disk fills.",
    )
    follower: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether a second process follows the journal, writes the checkpoints and compares its state with "
        "the server's. It needs as much memory as the server's state and, at the lowest priority, about as much "
        "processor time. `auto`: when checkpoints have 64 MB or more, and `server.memory` holds twice the state.",
    )


class StandbySection(Section):
    """A [standby](howto/standby.md) and its primary: the server to follow, and how far the primary depends on it."""

    follow: Annotated[str, AfterValidator(_check_where)] | None = Field(
        default=None,
        description="The HTTP port of the server that this one follows: `https://HOST:7421`. Without a scheme it is "
        "https, and http for this machine. A data directory that was promoted is not affected.",
    )
    token_file: Path | None = Field(
        default=None, description="File whose first line is the token of that HTTP port. Default: this server's own."
    )
    ca_file: Path | None = Field(
        default=None, description="PEM file with the certificate authority of that HTTP port. Default: the system's."
    )
    keep: Size = Field(
        default="1 GB",
        description="At the server that is followed: how much of the journal waits for a standby that lags or is away. "
        "A standby that lags more must copy the data directory again.",
    )
    lease: LeaseField | None = Field(
        default=None,
        description="How long this server continues without an answer of its standby. Afterwards it emits, "
        "acknowledges and changes nothing until the standby answers, and a restart waits for the standby, too. A "
        "promotion waits until the lease has expired, so two servers never emit at once. Default: no lease.",
    )
    confirm: bool = Field(
        default=False,
        description="Whether rows and acknowledgements wait until the standby has their step on its disk, so that a "
        "promotion loses nothing. Without the standby the server then emits nothing.",
    )


class Settings(Section):
    """Everything that can be set."""

    server: ServerSection = ServerSection()
    limits: LimitsSection = LimitsSection()
    results: ResultsSection = ResultsSection()
    engine: EngineSection = EngineSection()
    journal: JournalSection = JournalSection()
    standby: StandbySection = StandbySection()
    log: LogSection = LogSection()

    _path: Path | None = PrivateAttr(default=None)

    @property
    def path(self) -> Path | None:
        """Where the file is, if one was read."""
        return self._path


# -- loading -----------------------------------------------------------------------------------------------------------


def load(path: Path | None = None, flags: Mapping[str, Mapping[str, Any]] | None = None) -> Settings:
    """The effective configuration, checked as far as possible without starting; ConfigError names every problem."""
    settings, problems = _valid(path, flags)
    problems += [*_contradictions(settings), *_impossible_standby(settings), *_missing_journal(settings)]
    if problems:
        raise ConfigError(problems)
    return settings


def read(path: Path | None = None, flags: Mapping[str, Mapping[str, Any]] | None = None) -> Settings:
    """The effective configuration. Each setting is valid, but a server may not be able to start with it yet."""
    settings, problems = _valid(path, flags)
    if problems:
        raise ConfigError(problems)
    return settings


def _valid(path: Path | None, flags: Mapping[str, Mapping[str, Any]] | None) -> tuple[Settings, list[str]]:
    """Settings that are valid one by one, and the variables that are no setting."""
    data = _read(path) if path is not None else {}
    problems = list(_unknown_variables(os.environ))
    try:
        settings = Settings.model_validate(_merged(data, _variables(os.environ), flags or {}))
    except ValidationError as error:
        raise ConfigError(problems + [_line(item, path, data) for item in error.errors()]) from None
    settings._path = path
    return settings, problems


def _merged(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of all sources by section: a later source wins, except for None. Whatever is not a section stays, so
    that it is refused."""
    merged: dict[str, Any] = {}
    for source in sources:
        for section, keys in source.items():
            known = merged.setdefault(section, {} if isinstance(keys, Mapping) else keys)
            if isinstance(known, dict):
                known.update({key: value for key, value in keys.items() if value is not None})
    return merged


def _variables(environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """`MILLRACE_SERVER__LISTEN` sets a key. `MILLRACE_SERVER` alone is the command line's and no section."""
    found: dict[str, dict[str, str]] = {}
    for name, value in environment.items():
        section, delimiter, key = name.lower().removeprefix(PREFIX.lower()).partition(DELIMITER)
        if name.upper().startswith(PREFIX) and delimiter and section in Settings.model_fields:
            found.setdefault(section, {})[key] = value
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: {(error.strerror or str(error)).lower()}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: expected TOML in UTF-8, got bytes that are not UTF-8"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: not valid TOML: {error}"]) from None


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Variables of our prefix that name no section; pydantic finds the unknown keys of known ones."""
    for name in sorted(environment):
        section = name.removeprefix(PREFIX).partition(DELIMITER)[0].lower()
        if name.startswith(PREFIX) and DELIMITER in name and section not in Settings.model_fields:
            yield f"{name}: unknown section {section}{_suggest(section, Settings.model_fields)}"


def _line(error: Any, path: Path | None, data: Mapping[str, Any]) -> str:
    location = [str(part) for part in error["loc"]]
    where = f"{_origin(location, path, data)}{'.'.join(location)}"
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown setting{_suggest(location[-1], _keys(location[:-1]))}"
    got = "" if error["type"] == "value_error" else f", got {error['input']!r}"
    text = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{where}: {text if not got else 'expected ' + text}{got}"


def _origin(location: list[str], path: Path | None, data: Mapping[str, Any]) -> str:
    variable = PREFIX + DELIMITER.join(location).upper()
    if variable in os.environ:
        return f"{variable}: "
    here: Any = data
    for part in location:
        if not isinstance(here, Mapping) or part not in here:
            return ""
        here = here[part]
    return f"{path}: "


def _keys(location: list[str]) -> list[str]:
    if not location:
        return list(Settings.model_fields)
    section = Settings.model_fields[location[0]].annotation
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, Section) else []


def _suggest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else f"; the known ones are {', '.join(known)}"


def history_folder(server: ServerSection) -> Path | None:
    """The folder of the streams' history, if there is one."""
    if server.history_dir is not None:
        return server.history_dir.absolute()
    return None if server.data_dir is None else server.data_dir.absolute() / "history"


def sink_folder(server: ServerSection) -> Path:
    """The folder of relative paths of sinks."""
    if server.sink_dir is not None:
        return server.sink_dir.absolute()
    return Path.cwd() if server.data_dir is None else server.data_dir.absolute() / "sinks"


def tokens_path(server: ServerSection) -> Path | None:
    """Where the file of tokens is, if there can be one."""
    if server.tokens_file is not None:
        return server.tokens_file
    return None if server.data_dir is None else server.data_dir.absolute() / TOKENS


def makes_tokens(settings: Settings) -> bool:
    """Whether a start creates the first tokens in the data directory."""
    server = settings.server
    path, folder = tokens_path(server), server.data_dir
    decided = server.auth == "off" or server.token_file is not None or server.tokens_file is not None
    if folder is None or path is None or decided or settings.standby.follow is not None or path.exists():
        return False
    if server.auth == "token":
        return True
    try:
        return not set(os.listdir(folder)).difference(FIRST_TOKENS, (OF_THE_SYSTEM,))
    except FileNotFoundError:
        return True
    except OSError:
        return False  # the start reports it


# -- conditions on several fields -------------------------------------------------------------------------------------


class Security(NamedTuple):
    """The guards of one port."""

    certificate: Path | None
    key: Path | None
    token_file: Path | None
    client_ca: Path | None = None


def listen_security(server: ServerSection) -> Security:
    return Security(server.tls_certificate, server.tls_key, server.token_file, server.tls_client_ca)


def admin_security(server: ServerSection) -> Security:
    certificate, key = server.admin_tls_certificate, server.admin_tls_key
    if certificate is None and key is None:
        certificate, key = server.tls_certificate, server.tls_key
    return Security(certificate, key, server.admin_token_file or server.token_file, server.tls_client_ca)


def read_token(path: Path) -> str:
    """The first line of a token file."""
    try:
        token = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"token file {path}: {getattr(error, 'strerror', None) or error}"]) from None
    if not token:
        raise ConfigError([f"token file {path}: expected a token in its first line, got nothing"])
    return token


def _contradictions(settings: Settings) -> Iterator[str]:
    server = settings.server
    tokens = tokens_path(server)
    has_file = server.tokens_file is not None or (tokens is not None and tokens.is_file())
    has_tokens = has_file or makes_tokens(settings)
    if server.auth == "token" and server.token_file is None and not has_tokens:
        yield (
            "server.auth: 'token' needs a token: set server.data_dir (--data-dir DIR), in which the server creates "
            "one, or server.token_file"
        )
    for key, address, guard in (
        ("server.listen", server.listen, listen_security(server)),
        ("server.admin", server.admin, admin_security(server)),
    ):
        if not address.is_loopback and (guard.certificate is None or (guard.token_file is None and not has_tokens)):
            yield (
                f"{key}: {address} is open to the network, so it needs both TLS (server.tls_certificate, "
                "server.tls_key) and a token (`millrace token create`, or server.token_file); or listen on 127.0.0.1"
            )
        elif not address.is_loopback and server.auth == "off":
            yield f"{key}: {address} is open to the network, so server.auth (--no-token) cannot be 'off'"
        if (guard.certificate is None) != (guard.key is None):
            yield f"{key}: TLS needs a certificate and its key; one of them is missing"
    if server.tls_client_ca is not None and admin_security(server).certificate is None:
        yield (
            "server.tls_client_ca: clients show certificates over TLS alone: set server.tls_certificate and "
            "server.tls_key"
        )
    if _overlap(server.listen, server.admin):
        yield (
            f"server.admin: {server.admin} is the same port as server.listen ({server.listen}): feeds and subscribers "
            "need one port and the HTTP API another; change one of them"
        )
    yield from _missing_files(server)


def _impossible_standby(settings: Settings) -> Iterator[str]:
    """Why this server cannot follow another one."""
    standby, server = settings.standby, settings.server
    for name in ("token_file", "ca_file"):
        path = getattr(standby, name)
        if path is not None and not path.is_file():
            yield f"standby.{name}: file {path} does not exist"
    if standby.token_file is not None and standby.token_file.is_file():
        try:
            read_token(standby.token_file)
        except ConfigError as error:
            yield from (f"standby.token_file: {problem}" for problem in error.problems)
    if standby.follow is None:
        return
    if server.data_dir is None:
        yield "standby.follow: a standby needs a data directory of its own: set server.data_dir (--data-dir DIR)"
    if _overlap(parse_where(standby.follow).address, server.admin):
        yield f"standby.follow: {standby.follow} is this server's own HTTP port (server.admin): name another server's"


def _missing_journal(settings: Settings) -> Iterator[str]:
    for key in ("lease", "confirm"):
        if getattr(settings.standby, key) and settings.server.data_dir is None:
            yield f"standby.{key}: a standby needs the journal of a data directory; set server.data_dir"


def _overlap(one: Address, other: Address) -> bool:
    """Whether the same socket would be opened twice; port 0 is another one each time."""
    if one.port != other.port or not one.port:
        return False
    hosts = {"127.0.0.1" if address.host == "localhost" else address.host for address in (one, other)}
    if len(hosts) == 1 or "::" in hosts:  # which takes IPv4, too
        return True
    return "0.0.0.0" in hosts and not any(":" in host for host in hosts)


def _missing_files(server: ServerSection) -> Iterator[str]:
    for name in ServerSection.model_fields:
        path = getattr(server, name)
        if isinstance(path, Path) and name not in (*FOLDERS, "tokens_file"):
            if not path.is_file():
                yield f"server.{name}: file {path} does not exist"
            elif name.endswith("token_file"):
                try:
                    read_token(path)
                except ConfigError as error:
                    yield from (f"server.{name}: {problem}" for problem in error.problems)
    for name in FOLDERS:
        path = getattr(server, name)
        if path is not None and (problem := _unusable(path)) is not None:
            yield f"server.{name}: {problem}"
    for path in server.allow_paths:
        if not path.is_absolute():
            yield f"server.allow_paths: expected an absolute path, got {path}"
        elif os.path.exists(path) and not path.is_dir():
            yield f"server.allow_paths: {path} is not a folder"
    yield from _exposed(server)


def _exposed(server: ServerSection) -> Iterator[str]:
    """A sink folder is for sinks alone."""
    sinks = os.path.realpath(sink_folder(server))
    if server.sink_dir is not None and server.data_dir is not None and sinks == os.path.realpath(server.data_dir):
        yield f"server.sink_dir: {server.sink_dir} is data_dir, which contains the server's own files; use a folder "
        "inside"
    history = history_folder(server)
    if history is not None and Path(sinks).is_relative_to(os.path.realpath(history)):
        yield f"server.sink_dir: {sinks} is inside the history of streams ({history}); use another folder"


def _unusable(folder: Path) -> str | None:
    """Why files cannot be kept in a folder, which is made at the start if it is not there yet."""
    there = next((path for path in (folder, *folder.absolute().parents) if os.path.exists(path)), None)
    if there is None:
        return None  # a missing drive, say: creating the folder reports it
    if not there.is_dir():
        return f"{there} is not a folder"
    if not is_writable(there):
        return f"{there} is not writable" if there == folder else f"{folder} cannot be created: {there} is not writable"
    catalog = folder / CATALOG
    return f"{catalog} is not writable" if catalog.exists() and not is_writable(catalog) else None


def is_writable(path: Path) -> bool:
    """Whether this process may write the file, or make files in the folder."""
    return os.access(path, os.W_OK | os.X_OK if path.is_dir() else os.W_OK)


# -- showing -----------------------------------------------------------------------------------------------------------


def to_toml(settings: Settings) -> str:
    """The settings as a file that sets them again."""
    lines: list[str] = []
    for section, keys in settings.model_dump(mode="json").items():
        lines += [f"[{section}]", *(_assignment(key, value) for key, value in keys.items()), ""]
    return "\n".join(lines)


def _assignment(key: str, value: object) -> str:
    return f"# {key} is not set" if value is None else f"{key} = {_toml(value)}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)


def reference() -> str:
    """The tables of `docs/configuration.md`."""
    lines: list[str] = []
    for name, field in Settings.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        lines += [f"## [{name}]", "", section.__doc__ or "", "", "| key | default | meaning |", "|---|---|---|"]
        for key, setting in section.model_fields.items():
            default = "" if setting.default is None else f"`{_toml(_plain(setting.default))}`"
            lines.append(f"| `{key}` | {default} | {setting.description} |")
        lines.append("")
    return "\n".join(lines)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Address) else value
