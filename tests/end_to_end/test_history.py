"""A server is killed while it writes history: every file is complete, and the server reports what may be missing."""

import json
import random
import threading

import pyarrow.parquet as pq

from millrace.history import files as history
from tests.cli.conftest import Server

STREAM = "CREATE STREAM s (k BIGINT, text TEXT) WITH (history = 'true')"
SIZES = {"MILLRACE_SERVER__ARCHIVE_FILE_BYTES": "65536", "MILLRACE_SERVER__ARCHIVE_FILE_AGE": "50 ms"}


def archived(folder):
    """The rows of all files. Each file must be readable, and its metadata must match its rows."""
    rows = []
    for path in history.files(folder):
        found = pq.read_table(path, partitioning=None).to_pylist()
        assert history.about_file(path)["rows"] == len(found)
        rows += [(row["__seq"], row["k"]) for row in found]
    return sorted(rows)


def feed_until_it_fails(server, rows):
    """Feed the server for as long as the test runs."""
    while server.millrace("feed", "s", "--no-reconnect", "--rate", "60000", stdin=rows).returncode == 0:
        pass


def test_a_server_that_is_killed_leaves_whole_files(tmp_path):
    folder = tmp_path / "history" / "s"
    rows = "".join(json.dumps({"k": k, "text": f"row {k}"}) + "\n" for k in range(60_000))
    rng = random.Random(5)
    there: list[tuple[int, int]] = []
    for life in range(3):
        with Server(tmp_path, **SIZES) as server:
            if not life:
                assert server.millrace("sql", STREAM).returncode == 0
            else:
                shown = server.json("stream", "show", "s")["archive"]
                assert shown["gaps"] == []
                # Rows of complete files are still there; the others come again from the journal.
                assert archived(folder)[: len(there)] == there
            feeding = threading.Thread(target=feed_until_it_fails, args=(server, rows), daemon=True)
            feeding.start()
            enough = len(history.files(folder)) + rng.randint(2, 6)
            while len(history.files(folder)) < enough:
                assert feeding.is_alive()
                feeding.join(0.002)
            server.process.kill()
            server.process.communicate()
            feeding.join()
        (tmp_path / "addresses.json").unlink()
        there = archived(folder)
        numbers = [seq for seq, _ in there]
        assert numbers == sorted(set(numbers))
        reach = history.read_reach(folder)
        assert reach is not None
        assert reach.open
        assert reach.last_seq <= numbers[-1]
    with Server(tmp_path, **SIZES) as server:
        answer = server.json("stream", "archive", "s")["archive"]
        assert answer["rows"] == server.json("stream", "show", "s")["tuples"] >= len(there)
        code, _, err = server.end()
    assert code == 0
    assert [seq for seq, _ in archived(folder)] == list(range(answer["rows"]))
    assert "killed while it wrote history" not in err
    reach = history.read_reach(folder)
    assert reach is not None
    assert not reach.open
