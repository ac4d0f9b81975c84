"""`millrace token`: what it prints and writes, and its answers to wrong input."""

import json
import os
import stat

import pytest
from typer.testing import CliRunner

from millrace.cli.application import assemble
from millrace.cli.commands import COMMANDS
from millrace.protocol import MillraceError

APP = assemble(command for command in COMMANDS if command.path.startswith("token "))


def token(*arguments):
    """One command. A MillraceError is what `main` prints as one line."""
    done = CliRunner().invoke(APP, ["token", *arguments])
    if isinstance(done.exception, MillraceError):
        return 1, done.exception.text
    return done.exit_code, done.output


@pytest.fixture
def here(tmp_path):
    return ["--data-dir", str(tmp_path / "data")]


def test_create_list_and_revoke(here, tmp_path):
    secret = tmp_path / "admin.token"
    assert token("create", "admin", "admin", "-o", str(secret), *here) == (0, "created token admin: admin\n")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert len(secret.read_text().strip()) >= 43
    code, printed = token("create", "sensors", "feed:trams,buses", "read:board", "--expires", "2 days", *here)
    assert code == 0
    shown, told = printed.splitlines()
    assert told == "created token sensors: feed:buses,trams read:board"
    assert shown not in (tmp_path / "data" / "tokens.json").read_text()
    code, printed = token("create", "sensors", "--json", *here)
    made = json.loads(printed)
    assert (made["roles"], made["expires_us"]) == (["feed:buses,trams", "read:board"], None)
    assert made["token"] != shown
    _, printed = token("list", "--json", *here)
    listed = json.loads(printed)
    assert [(one["name"], one["id"] == made["id"]) for one in listed] == [
        ("admin", False),
        ("sensors", False),
        ("sensors", True),
    ]
    assert listed[1]["expires_us"] - listed[1]["created_us"] == 2 * 86_400_000_000
    assert token("revoke", "sensors", "--older", *here)[1] == f"revoked sensors ({listed[1]['id']})\n"
    assert token("revoke", made["id"], *here)[1] == f"revoked sensors ({made['id']})\n"
    assert [one.split()[0] for one in token("list", *here)[1].splitlines()] == ["name", "admin"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("create", "sensors", "feed"), 1, "create an admin's token first"),
        (("create", "x", "reader"), 2, "expected a role (feed, read, operate, change, admin)"),
        (("create", "x", "admin:trams"), 2, "the role admin is for the whole server"),
        (("create", "x", "read:trams.late"), 2, "expected names of streams and queries"),
        (("create", "x y", "admin"), 1, "expected a name of letters"),
        (("create", "x"), 1, "say its roles"),
        (("create", "x", "admin", "--expires", "soon"), 2, "--expires"),
        (("create", "x", "admin", "--expires", "0 s"), 2, "above 0"),
        (("create", "x", "admin", "-o", "/"), 1, "/ exists: name a new file"),
        (("create", "x", "admin", "-o", "/none/x"), 1, "cannot create /none/x"),
        (("revoke", "x"), 1, "token x does not exist"),
    ],
)
def test_wrong_input_is_one_clear_answer(here, tmp_path, arguments, code, words):
    answered, text = token(*arguments, *here)
    assert (answered, words in " ".join(text.replace("│", " ").split())) == (code, True), text
    assert not (tmp_path / "data" / "tokens.json").exists()


@pytest.mark.parametrize("command", [("create", "x", "admin"), ("list",), ("revoke", "x")])
def test_without_a_data_directory_and_a_server(command, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    code, text = token(*command, "--admin", "127.0.0.1:1")
    assert (code, text.partition(",")[0]) == (1, "you run no server at 127.0.0.1:1 on this machine")
    (tmp_path / "millrace").mkdir(mode=0o700)
    (tmp_path / "millrace" / "1").touch(mode=0o600)
    (tmp_path / "millrace" / "1").write_text(json.dumps({"pid": os.getpid(), "tokens_file": None}))
    code, text = token(*command, "--admin", "127.0.0.1:1")
    assert (code, text) == (
        1,
        "the server at 127.0.0.1:1 has no data directory for tokens: restart it with --data-dir",
    )


@pytest.mark.parametrize("token_file", [None, "admin.token", "single.token"])
def test_a_running_server_is_found_by_its_port(token_file, tmp_path, monkeypatch):
    """One with another token of an admin may have a first token with any role."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "millrace").mkdir(mode=0o700)
    (tmp_path / "millrace" / "1").touch(mode=0o600)
    about = {"pid": os.getpid(), "tokens_file": str(tmp_path / "tokens.json"), "token_file": token_file}
    (tmp_path / "millrace" / "1").write_text(json.dumps(about))
    code, text = token("create", "x", "read", "--admin", "127.0.0.1:1")
    assert code == (0 if token_file == "single.token" else 1)
    assert (tmp_path / "tokens.json").exists() == (code == 0)
    assert code == 0 or "create an admin's token first" in text


def test_a_failed_creation_leaves_no_file(here, tmp_path):
    assert token("create", "sensors", "feed", "-o", str(tmp_path / "made"), *here)[0] == 1
    assert not (tmp_path / "made").exists()
