"""The file of tokens: what it holds, how it changes while a server runs, and what its clients notice."""

import json
import os
import re
import stat
import threading
from typing import Any

import pytest

from millrace.access import tokens
from millrace.access.access import Access
from millrace.access.roles import Grant, Role, parse_grant
from millrace.access.tokens import TokensError, digest_of, read_tokens, revoke
from millrace.protocol.messages import Error, Open, Opened, Welcome
from millrace.run.config import ConfigError, ServerSection
from tests.server.harness import SCHEMA_SQL, lines, peer, played, running
from tests.server.test_api import ask

ADMIN = (Grant(Role.ADMIN),)
create: Any = tokens.create


@pytest.fixture
def path(tmp_path):
    create(tmp_path / "tokens.json", "admin", ADMIN, 1)
    return tmp_path / "tokens.json"


def admitted(access, token, port="admin"):
    return access.named(port, token, "the role read")


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_file_has_no_token_and_is_its_owners_alone(path):
    before = os.umask(0)
    try:
        made = create(path, "sensors", [parse_grant("feed:trams,buses")], 7, expires_us=9)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.token not in path.read_text()
    assert made.token.encode().hex() not in path.read_text()
    [_, sensors] = read_tokens(path)
    assert sensors == made.entry
    assert (sensors.digest, sensors.expires_us) == (digest_of(made.token), 9)
    assert len(made.token) >= 43
    assert [entry.name for entry in path.parent.iterdir()] == ["tokens.json"]


def test_a_second_token_of_a_name_has_its_roles(path):
    first = create(path, "sensors", [parse_grant("feed:trams")], 1)
    second = create(path, "sensors", [], 2)
    assert (second.entry.grants, second.replaces) == (first.entry.grants, 1)
    assert [token.name for token in read_tokens(path)] == ["admin", "sensors", "sensors"]
    with pytest.raises(TokensError, match="has feed:trams: revoke it first"):
        create(path, "sensors", [parse_grant("read")], 3)
    assert revoke(path, "sensors", older=True) == [first.entry]
    assert read_tokens(path)[1:] == [second.entry]
    assert revoke(path, second.entry.id) == [second.entry]
    with pytest.raises(TokensError, match="does not exist"):
        revoke(path, "sensors")


@pytest.mark.parametrize(
    ("name", "roles", "words"),
    [
        ("", ["read"], "expected a name"),
        ("a b", ["read"], "expected a name"),
        ("x" * 65, ["read"], "expected a name"),
        ("new", [], "say its roles"),
    ],
)
def test_what_cannot_be_created(path, name, roles, words):
    before = path.read_bytes()
    with pytest.raises(TokensError, match=words):
        create(path, name, list(map(parse_grant, roles)), 1)
    assert path.read_bytes() == before


def test_the_first_token_is_an_admins(tmp_path):
    """With it the server starts to require tokens: with another one nobody could create any over the network."""
    path = tmp_path / "tokens.json"
    with pytest.raises(TokensError, match="create an admin's token first"):
        create(path, "sensors", [parse_grant("feed")], 1)
    assert not path.exists()
    create(path, "sensors", [parse_grant("feed")], 1, other_admin=True)


def test_there_is_a_limit(path, monkeypatch):
    monkeypatch.setattr(tokens, "MOST_TOKENS", 2)
    create(path, "one", [parse_grant("read")], 1)
    with pytest.raises(TokensError, match="the limit: revoke one first"):
        create(path, "two", [parse_grant("read")], 1)


def test_changes_at_once_are_all_made(path):
    made = []
    threads = [
        threading.Thread(target=lambda n=n: made.append(create(path, f"t{n}", [parse_grant("read")], n)))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.name for token in read_tokens(path)} == {"admin", *(f"t{n}" for n in range(8))}


ENTRY: dict[str, Any] = {"name": "x", "roles": ["read"], "created_us": 1, "expires_us": None, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"version": 2, "tokens": []}',
        b'{"version": 1}',
        *(
            json.dumps({"version": 1, "tokens": [entry]}).encode()
            for entry in [
                {**ENTRY, "sha256": "0" * 63},
                {**ENTRY, "sha256": None},
                {**ENTRY, "certificate": "CN=x"},
                {**ENTRY, "roles": ["reader"]},
                {**ENTRY, "roles": 5},
                {**ENTRY, "name": 7},
                {**ENTRY, "expires_us": "soon"},
                {**ENTRY, "created_us": True},
                [],
            ]
        ),
        b"[" * 100_000,
        b" " * (tokens.MOST_BYTES + 1),
    ],
)
def test_a_damaged_file_is_one_clear_line(tmp_path, content):
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    with pytest.raises(TokensError) as error:
        read_tokens(path)
    assert str(path) in error.value.text
    assert "\n" not in error.value.text
    with pytest.raises(TokensError):
        create(path, "x", ADMIN, 1)
    assert path.read_bytes() == content


# -- who a client is ---------------------------------------------------------------------------------------------------


def test_tokens_of_every_kind(tmp_path, path):
    """One file for both ports, and single tokens for the port that the configuration says."""
    (tmp_path / "both").write_text("for both\n")
    (tmp_path / "http").write_text("for http\n")
    made = create(path, "reads", [parse_grant("read")], 1).token
    for settings, valid in (
        ({}, {}),
        ({"token_file": "both"}, {("listen", "for both"), ("admin", "for both")}),
        ({"admin_token_file": "http"}, {("admin", "for http")}),
        ({"token_file": "both", "admin_token_file": "http"}, {("listen", "for both"), ("admin", "for http")}),
    ):
        for with_tokens in (False, True):
            given = {name: tmp_path / file for name, file in settings.items()}
            section = ServerSection(**given, **({"tokens_file": path} if with_tokens else {}))
            access = Access(section, lambda: 0)
            for port in ("listen", "admin"):
                known = {token for at, token in valid if at == port} | ({made} if with_tokens else set())
                assert access.required(port) == bool(known)
                assert (access.unnamed(port, ()) is None) == bool(known)
                for token in ("for both", "for http", made, "", "for bot", "for both\n", "\ud800"):
                    if token in known:
                        caller = admitted(access, token, port)
                        assert caller.unlimited == (token != made)
                        assert access.holds(port, caller)
                    else:
                        with pytest.raises(Exception, match="not known here"):
                            admitted(access, token, port)


def test_an_expired_token_says_so(path):
    token = create(path, "short", [parse_grant("read")], 1, expires_us=1_000_000).token
    now = [999_999]
    access = Access(ServerSection(tokens_file=path), lambda: now[0])
    caller = admitted(access, token)
    assert access.holds("admin", caller)
    assert not access.news()
    now[0] = 1_000_000
    assert access.news()
    assert not access.news()
    assert not access.holds("admin", caller)
    with pytest.raises(Exception, match=re.escape("short, which expired at 1970-01-01T00:00:01Z")):
        admitted(access, token)
    assert access.failures["admin", "expired"] == 1


def test_a_token_with_other_roles_is_another_one(path):
    token = create(path, "reads", [parse_grant("read")], 1).token
    access = Access(ServerSection(tokens_file=path), lambda: 0)
    caller = admitted(access, token)
    path.write_text(path.read_text().replace('"read"', '"read:board"'))
    access.reload()
    assert not access.holds("admin", caller)
    assert access.holds("admin", admitted(access, token))


def test_a_file_that_cannot_be_read_changes_nothing(path):
    token = create(path, "reads", [parse_grant("read")], 1).token
    access = Access(ServerSection(tokens_file=path), lambda: 0)
    good = path.read_bytes()
    for break_it in (lambda: path.write_bytes(b"{"), path.unlink):
        break_it()
        assert not access.refresh()
        assert not access.news()
        assert "the earlier ones are still valid" in str(access.problem)
        assert admitted(access, token).name == "reads"
        assert access.required("listen")
    path.write_bytes(good)
    assert access.refresh()
    assert access.problem is None
    assert access.news()
    assert not access.refresh()
    path.unlink()
    with pytest.raises(TokensError):
        access.reload()


def test_a_server_does_not_start_with_a_damaged_file(tmp_path):
    from millrace.access.access import check_tokens

    (tmp_path / "tokens.json").write_text("{")
    with pytest.raises(ConfigError, match=r"server.tokens_file: .*it is damaged"):
        check_tokens(ServerSection(data_dir=tmp_path))
    check_tokens(ServerSection(data_dir=tmp_path / "new"))


def test_a_missing_file_that_is_configured_lets_nobody_in(tmp_path):
    access = Access(ServerSection(tokens_file=tmp_path / "none"), lambda: 0)
    assert access.required("listen")
    assert access.unnamed("admin", ()) is None


# -- a running server --------------------------------------------------------------------------------------------------


@played
async def test_old_and_new_during_rotation(tmp_path):
    """The file changes while the server runs: by itself, over HTTP and with SIGHUP."""
    path = tmp_path / "data" / "tokens.json"
    path.parent.mkdir()
    admin = create(path, "admin", ADMIN, 1).token
    old = create(path, "sensors", [parse_grant("feed:s")], 1).token
    async with running(SCHEMA_SQL, server={"data_dir": path.parent}) as daemon:
        async with peer(daemon, greet=False) as feeding, lines(daemon) as nc, peer(daemon, greet=False) as other:
            assert isinstance(await feeding.greet(old), Welcome)
            feeding.say(Open(0, "s", None, "p"))
            await feeding.hear(Opened)
            nc.say(json.dumps({"token": old}))
            assert isinstance(await other.greet(admin), Welcome)

            new = create(path, "sensors", [], 2).token
            async with peer(daemon, greet=False) as next_one:
                assert isinstance(await next_one.greet(new), Welcome)
            assert len(daemon.context.connections) >= 3

            revoke(path, "sensors", older=True)
            status, _, said = await ask(daemon, "POST", "/api/v1/reload", token=admin)
            assert (status, said["tokens"]) == (200, 2)
            ended = await feeding.hear(Error)
            assert (ended.code, ended.text) == ("unauthorised", "the token is no longer valid: send another one")
            assert (await nc.hear_until(b"unauthorised")) is not None
            assert daemon.access.named("listen", new, "").name == "sensors"
            async with peer(daemon, greet=False) as late:
                said = await late.greet(old)
                assert (said.code, said.text.endswith("got one that is not known here")) == ("unauthorised", True)
            assert len(daemon.context.connections) == 1  # the admin's

        path.write_text("{")
        status, _, said = await ask(daemon, "POST", "/api/v1/reload", token=admin)
        assert (status, said["code"]) == (409, "tokens")
        status, _, said = await ask(daemon, "GET", "/-/healthy")
        assert "the earlier ones are still valid" in said
        daemon.hang_up()
        assert (await ask(daemon, "GET", "/api/v1/streams", token=admin))[0] == 200


@played
async def test_the_first_token_closes_the_server_to_everybody_else(tmp_path):
    async with running(SCHEMA_SQL, server={"data_dir": tmp_path}) as daemon, peer(daemon) as anonymous:
        assert (await ask(daemon, "GET", "/api/v1/streams"))[0] == 200
        assert not daemon.describe().listen_guard.token
        admin = create(tmp_path / "tokens.json", "admin", ADMIN, 1).token
        daemon.hang_up()
        assert (await anonymous.hear(Error)).code == "unauthorised"
        assert (await ask(daemon, "GET", "/api/v1/streams"))[0] == 401
        assert (await ask(daemon, "GET", "/api/v1/streams", token=admin))[0] == 200
        assert daemon.describe().listen_guard.token
