"""A new data directory requires tokens; an earlier one keeps its setting; programs of the same user find the token."""

import json
import os
import re
import stat
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.access.access import Access
from millrace.access.first import prepare
from millrace.access.roles import Grant, Role
from millrace.access.tokens import read_tokens
from millrace.cli.link import Link
from millrace.client.local import local_token
from millrace.run.announcement import Announcement
from millrace.run.config import Address, ConfigError, load
from millrace.store.backups import make_backup
from tests.cli.conftest import Server, millrace
from tests.server.harness import SCHEMA_SQL, played, running


def settings(folder, **server):
    return load(flags={"server": {"data_dir": folder, **server}})


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_a_new_directory_gets_two_tokens(data):
    made = prepare(settings(data))
    assert made is not None
    access = Access(settings(data).server, lambda: 0)
    for file, name, role in ((made.admin, "admin", Role.ADMIN), (made.scrape, "prometheus", Role.READ)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        caller = access.named("admin", file.read_text().strip(), "")
        assert (caller.name, caller.grants) == (name, (Grant(role),))
    lines = list(made.uses(Address("127.0.0.1", 7420), "http://127.0.0.1:7421"))
    assert [line.split()[0] for line in lines] == ["commands", "curl", "nc", "Prometheus"]
    assert prepare(settings(data)) is None  # the next start
    assert len(read_tokens(data / "tokens.json")) == 2


@pytest.mark.parametrize("left", [[], ["admin.token"], ["admin.token", "prometheus.token"], ["lost+found"]])
def test_a_start_that_was_killed_before_is_repeated(data, left):
    """A directory without `tokens.json` must not look like one of an earlier version."""
    for name in left:
        (data / name).write_text("of the killed one")
    made = prepare(settings(data))
    assert made is not None
    assert made.admin.read_text() != "of the killed one"


def test_a_directory_that_does_not_exist_is_new(tmp_path):
    config = settings(tmp_path / "none")
    (tmp_path / "none").mkdir()
    assert prepare(config) is not None


@pytest.mark.parametrize(
    ("files", "server", "creates"),
    [
        (["catalog.sqlite"], {}, False),  # of an earlier version
        (["catalog.sqlite"], {"auth": "token"}, True),
        ([], {"auth": "off"}, False),
        ([], {"auth": "token"}, True),
        ([], {"token_file": "one"}, False),
        ([], {"tokens_file": "one"}, False),
        (["tokens.json"], {}, False),
    ],
)
def test_who_gets_tokens(data, tmp_path, files, server, creates):
    (tmp_path / "one").write_text("a token\n")
    for name in files:
        (data / name).write_text('{"version": 1, "tokens": []}')
    given = {key: tmp_path / value if key.endswith("_file") else value for key, value in server.items()}
    assert (prepare(settings(data, **given)) is not None) == creates


def test_a_standby_gets_the_tokens_of_its_copy(data):
    config = load(flags={"server": {"data_dir": data}, "standby": {"follow": "10.0.0.1"}})
    assert prepare(config) is None


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"auth": "token"}, "server.auth: 'token' needs a token: set server.data_dir"),
        ({"auth": "off", "listen": "0.0.0.0:7420"}, "is open to the network"),
        ({"auth": "maybe"}, "expected 'token' or 'off'"),
    ],
)
def test_what_cannot_be(server, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(flags={"server": server})


def test_off_is_for_loopback_alone(tmp_path):
    for name in ("pem", "token"):
        (tmp_path / name).write_text("x\n")
    files = {"tls_certificate": tmp_path / "pem", "tls_key": tmp_path / "pem", "token_file": tmp_path / "token"}
    opened = {"listen": "0.0.0.0:7420", **files}
    load(flags={"server": opened})
    with pytest.raises(ConfigError, match="cannot be 'off'"):
        load(flags={"server": {**opened, "auth": "off"}})
    # A new data directory is as good as a token.
    del opened["token_file"]
    load(flags={"server": {**opened, "data_dir": tmp_path / "new"}})


@played
async def test_off_needs_no_token_even_with_tokens(data):
    assert prepare(settings(data)) is not None
    async with running(SCHEMA_SQL, server={"data_dir": data, "auth": "off"}) as daemon:
        assert not daemon.describe().admin_guard.token
        backup = make_backup(data, data.parent / "backup", 1)
        assert "tokens.json" in backup.files
        assert not any(name.endswith(".token") for name in backup.files)


# -- programs of the same user -----------------------------------------------------------------------------------------


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("MILLRACE_TOKEN", raising=False)
    return tmp_path / "run"


def announced(data, **server):
    config = settings(data, **server)
    daemon: Any = SimpleNamespace(
        settings=config, listen=Address("127.0.0.1", 1), admin=Address("127.0.0.1", 2), admin_url="http://127.0.0.1:2"
    )
    return Announcement(daemon)


def test_an_announcement_is_found_by_this_user_alone(data, runtime):
    made = prepare(settings(data))
    assert made is not None
    announcement = announced(data)
    announcement.write()
    token = made.admin.read_text().strip()
    for port in (1, 2):
        path = runtime / "millrace" / str(port)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text())["pid"] == os.getpid()
        assert token not in path.read_text()
        assert local_token("127.0.0.1", port) == local_token("localhost", port) == token
        assert local_token("10.0.0.1", port) is None
    assert Link("127.0.0.1:2").token == token
    assert Link("http://localhost:2").token == token
    assert Link("127.0.0.1:3").token is None
    (runtime / "millrace" / "2").chmod(0o644)
    assert local_token("127.0.0.1", 2) is None  # another user may have written it
    path, alive, file = runtime / "millrace" / "1", os.getpid(), str(made.admin)
    killed = subprocess.Popen(["true"])
    killed.wait()
    for pid, named, found in (
        (alive, file, token),
        (killed.pid, file, None),
        (10**30, file, None),
        (None, file, None),
        (alive, "/none", None),
        (alive, None, None),
        (alive, 5, None),
    ):
        path.write_text(json.dumps({"pid": pid, "token_file": named}))
        assert local_token("127.0.0.1", 1) == found, (pid, named)
    for text in ("", "{", "[]", "{}"):
        path.write_text(text)
        assert local_token("127.0.0.1", 1) is None


def test_without_a_runtime_folder_it_is_among_the_temporary_files(data, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    announced(data).write()
    assert local_token("127.0.0.1", 1) is None
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = prepare(settings(data))
    assert made is not None
    announcement = announced(data)
    announcement.write()
    folder = tmp_path / f"millrace-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert local_token("127.0.0.1", 1) == made.admin.read_text().strip()
    folder.chmod(0o755)  # as if another user had made it
    assert local_token("127.0.0.1", 1) is None
    announcement.remove()
    announcement.write()
    assert list(folder.iterdir()) == []
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    folder.chmod(0o700)
    announcement.write()
    assert list(folder.iterdir()) == []


def test_an_announcement_ends_with_its_server(data, runtime):
    announcement = announced(data)
    announcement.write()
    (runtime / "millrace" / "1").write_text('{"pid": 1}')  # another server has the port
    announcement.remove()
    assert [path.name for path in (runtime / "millrace").iterdir()] == ["1"]


def test_a_server_with_a_new_directory(data, runtime, tmp_path):
    with Server(data, guarded=True, XDG_RUNTIME_DIR=str(runtime)) as server:
        here = {"MILLRACE_ADMIN": server.admin}
        assert millrace("query", "list", XDG_RUNTIME_DIR=str(runtime), **here).returncode == 0
        refused = millrace("query", "list", **here)
        assert (refused.returncode, "requires a token" in refused.stderr) == (1, True)
        file = str(data / "admin.token")
        done = millrace("sql", "CREATE STREAM s (k BIGINT)", "--token-file", file, **here)
        assert done.returncode == 0
        code = (
            "import sys; from millrace.client import Client; c = Client(sys.argv[1], reconnect=None);"
            "f = c.open('s'); f.send([(1,)]); f.flush(); c.close(); print('fed')"
        )
        done = subprocess.run([sys.executable, "-c", code, server.listen], capture_output=True, text=True, check=False)
        assert done.stdout == "fed\n", done.stderr
        mine = {"XDG_RUNTIME_DIR": str(runtime), **here}
        board = str(tmp_path / "board.token")
        assert millrace("token", "create", "board", "read:s", "-o", board, **mine).returncode == 0
        assert millrace("query", "list", "--token-file", board, **here).returncode == 0
        assert [line.split()[0] for line in millrace("token", "list", **mine).stdout.splitlines()] == [
            "name", "admin", "prometheus", "board",
        ]  # fmt: skip
        assert millrace("token", "revoke", "board", **mine).returncode == 0
        assert [token.name for token in read_tokens(data / "tokens.json")] == ["admin", "prometheus"]
        _, _, err = server.end()
        assert "This server requires a token." in err
        assert f"--token-file {file}" in err
        assert (data / "admin.token").read_text().strip() not in err
    assert list((runtime / "millrace").iterdir()) == []
    with Server(data, guarded=True) as again:
        assert millrace("query", "list", MILLRACE_ADMIN=again.admin).returncode == 1
        assert "Its clients use it like this" not in again.end()[2]
