"""`millrace run` from the command line: input files, output files, and one line for each error."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.main import main
from millrace.offline import events as offline_events
from millrace.offline import merge, progress
from tests.comparison import same_event_order, same_rows
from tests.running import lines, run_events, run_script

STREAM = "CREATE STREAM s (ts TIMESTAMP, k BIGINT, name TEXT) WITH (time = 'ts', disorder = '3 us');"
TWO = """
CREATE STREAM a (ts TIMESTAMP, n BIGINT) WITH (time = 'ts', disorder = '3 us');
CREATE STREAM b (ts TIMESTAMP, n BIGINT) WITH (time = 'ts');
CREATE QUERY mixed AS SELECT ts, n FROM a WHERE n % 3 <> 0 UNION ALL SELECT ts, n FROM b;
CREATE QUERY ordered WITH (order = 'event') AS SELECT ts, n FROM mixed;
"""


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the outputs of a command."""

    returncode: int
    stdout: str
    stderr: str


class Folder:
    """A folder of files, in which the command runs in this process."""

    def __init__(self, path, capture, patch):
        self.path = path
        self._capture = capture
        self._patch = patch

    def write(self, name, text):
        (self.path / name).write_text(text, "utf-8")
        return name

    def rows(self, name, *rows):
        return self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    def millrace(self, *arguments, stdin=""):
        self._patch.chdir(self.path)
        self._patch.setattr(sys, "argv", ["millrace", "run", *arguments])
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        self._capture.readouterr()
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = self._capture.readouterr()
        return CommandResult(code, out, err)


@pytest.fixture
def folder(tmp_path, capfd, monkeypatch):
    workspace = Folder(tmp_path, capfd, monkeypatch)
    workspace.write("q.sql", STREAM + "SELECT ts, k * 2 AS kk, name FROM s WHERE k > 1;")
    workspace.rows("s.jsonl", {"ts": 1, "k": 1}, {"ts": 9, "k": 2, "name": "ü"}, {"ts": 2, "k": 3}, {"ts": 7, "k": 4})
    return workspace


def test_a_bare_select_goes_to_stdout(folder):
    done = folder.millrace("q.sql", "--input", "s=s.jsonl", "--late", "s=late.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        '{"ts":"1970-01-01T00:00:00.000009Z","kk":4,"name":"ü"}\n'
        '{"ts":"1970-01-01T00:00:00.000007Z","kk":8,"name":null}\n'
    )
    assert lines(folder.path / "late.jsonl") == [
        {
            "tuple": {"ts": "1970-01-01T00:00:00.000002Z", "k": 3, "name": None},
            "ts": "1970-01-01T00:00:00.000002Z",
            "mark": "1970-01-01T00:00:00.000006Z",
            "late_by_us": 4,
            "feed": "main",
            "at": "1970-01-01T00:00:00.000009Z",
        }
    ]


def test_flags_from_the_command_line(folder):
    done = folder.millrace(
        "q.sql", "--input", "s=-", "--time", "us", "--order", "event", "--strategy", "bfs(1)", "--no-close",
        "--report", "report.json", "--trace", "trace.jsonl", "--cost", "0.5",
        stdin=(folder.path / "s.jsonl").read_text(),
    )  # fmt: skip
    late = "millrace: 0 rows; 1 tuple late in s (write them with --late s=FILE)\n"
    assert (done.returncode, done.stderr) == (0, late)
    assert done.stdout == ""  # the mark is at 6 and has reached neither tuple
    report = json.loads((folder.path / "report.json").read_text())
    assert report["streams"] == {"s": {"tuples": 4, "late": 1, "rejected": 0, "punctuations": 2}}
    assert report["components"]["s"]["strategy"] == "bfs(1)"
    assert report["queries"]["q"]["latency_us"] == {"mean": None, "p50": None, "p99": None, "max": None}
    assert {"step", "at", "operator", "rule", "took", "gave", "next"} == lines(folder.path / "trace.jsonl")[0].keys()


def test_every_format_in_and_out(folder):
    ways = ("jsonl", "csv", "parquet", "arrow")
    folder.write("copy.sql", STREAM + "CREATE QUERY copy AS SELECT * FROM s;")
    source = "s.jsonl"
    for way in ways:
        done = folder.millrace("copy.sql", "--input", f"s={source}", "--sorted", "--output", f"copy=copy.{way}")
        assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
        source = f"copy.{way}"
    folder.millrace("copy.sql", "--input", f"s={source}", "--output", "copy=last.jsonl")
    assert (folder.path / "last.jsonl").read_bytes() == (folder.path / "copy.jsonl").read_bytes()
    assert [row["k"] for row in lines(folder.path / "last.jsonl")] == [1, 3, 4, 2]


def test_rows_of_several_queries_on_stdout_have_query_names(folder):
    folder.write(
        "two.sql", STREAM + "CREATE QUERY one AS SELECT k FROM s; CREATE QUERY two AS SELECT k + 1 AS k FROM s;"
    )
    folder.rows("one.jsonl", {"ts": 1, "k": 1})
    done = folder.millrace("two.sql", "--input", "s=one.jsonl")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"query": "one", "seq": 0, "row": {"k": 1}},
        {"query": "two", "seq": 0, "row": {"k": 2}},
    ]
    assert folder.millrace("two.sql", "--input", "s=one.jsonl", "--output", "two=-").stdout == '{"k":2}\n'


def test_queries_that_others_read_are_not_shown(folder):
    folder.write(
        "chain.sql", STREAM + "CREATE QUERY one AS SELECT ts, k FROM s; CREATE QUERY two AS SELECT k FROM one;"
    )
    folder.rows("one.jsonl", {"ts": 1, "k": 1})
    assert folder.millrace("chain.sql", "--input", "s=one.jsonl").stdout == '{"k":1}\n'


def test_sinks_of_the_file_are_written(folder):
    folder.write(
        "sink.sql",
        STREAM + "CREATE QUERY q AS SELECT k FROM s; CREATE SINK o FROM q WITH (type = 'file', path = 'o.parquet');",
    )
    for _ in range(2):
        done = folder.millrace("sink.sql", "--input", "s=s.jsonl")
        late = "millrace: 3 rows; 1 tuple late in s (write them with --late s=FILE)\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, "", late)
    assert pq.read_table(folder.path / "o.parquet").to_pydict() == {"k": [1, 2, 4]}


def test_outputs_exist_even_when_empty(folder):
    folder.rows("none.jsonl")
    for way in ("jsonl", "csv", "parquet", "arrow"):
        done = folder.millrace("q.sql", "--input", "s=none.jsonl", "--output", f"q=o.{way}", "--late", f"s=late.{way}")
        assert (done.returncode, done.stderr) == (0, "")
        assert (folder.path / f"o.{way}").exists()
        assert (folder.path / f"late.{way}").read_bytes() == b""
    assert (folder.path / "o.csv").read_text() == "ts,kk,name\n"


def test_rows_that_cannot_be_computed_are_reported(folder):
    folder.write("zero.sql", STREAM + "SELECT 1 / (k - 2) AS x FROM s;")
    done = folder.millrace("zero.sql", "--input", "s=s.jsonl")
    assert done.stdout == '{"x":-1}\n{"x":0}\n'
    late = "millrace: 2 rows; 1 tuple late in s (write them with --late s=FILE)\n"
    assert done.stderr == late + "millrace: q.project1: 1 row dropped because of an error: division by zero\n"
    assert done.returncode == 0


def test_late_tuples_are_reported_unless_something_takes_them(folder):
    given = ("--input", "s=s.jsonl")
    late = "millrace: 2 rows; 1 tuple late in s (write them with --late s=FILE)\n"
    assert folder.millrace("q.sql", *given).stderr == late
    assert folder.millrace("q.sql", *given, "--quiet").stderr == ""
    assert folder.millrace("q.sql", *given, "--late", "s=late.jsonl").stderr == ""
    assert folder.millrace("q.sql", *given, "--sorted").stderr == ""
    folder.write("late.sql", STREAM + "CREATE QUERY q AS SELECT k FROM s; CREATE QUERY l AS SELECT k FROM s.late;")
    assert folder.millrace("late.sql", *given).stderr == ""
    folder.rows("more.jsonl", {"ts": 9, "k": 1}, {"ts": 2, "k": 2}, {"ts": 1, "k": 3})
    done = folder.millrace("q.sql", "--input", "s=more.jsonl")
    assert done.stderr == "millrace: 0 rows; 2 tuples late in s (write them with --late s=FILE)\n"
    assert (done.returncode, done.stdout) == (0, "")


FAILURES = [
    (["none.sql"], 1, "millrace: none.sql: no such file or directory\n"),
    (["q.sql", "--input", "x=s.jsonl"], 1, "millrace: --input x=s.jsonl: unknown stream x; the file has: s\n"),
    (["q.sql", "--output", "x=s.jsonl"], 1, "millrace: --output x=s.jsonl: unknown query x; the file has: q\n"),
    (["q.sql", "--input", "s=none.csv"], 1, "millrace: none.csv: no such file or directory\n"),
    (["q.sql", "--input", "s=half.jsonl"], 1, "half.jsonl, line 1: expected a JSON object, got half an object"),
    (["q.sql", "--events", "half.jsonl"], 1, "half.jsonl, line 1: expected a JSON object, got half an object"),
    (["q.sql", "--input", "s=s.jsonl", "--output", "q=no/o.jsonl"], 1, "no/o.jsonl: no such file or directory"),
    (["q.sql", "--input", "s=s.jsonl", "--report", "no/r.json"], 1, "no/r.json: no such file or directory"),
    (["q.sql", "--input", "s=s.jsonl", "--output", "q=o.xml"], 1, "expected a path that ends in .jsonl, .csv"),
    (["q.sql", "--input", "s=-", "--input", "s=-"], 1, "two inputs cannot both be read from standard input"),
    (["q.sql", "--input", "s=folder"], 1, "millrace: folder: is a directory\n"),
    (["q.sql", "--input", "s=s.jsonl", "--output", "q=a", "--late", "s=a"], 1, "cannot write a: a is written already"),
    (["q.sql", "--late", "s=a", "--late", "s=b"], 1, "--late appears twice for s"),
    (["empty.sql"], 1, "the file has no stream: start with CREATE STREAM"),
    (["q.sql", "--input", "s"], 2, "expected STREAM=FILE, got 's'"),
    (["q.sql", "--input", "s=s.jsonl", "--events", "s.jsonl"], 2, "use --input or --events, not both"),
    (["q.sql", "--events", "s.jsonl", "--sorted"], 2, "--sorted works with --input only"),
    (["q.sql", "--strategy", "lifo"], 2, "unknown strategy 'lifo'"),
    (["q.sql", "--order", "random"], 2, "'random' is not one of"),
    (["q.sql", "--cost", "-1"], 2, "expected zero or more microseconds per tuple"),
    (["q.sql", "--cost", "dear"], 2, "expected microseconds per tuple, got 'dear'"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), FAILURES, ids=lambda value: str(value)[:40])
def test_an_error_is_reported_in_one_line(folder, arguments, code, said):
    folder.write("half.jsonl", '{"ts": 1, "k"')
    folder.write("empty.sql", "-- nothing\n")
    (folder.path / "folder").mkdir()
    done = folder.millrace(*arguments)
    assert done.returncode == code
    assert said in " ".join(done.stderr.replace("│", " ").split()) + "\n"
    assert "Traceback" not in done.stderr
    assert code == 2 or done.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", ["--output q={}", "--late s={}", "--trace {}", "--report {}"])
@pytest.mark.parametrize("path", ["s.jsonl", "./s.jsonl", "soft.jsonl", "hard.jsonl", "q.sql"])
def test_an_input_is_never_overwritten(folder, flag, path):
    (folder.path / "soft.jsonl").symlink_to("s.jsonl")
    (folder.path / "hard.jsonl").hardlink_to(folder.path / "s.jsonl")
    before = [(folder.path / name).read_bytes() for name in ("s.jsonl", "q.sql")]
    for source in ("--input s=s.jsonl", "--events s.jsonl"):
        done = folder.millrace("q.sql", *source.split(), *flag.format(path).split())
        assert done.returncode == 1
        read = "q.sql" if path == "q.sql" else "s.jsonl"
        assert done.stderr == f"millrace: cannot write {path}: {read} is read by this run; choose another file\n"
    assert before == [(folder.path / name).read_bytes() for name in ("s.jsonl", "q.sql")]


def test_an_unreadable_input_changes_no_output(folder):
    (folder.path / "folder").mkdir()
    folder.write("o.jsonl", "the last run's rows\n")
    done = folder.millrace("q.sql", "--input", "s=folder", "--output", "q=o.jsonl")
    assert done.returncode == 1
    assert (folder.path / "o.jsonl").read_text() == "the last run's rows\n"


def test_refused_sql_shows_where(folder):
    folder.write("bad.sql", STREAM + "\nSELECT kk FROM s;")
    done = folder.millrace("bad.sql")
    assert done.returncode == 1
    assert "line 2, column 8" in done.stderr
    assert done.stderr.endswith("  SELECT kk FROM s;\n         ^\n")


def test_a_run_that_fails_leaves_no_half_table(folder):
    folder.write("broken.jsonl", "".join(f'{{"ts": {n}, "k": {n}}}\n' for n in range(30_000)) + '{"ts": 1, "k": 2.5}')
    folder.write("two.sql", STREAM + "CREATE QUERY q AS SELECT k FROM s;")
    for way in ("parquet", "arrow", "jsonl"):
        done = folder.millrace("two.sql", "--input", "s=broken.jsonl", "--output", f"q=o.{way}")
        assert done.returncode == 1
        assert "broken.jsonl, line 30001, field k" in done.stderr
    assert {path.name for path in folder.path.glob("o.*")} == {"o.jsonl"}


def test_a_long_input_shows_its_progress_on_a_terminal(folder, monkeypatch):
    monkeypatch.setattr(progress, "LONG_BYTES", 1)
    arguments = ["q.sql", "--input", "s=s.jsonl", "--output", "q=o.jsonl", "--quiet"]
    assert folder.millrace(*arguments).stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "has_terminal", lambda: True)
    done = folder.millrace(*arguments)
    assert "/" in done.stderr  # read bytes of all bytes
    assert "bytes" in done.stderr
    assert (done.returncode, done.stdout) == (0, "")
    assert [row["kk"] for row in lines(folder.path / "o.jsonl")] == [4, 8]


def test_the_examples_of_the_page_are_true(folder):
    page = (Path(__file__).parents[2] / "docs" / "run.md").read_text("utf-8")
    sessions = [block for block in re.findall(r"^```\n(.*?)^```", page, re.M | re.S) if block.startswith("$ ")]
    assert len(sessions) == 2
    for session in sessions:
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.M):
            verb, *arguments = command.split()
            if verb == "millrace":
                done = folder.millrace(*arguments[1:])
                assert done.stdout + done.stderr == shown.rstrip("\n") + "\n"
            elif (folder.path / arguments[0]).exists():
                assert (folder.path / arguments[0]).read_text("utf-8") == shown
            else:
                folder.write(arguments[0], shown)


# -- the same run in other ways ----------------------------------------------------------------------------------------

ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=40)


def given_rows(folder, name, rows):
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"ts": ts, "n": n}) + "\n" for ts, n in rows))
    return name, str(path)


def late_of(rows, disorder):
    newest, late = None, []
    for ts, n in rows:
        if newest is not None and ts < newest - disorder:
            late.append((ts, n, newest - disorder, newest))
        newest = ts if newest is None else max(newest, ts)
    return late


@given(a=ROWS, b=ROWS, strategy=st.sampled_from(["dfs", "bfs", "rr", "dfs(1)", "bfs(2)", "rr(1)"]))
def test_slices_strategies_and_measures_change_no_result(tmp_path_factory, a, b, strategy):
    folder = tmp_path_factory.mktemp("run")
    inputs = [given_rows(folder, "a", a), given_rows(folder, "b", b)]
    exact = run_script(TWO, folder, inputs=inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "ROWS", 5)
        patch.setattr(merge, "EXACT_ROWS", 3)
        sliced = run_script(TWO, folder, inputs=inputs, report=None, strategy=strategy)
    priced = run_script(TWO, folder, inputs=inputs, cost="2", strategy=strategy)
    late = {name: late_of(rows, disorder) for name, rows, disorder in (("a", a, 3), ("b", b, 0))}
    for result in (exact, sliced, priced):
        for name, wanted in late.items():
            assert [(line["ts"], line["tuple"]["n"], line["mark"]) for line in result.late[name]] == [
                row[:3] for row in wanted
            ]
        assert same_rows(result.rows["mixed"], exact.rows["mixed"]) is None
        assert same_event_order(result.rows["ordered"], exact.rows["ordered"], lambda row: row["ts"]) is None
    on_time = [row for row in a if row[1] % 3] + b
    gone = [(ts, n) for ts, n, *_ in late["b"]] + [(ts, n) for ts, n, *_ in late["a"] if n % 3]
    assert same_rows([*exact.rows["mixed"], *gone], on_time) is None
    assert [line["at"] for line in sliced.late["b"]] == [at for *_, at in late["b"]]


TUPLE = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 15), st.integers(0, 3))
PROMISE = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 40))
TICK = st.tuples(st.integers(0, 50))
TUPLES = st.lists(TUPLE, min_size=1, max_size=20)
EVENTS = st.lists(st.one_of(TUPLES, PROMISE, TICK), min_size=1, max_size=8)


JOINED = """
CREATE QUERY pairs AS
  SELECT a.n, b.n AS m, a.ts AS t FROM a JOIN b ON a.n = b.n AND abs(a.ts - b.ts) <= INTERVAL '5 us';
CREATE QUERY counts AS
  SELECT n, count(*) AS rows, window_end FROM HOP(a, ts, INTERVAL '4 us', INTERVAL '10 us') GROUP BY n;
"""


def as_lines(events):
    """The feeds `x` and `y` of both streams, their promises, and ticks of the clock."""
    for stream in "ab":
        for feed in "xy":
            yield {"at": 0, "stream": stream, "feed": feed, "punctuation": 0}
    for event in events:
        match event:
            case list():
                for stream, feed, ts, n in event:
                    yield {"stream": stream, "feed": feed, "tuple": {"ts": ts, "n": n}}
            case (stream, feed, ts):
                yield {"stream": stream, "feed": feed, "punctuation": ts}
            case (at,):
                yield {"at": at, "tick": True}


@given(events=EVENTS, strategy=st.sampled_from(["dfs", "bfs", "rr(1)"]))
def test_slices_of_events_change_no_result(tmp_path_factory, events, strategy):
    folder = tmp_path_factory.mktemp("run")
    exact = run_events(TWO + JOINED, list(as_lines(events)), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offline_events, "ROWS", 12)
        patch.setattr(offline_events, "EXACT_ROWS", 1)
        options = {"report": None, "late_files": False, "strategy": strategy}
        sliced = run_events(TWO + JOINED, list(as_lines(events)), folder, **options)
    assert sliced.late_tuples == {name: len(rows) for name, rows in exact.late.items() if rows}
    for name in ("mixed", "pairs", "counts"):
        assert same_rows(sliced.rows[name], exact.rows[name]) is None
    assert same_event_order(sliced.rows["ordered"], exact.rows["ordered"], lambda row: row["ts"]) is None


def test_the_same_input_has_the_same_output_bytes(tmp_path):
    rows = [(n * 7 % 50, n) for n in range(300)]
    found = []
    for _ in range(2):
        result = run_script(
            TWO, tmp_path, inputs=[given_rows(tmp_path, "a", rows), given_rows(tmp_path, "b", rows)], trace=True
        )
        del result.report["totals"]["wall_us"]
        files = [(path.name, path.read_bytes()) for path in sorted(tmp_path.glob("*.jsonl"))]
        found.append((files, result.report))
    assert found[0] == found[1]


def test_an_internal_stream_answers_with_the_virtual_clock(tmp_path):
    sql = """CREATE STREAM i (v BIGINT); CREATE STREAM j (v BIGINT);
             CREATE QUERY u WITH (order = 'event') AS SELECT ts, v FROM i UNION ALL SELECT ts, v FROM j;"""
    events = [{"at": 100, "stream": "i", "tuple": {"v": 1}}, {"at": 200, "tick": True}]
    assert run_events(sql, events, tmp_path, close=False).rows["u"] == [{"ts": 100, "v": 1}]


def test_a_timer_stays_set_between_events(tmp_path):
    # The tuple's time is ahead of the clock. The silent internal stream releases it when the clock reaches that time.
    sql = """CREATE STREAM e (ts TIMESTAMP, v BIGINT) WITH (time = 'ts'); CREATE STREAM i (v BIGINT);
             CREATE QUERY u WITH (order = 'event') AS SELECT ts, v FROM e UNION ALL SELECT ts, v FROM i;"""
    tuple_ = {"at": 100, "stream": "e", "tuple": {"ts": 150, "v": 1}}
    early = run_events(sql, [tuple_, {"at": 149, "tick": True}], tmp_path, close=False)
    assert early.rows["u"] == []
    later = run_events(sql, [tuple_, {"at": 1_000, "tick": True}], tmp_path, close=False)
    assert later.rows["u"] == [{"ts": 150, "v": 1}]
    assert later.report["queries"]["u"]["latency_us"]["max"] == 50


def test_feeds_hold_a_stream_until_they_close(tmp_path):
    sql = """CREATE STREAM e (ts TIMESTAMP, v BIGINT) WITH (time = 'ts');
             CREATE QUERY q WITH (order = 'event') AS SELECT v FROM e;"""
    events = [
        {"stream": "e", "tuple": {"ts": 1, "v": 1}, "feed": "x"},
        {"stream": "e", "tuple": {"ts": 1, "v": 2}, "feed": "y"},
        {"stream": "e", "tuple": {"ts": 5, "v": 3}, "feed": "x"},
    ]
    assert [row["v"] for row in run_events(sql, events, tmp_path, close=False).rows["q"]] == [1, 2]
    closed = [*events, {"stream": "e", "close": True, "feed": "y"}]
    assert [row["v"] for row in run_events(sql, closed, tmp_path, close=False).rows["q"]] == [1, 2, 3]


def test_order_on_the_command_line_wins(tmp_path):
    sql = STREAM + "CREATE QUERY q WITH (order = 'event') AS SELECT k FROM s; SELECT k FROM s;"
    events = [{"stream": "s", "tuple": {"ts": ts, "k": ts}} for ts in (5, 3, 4)]
    assert [row["k"] for row in run_events(sql, events, tmp_path).rows["q"]] == [3, 4, 5]
    assert [row["k"] for row in run_events(sql, events, tmp_path, order="arrival").rows["q"]] == [5, 3, 4]
    assert [row["k"] for row in run_events(sql, events, tmp_path, order="event").rows["q2"]] == [3, 4, 5]


@pytest.mark.parametrize(
    ("first", "unit"),
    [(1_770_588_380, "seconds"), (1_770_588_380_000, "milliseconds")],
    ids=["seconds", "milliseconds"],
)
def test_times_in_another_unit_are_taken_with_a_warning(folder, first, unit):
    folder.rows("s.jsonl", {"ts": first, "k": 2}, {"ts": first + 1, "k": 3})
    done = folder.millrace("q.sql", "--input", "s=s.jsonl")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    assert re.fullmatch(
        rf"millrace: stream s: warning: its first time, {first}, is 1970-01-\S+; it looks like {unit} "
        r"\(2026-02-08T22:06:20Z\): integer timestamps are microseconds, so multiply by 1000(000)?, "
        r"or declare the stream WITH \(time_unit = 'm?s'\)\n",
        done.stderr,
    )


def test_made_up_times_are_taken_silently(folder):
    folder.rows("s.jsonl", *({"ts": us, "k": 2} for us in (1, 2, 1_000_000, 1_770_588_380, 1_770_588_380_000)))
    assert folder.millrace("q.sql", "--input", "s=s.jsonl").stderr == ""


def test_times_in_nanoseconds_are_refused(folder):
    folder.rows("s.jsonl", {"ts": 1_770_588_380 * 10**9, "k": 2})
    done = folder.millrace("q.sql", "--input", "s=s.jsonl")
    assert done.returncode == 1
    assert done.stderr == (
        "millrace: s.jsonl, line 1, field ts: expected a time from 0001-01-01T00:00:00Z to "
        "9999-12-31T23:59:59.999999Z, got 1770588380000000000 (+058077-09-17T01:33:20Z); it looks like nanoseconds "
        "(2026-02-08T22:06:20Z): integer timestamps are microseconds, so divide by 1000, or declare the stream "
        "WITH (time_unit = 'ns')\n"
    )
