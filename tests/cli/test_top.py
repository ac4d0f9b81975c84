"""`millrace top`: its rows from two samples, its keys, and the program on a pseudo-terminal of 80 by 24."""

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.topmodel import (
    COLUMNS,
    Snapshot,
    View,
    cell,
    columns,
    component_rows,
    keys,
    load_words,
    number,
    operator_rows,
    standing,
)
from millrace.protocol.admin.operators import ComponentView, OperatorView
from millrace.protocol.admin.server import MemoryView, OverloadView, ServerView
from tests.cli.conftest import clean_environment
from tests.patience import HANG_SECONDS
from tests.views import view
from tests.warm.start import COLD, warm

# -- rows ----------------------------------------------------------------------------------------------------------


def operator(name, kind="select", **more):
    defaults = {
        "name": name, "kind": kind, "component": "c", "strategy": None if kind == "sink" else "dfs",
        "input_tuples": 0, "output_tuples": 0, "busy_us": 0.0, "inputs": [], "waits": False, "blocked": False,
        "break": None, "state_tuples": 0, "executions": 0,
    }  # fmt: skip
    return view(OperatorView, {**defaults, **more})


def given_input(queue=0, idle_us=0, **more):
    return {"queue": None, "from": "x", "queue_tuples": queue, "idle_wait_us": idle_us, **more}


def component(name="c", **more):
    data = {"name": name, "strategy": "dfs", "strategies": {}, "weight": 1, "steps": 0, "queued": 0, **more}
    return view(ComponentView, data)


def two_looks():
    before = [
        operator("s.source", "source"),
        operator("q.filter1", inputs=[given_input()]),
        operator("q.union1", "union", waits=True, inputs=[given_input(0, 100), given_input(0, 0)]),
        operator("q.sink1", "sink", inputs=[given_input()]),
    ]
    now = [
        operator("s.source", "source", input_tuples=2_000, output_tuples=2_000),
        operator("q.filter1", input_tuples=2_000, output_tuples=500, busy_us=4_000.0, inputs=[given_input(7)]),
        operator(
            "q.union1", "union", waits=True, blocked=True, state_tuples=3,
            inputs=[given_input(1, 500_100), given_input(2, 1_500_000)],
        ),
        operator("q.sink1", "sink", input_tuples=400, output_tuples=400, inputs=[given_input()]),
        operator("r.filter1", input_tuples=5, inputs=[given_input()]),
    ]  # fmt: skip
    return (
        Snapshot(1_000_000, [component(steps=100)], before),
        Snapshot(3_000_000, [component(steps=300, queued=9, strategies={"q.filter1": "bfs", "x": "dfs"})], now),
    )


def test_rows_are_the_differences_between_two_samples():
    rows = {row["name"]: row for row in operator_rows(*two_looks())}
    select_row = rows["q.filter1"]
    assert (select_row["in"], select_row["out"]) == (1_000.0, 250.0)
    assert (select_row["selectivity"], select_row["cost_us"], select_row["busy"]) == (0.25, 2.0, 0.002)
    assert (select_row["queue"], select_row["idle"]) == (7, None)
    assert (rows["q.union1"]["queue"], rows["q.union1"]["idle"], rows["q.union1"]["selectivity"]) == (3, 0.75, None)
    assert rows["q.sink1"]["cost_us"] is None
    assert (rows["r.filter1"]["in"], rows["r.filter1"]["queue"]) == (None, 0)  # the time is unknown
    (row,) = component_rows(*two_looks())
    wanted = {"strategy": "dfs +1", "in": 1_000.0, "out": 200.0, "steps": 100.0, "queue": 9, "idle": 0.75, "blocked": 1}
    assert {key: row[key] for key in wanted} == wanted
    assert row["staleness_us"] is None


def test_the_first_look_has_no_rates_yet_and_a_new_operator_of_an_old_name_neither():
    before, now = two_looks()
    for rows in (operator_rows(None, now), operator_rows(now, before), operator_rows(now, now)):
        assert [row["in"] for row in rows if row["name"] in ("s.source", "q.filter1")] == [None, None]
    assert component_rows(None, now)[0]["steps"] is None


def test_staleness_is_shown_where_there_is_any():
    before, now = two_looks()
    assert "staleness_us" not in [column.key for column in columns("operators", operator_rows(before, now), 200)]
    shedding = {"key": [], "application_staleness_us": 9_000}
    newest = {"key": ["k"], "application_staleness_us": 2_500}
    stale = [operator("q.filter1", inputs=[{**given_input(), "queue": kind} for kind in (shedding, newest)])]
    rows = operator_rows(before, Snapshot(5, [], stale))
    (column,) = [column for column in columns("operators", rows, 200) if column.key == "staleness_us"]
    assert cell(column, rows[0]) == "2 ms"


def test_a_line_is_about_standbys():
    def line(follows=None, *standbys):
        return standing(view(ServerView, {"follows": follows, "standbys": standbys}))

    followed = {"server": "http://a:1", "connected": True, "error": None, "lag_steps": 3, "lag_seconds": 1.24}
    assert line() is None
    assert line(followed) == "standby of http://a:1: connected, 3 steps, 1.2 s behind"
    away = {**followed, "connected": False, "error": "no route"}
    assert line(away) == "standby of http://a:1: NOT CONNECTED (no route), 3 steps, 1.2 s behind"
    found = [
        {"peer": "10.0.0.2", "connected": True, "copying": False, "lag_steps": 1},
        {"peer": "10.0.0.3", "connected": False, "copying": False, "lag_steps": 9},
        {"peer": "10.0.0.4", "connected": False, "copying": True, "lag_steps": 9},
    ]
    assert line(None, *found) == "standby: 10.0.0.2 lacks 1 step, 10.0.0.3 IS GONE, 10.0.0.4 copies the data directory"


@given(st.floats(0, 1e15))
def test_numbers_are_short(value):
    assert len(number(value)) <= 6
    if value < 1e11 and not number(value).endswith(("k", "M", "G")):
        assert float(number(value)) == pytest.approx(value, abs=0.51)


@pytest.mark.parametrize("width", [20, 40, 80, 81, 100, 200])
@pytest.mark.parametrize("level", list(COLUMNS))
def test_columns_fit(level, width):
    rows = [{"staleness_us": 5}]
    shown = columns(level, rows, width)
    assert shown[0].key == "name"
    if width >= 80:
        assert sum(column.width + 1 for column in shown) - 1 <= width
        assert {"in", "out", "queue", "idle", "strategy"} <= {column.key for column in shown}
    if width == 200:
        assert shown == list(COLUMNS[level])


# -- keys ----------------------------------------------------------------------------------------------------------


def pressed(view, *names):
    looks = two_looks()
    for name in names:
        view.press(name, view.rows(*looks))
    return [row["name"] for row in view.rows(*looks)]


def test_going_down_and_up():
    view = View()
    assert pressed(view) == ["c"]
    assert pressed(view, "enter") == ["s.source", "q.filter1", "q.union1", "q.sink1", "r.filter1"]
    pressed(view, "down", "j", "up", "enter")
    assert (view.level, view.operator) == ("operator", "q.filter1")
    pressed(view, "down", "s", "/")  # nothing to select there
    assert (view.cursor, view.typing, view.level) == (1, False, "operator")
    assert pressed(view, "escape")[0] == "s.source"
    assert pressed(view, "left") == ["c"]
    assert len(pressed(view, "a")) == 5
    assert pressed(view, "a") == ["c"]


def test_sorting():
    view = View()
    assert pressed(view, "enter", "s") == sorted(pressed(view))
    assert pressed(view, "r") == sorted(pressed(view), reverse=True)
    while view.sort["operators"][0] != "queue":
        pressed(view, ">")
    assert pressed(view)[:2] == ["q.filter1", "q.union1"]
    assert pressed(view, "r")[-2:] == ["q.union1", "q.filter1"]
    while view.sort["operators"][0] != "in":
        pressed(view, "<")
    assert pressed(view)[-1] == "r.filter1"  # unknown values are last in both directions
    assert pressed(view, "r")[-1] == "r.filter1"


def test_filtering():
    view = View()
    assert pressed(view, "enter", "/", "U", "n", "q", "backspace") == ["q.union1"]
    assert pressed(view, "enter", "q") == ["q.union1"]
    assert view.done
    assert pressed(view, "/", "escape") == pressed(View(), "enter")
    assert pressed(View(), "/", "z") == []


def test_pause_help_and_quit():
    view = View()
    pressed(view, "p")
    assert view.paused
    pressed(view, " ", "?")
    assert (view.paused, view.help) == (False, True)
    pressed(view, "q")
    assert (view.help, view.done) == (False, False)
    pressed(view, "/", "ctrl-c")
    assert view.done


EVERY_KEY = [
    *"qpsSr/?agGjk<> xy",
    "up",
    "down",
    "left",
    "right",
    "enter",
    "escape",
    "backspace",
    "home",
    "end",
    "ctrl-c",
]


@given(st.lists(st.sampled_from(EVERY_KEY)))
def test_no_keys_break_the_view(names):
    view, looks = View(), two_looks()
    for name in names:
        rows = view.rows(*looks)
        view.press(name, rows)
        assert 0 <= view.cursor <= max(len(rows) - 1, 0)
        assert view.level in ("components", "operators", "operator")
        assert (view.level == "operator") == (view.operator is not None)


@given(st.binary())
def test_any_bytes_are_keys_or_none(data):
    assert all(name for name in keys(data))


def test_keys_of_a_terminal():
    assert list(keys(b"\x1b[Aq\x1b\r\x7f\x1b[B\x1bOC\x1b[99;5u/\xc3\xa4\x1b[5~x")) == [
        "up", "q", "escape", "enter", "backspace", "down", "right", "/", "ä", "x",
    ]  # fmt: skip


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def applied(server):
    done = server.millrace(
        "sql",
        "CREATE STREAM a (k BIGINT); CREATE STREAM b (k BIGINT);"
        "CREATE QUERY q WITH (fuse = 'off') AS SELECT k FROM a WHERE k > 0;"
        "CREATE QUERY other AS SELECT k FROM b",
    )
    assert done.returncode == 0, done


@pytest.mark.parametrize(
    ("mode", "budget", "words"),
    [
        ("none", 2**30, "memory: 300.0 MiB of 1,024.0 MiB, load: 97%"),
        ("wait", None, "memory: 300.0 MiB, load: 97%, OVERLOAD: feeds wait"),
        ("fail", 2**30, "memory: 300.0 MiB of 1,024.0 MiB, load: 97%, OVERLOAD: queries fail"),
    ],
)
def test_memory_and_load_are_a_line(mode, budget, words):
    memory = view(MemoryView, {"used_bytes": 300 * 2**20, "budget_bytes": budget})
    overload = view(OverloadView, {"mode": mode, "load": 0.97})
    assert load_words(Snapshot(1, [], [], None, memory, overload)) == words
    assert load_words(Snapshot(1, [], [])) == "", "an older server"


def test_once(server):
    for arguments in (("--once",), ()):  # the output is not a terminal
        printed = server.millrace("top", "--interval", "0.2", *arguments)
        assert printed.returncode == 0, printed
        components, operators, load = printed.stdout.split("\n\n")
        assert components.split("\n")[0].split()[:3] == ["component", "strategy", "ops"]
        assert [line.split()[0] for line in components.split("\n")[1:]] == ["a", "b"]
        assert "q.filter1" in operators
        assert re.fullmatch(r"memory: [\d.,]+ MiB of [\d.,]+ MiB, load: \d+%\n", load)
    found = server.json("top", "--interval", "0.2")
    assert (found["overload"]["mode"], found["memory"]["stage"]) == ("none", "enough")
    assert {row["name"] for row in found["components"]} == {"a", "b"}
    assert found["operators"][0]["in"] == 0.0
    assert server.millrace("top", "--interval", "0").returncode == 2


def _plain(output):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode("utf-8", "ignore")).replace("\r", "")


class Screen:
    """A process on a pseudo-terminal, and the newest picture that it drew."""

    def __init__(self, *arguments, rows=24, width=80, **variables):
        self.ours, theirs = os.openpty()
        self.resize(rows, width)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.process = subprocess.Popen(
            [*COLD, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=clean_environment(TERM="xterm", **variables),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.output = b""

    def resize(self, rows, width):
        self.rows = rows
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, width, 0, 0))

    def press(self, data):
        os.write(self.ours, data)

    def picture(self):
        """The newest picture that has arrived whole: it fills the screen."""
        for drawn in reversed(self.output.split(b"\x1b[H")):
            lines = [line.rstrip() for line in _plain(drawn).split("\n")]
            if len(lines) >= self.rows:
                return lines
        return []

    def until(self, words):
        """The first newest picture that contains these words."""
        self._read_until(words, lambda: words in "\n".join(self.picture()))
        return self.picture()

    def until_any(self, pattern):
        """Wait until any picture so far matches; a later picture may have replaced it."""
        start = len(self.output)
        self._read_until(pattern, lambda: re.search(pattern, _plain(self.output[start:])))

    def _read_until(self, description, condition):
        deadline = time.monotonic() + HANG_SECONDS
        while not condition():
            if time.monotonic() > deadline or not self._read():
                raise AssertionError(f"{description!r} did not appear: {self.output[-3000:]!r}")

    def _read(self):
        if select.select([self.ours], [], [], 1.0)[0]:
            self.output += os.read(self.ours, 65536)
            return True
        return self.process.poll() is None

    def ended(self):
        """The exit code. The terminal must be in its former mode."""
        deadline = time.monotonic() + HANG_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read()
        while select.select([self.ours], [], [], 0)[0]:
            self._read()
        assert termios.tcgetattr(self.theirs) == self.before
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


def test_on_a_terminal(server):
    with Screen("top", "--interval", "0.2", MILLRACE_ADMIN=server.admin) as screen:
        picture = screen.until("q quit")
        assert len(picture) <= 24
        assert max(map(len, picture)) <= 80
        assert "component" in picture[2]
        screen.until("a " + " " * 5)
        screen.press(b"\x1b[B")
        screen.press(b"\r")
        picture = screen.until("component b")
        assert any(line.startswith("other.") for line in picture)
        assert not any(line.startswith("q.") for line in picture)
        screen.press(b"\x1b")
        screen.until("components\n")
        screen.press(b"a/sel")
        assert "filter: sel_" in "\n".join(screen.until("filter: sel_"))
        screen.press(b"\r\r")
        picture = screen.until("all operators > q.filter1")
        assert any(line.strip().startswith("input 1") and "a.source" in line for line in picture)
        assert len(picture) <= 24
        screen.press(b"p")
        screen.until("PAUSED")
        screen.press(b"?")
        screen.until("any key goes back")
        screen.press(b"x")
        screen.press(b"q")
        assert screen.ended() == 0
        assert screen.output.rstrip().endswith((b"\x1b[?1049l", b"\x1b[?25h"))
        assert b"\x1b[?1049h" in screen.output


def test_rates_come_while_one_looks_and_ctrl_c_ends_it(server, tmp_path):
    with Screen("top", "--interval", "0.2", rows=12, width=120, MILLRACE_ADMIN=server.admin) as screen:
        screen.until("q quit")
        screen.press(b"a")
        screen.until("all operators")
        # A view that nobody reads draws nothing, so rows have to come for as long as the test looks.
        with feeding(server, tmp_path, "a", rate=500):
            screen.until_any(r"a\.source\s+source\s+dfs\s+\d*[1-9]")
        screen.process.send_signal(signal.SIGINT)
        assert screen.ended() == 0


@contextlib.contextmanager
def feeding(server, folder, stream, rate):
    """Feed this many rows per second while the block runs."""
    rows = folder / "rows.jsonl"
    rows.write_text('{"k": 1}\n' * int(rate * HANG_SECONDS))
    command = [*warm(), "feed", stream, str(rows), "--rate", str(rate)]
    process = subprocess.Popen(command, env=clean_environment(MILLRACE_ADMIN=server.admin), stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, "the feed has ended"
    finally:
        process.kill()
        process.wait()


def test_a_lost_server_is_reported_and_the_view_stays(tmp_path):
    from tests.cli.conftest import Server

    with Server(tmp_path) as server:
        server.millrace("sql", "CREATE STREAM lonely (k BIGINT)")
        with Screen("top", "--interval", "0.2", MILLRACE_ADMIN=server.admin) as screen:
            screen.until("lonely")
            server.process.kill()
            server.process.communicate()
            picture = screen.until("no Millrace server answers")
            assert any(line.startswith("lonely") for line in picture)
            screen.press(b"q")
            assert screen.ended() == 0
        with Screen("top", MILLRACE_ADMIN=server.admin) as screen:
            assert screen.ended() == 1
            assert b"no Millrace server answers" in screen.output
            assert b"\x1b[?1049h" not in screen.output
