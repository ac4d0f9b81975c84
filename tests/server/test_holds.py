"""A file of a sink has one server that writes it."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from millrace.protocol import Refuse
from millrace.store.holds import hold, release
from tests.patience import HANG_SECONDS
from tests.server.directories import feed
from tests.server.harness import served, until

OTHER = """
import fcntl, os, sys
handle = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another(path):
    """Another process writes a file or a folder, as far as anyone can see."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.kill()
        process.communicate(timeout=HANG_SECONDS)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_is_held_by_one_process_and_shared_in_it(tmp_path, kind):
    path = tmp_path / "place"
    path.mkdir() if kind == "folder" else path.touch()
    handle = os.open(path, os.O_RDONLY)
    with held_by_another(path), pytest.raises(Refuse, match="another server writes it"):
        hold(handle, path)
    key = hold(handle, path)
    assert hold(handle, path) == key
    release(key)
    os.close(handle)
    with pytest.raises(AssertionError), held_by_another(path):  # it is still held once
        pass
    release(key)
    with held_by_another(path):
        pass


@served("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s")
async def test_a_sink_waits_until_the_other_server_has_gone(daemon, tmp_path):
    path = tmp_path / "out.jsonl"
    create = f"CREATE SINK f FROM q WITH (type = 'file', path = '{path}')"
    path.touch()
    with held_by_another(path), pytest.raises(Refuse, match="another server writes it; stop that one first"):
        await daemon.catalog.execute(create)
    await daemon.catalog.execute(create)
    await feed(daemon, 0, 1)
    await until(lambda: path.stat().st_size)
    path.rename(tmp_path / "before.jsonl")  # as a rotation of logs does: it is opened again
    path.touch()
    with held_by_another(path):
        await feed(daemon, 1, 3)
        await until(lambda: daemon.catalog.sinks()[0].state == "waiting")
        assert "another server writes it" in daemon.catalog.sinks()[0].reason
    await until(lambda: daemon.catalog.sinks()[0].state == "running")
    assert path.read_text().count("\n") == 3
