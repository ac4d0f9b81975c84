"""The client in Node: a server that is killed again and again gets each row of its input once."""

import json
import shutil
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Server
from tests.patience import HANG_SECONDS, wait_until

FEED = Path(__file__).parents[2] / "examples" / "node" / "feed.mjs"
NODE = shutil.which("node") or ""
SQL = "CREATE STREAM s (k BIGINT, name TEXT); CREATE QUERY q AS SELECT k, name FROM s"

pytestmark = pytest.mark.skipif(not NODE, reason="node is not installed")


def feed(listen, *words, **options):
    return subprocess.Popen(
        [NODE, str(FEED), listen, *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def row(at):
    return json.dumps({"k": 2**60 + at, "name": f"row {at} \u00e4"}) + "\n"


def rows_of(server, count):
    done = server.millrace("tail", "q", "--from", "0", "--limit", str(count))
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == count, done
    assert server.json("query", "show", "q")["rows"] == count
    return found


def taken(server):
    return server.json("query", "show", "q")["rows"]


def has_ended_or_fed(client, server, before):
    return client.poll() is not None or taken(server) > before


@pytest.mark.parametrize("sync", ["always", "10 ms"])
def test_no_row_is_lost_or_fed_twice(tmp_path, sync):
    total, kills, at = 60_000, 4, 0
    server = Server(tmp_path, MILLRACE_JOURNAL_SYNC=sync)
    try:
        assert server.millrace("sql", SQL).returncode == 0
        client = feed(server.listen, "s", "sensor-7")
        for kill in range(1, kills + 1):
            before = taken(server)
            until = total * kill // kills
            data = "".join(map(row, range(at, until)))
            at = until
            writing = threading.Thread(target=client.stdin.write, args=(data,))
            writing.start()
            wait_until(partial(has_ended_or_fed, client, server, before))
            server.process.send_signal(signal.SIGKILL)
            server.process.communicate()
            (tmp_path / "addresses.json").unlink()
            server = Server(tmp_path, "--listen", server.listen, MILLRACE_JOURNAL_SYNC=sync)
            writing.join()
            client.stdin.flush()
        _, err = client.communicate(timeout=HANG_SECONDS)
        assert (client.returncode, err) == (0, "")
        assert rows_of(server, total) == [json.loads(row(at)) for at in range(total)]
    finally:
        server.__exit__()


def test_the_same_input_continues_and_a_new_one_is_appended(tmp_path):
    with Server(tmp_path) as server:
        assert server.millrace("sql", SQL).returncode == 0
        for words, first, count in (((), 0, 5), ((), 0, 8), (("--append",), 8, 2)):
            client = feed(server.listen, "s", "p", *words)
            _, err = client.communicate("".join(row(at) for at in range(first, first + count)), timeout=HANG_SECONDS)
            assert (client.returncode, err) == (0, "")
        assert rows_of(server, 10) == [json.loads(row(at)) for at in range(10)]


def test_what_does_not_fit_is_reported(tmp_path):
    with Server(tmp_path) as server:
        assert server.millrace("sql", SQL).returncode == 0
        client = feed(server.listen, "s", "p")
        _, err = client.communicate(f'{row(0)}[1]\n{{"k": "x"}}\n{{"k": 9223372036854775808}}\n{row(1)}')
        assert client.returncode == 1
        assert [line.split(":")[0] for line in err.splitlines()] == [
            "line 2 of the input is not a JSON object",
            "row 1 was refused",
            "row 2 was refused",
        ]
        assert rows_of(server, 2) == [json.loads(row(at)) for at in range(2)]
        client = feed(server.listen, "t", "p")
        _, err = client.communicate(row(0))
        assert client.returncode == 2
        assert "stream t does not exist" in err
