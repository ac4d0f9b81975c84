"""Client certificates as identities, certificates that change while the server runs, and what a browser may do."""

import asyncio
import json
import shutil
import ssl
import subprocess
from contextlib import suppress
from typing import Any

import pytest

from millrace.access.certificates import Certificates, check_certificates
from millrace.access.roles import Grant, Role, parse_grant
from millrace.access.tokens import create, revoke
from millrace.http.api import build
from millrace.protocol.messages import Open, Opened, Welcome
from millrace.run.config import ConfigError, ServerSection, load
from millrace.run.daemon import Daemon
from tests.server.harness import SCHEMA_SQL, peer, played, running, served, settings
from tests.server.test_api import ask, get

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two authorities, two certificates of a server, and clients of both authorities."""
    folder = tmp_path_factory.mktemp("keys")

    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)

    for name in ("ca", "other-ca"):
        openssl("req", "-x509", *KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    for name, authority, names in (
        ("server", "ca", "IP:127.0.0.1"),
        ("server2", "ca", "IP:127.0.0.1"),
        ("sensors", "ca", "DNS:sensors.example.org"),
        ("unknown", "ca", "DNS:unknown.example.org"),
        ("stranger", "other-ca", "DNS:sensors.example.org"),
    ):
        subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"]
        signed = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"]
        openssl("req", "-x509", *KEY, *subject, *signed, "-keyout", f"{name}.key", "-out", f"{name}.pem")
    return folder


def trust(keys, client=None):
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if client is not None:
        context.load_cert_chain(keys / f"{client}.pem", keys / f"{client}.key")
    return context


def server_of(keys, folder, **more):
    for kind in ("pem", "key"):
        shutil.copy(keys / f"server.{kind}", folder / f"live.{kind}")
    return {
        "tls_certificate": folder / "live.pem",
        "tls_key": folder / "live.key",
        "tls_client_ca": keys / "ca.pem",
        "tokens_file": folder / "tokens.json",
        **more,
    }


@pytest.mark.parametrize("named", ["CN=sensors", "DNS:sensors.example.org"])
def test_a_certificate_has_roles_like_a_token(keys, tmp_path, named):
    path = tmp_path / "tokens.json"
    admin = create(path, "admin", [Grant(Role.ADMIN)], 1).token
    create(path, "sensors", [parse_grant("feed:s"), parse_grant("read:q")], 1, certificate=named)

    @served(SCHEMA_SQL, server=server_of(keys, tmp_path))
    async def play(daemon):
        mine, unknown, none = (trust(keys, client) for client in ("sensors", "unknown", None))
        async with peer(daemon, ssl=mine) as client:
            assert isinstance(client.heard[0], Welcome)
            client.say(Open(0, "s", None, "p"))
            await client.hear(Opened)
            assert daemon.context.connections
            (connection,) = daemon.context.connections
            assert connection.caller.name == "sensors"
        for context in (unknown, none):
            async with peer(daemon, greet=False, ssl=context) as client:
                assert (await client.greet()).code == "unauthorised"
            async with peer(daemon, greet=False, ssl=context) as client:
                assert isinstance(await client.greet(admin), Welcome)
        assert (await ask(daemon, "GET", "/api/v1/queries/q", ssl=mine))[0] == 200
        status, _, said = await ask(daemon, "DELETE", "/api/v1/queries/q", ssl=mine)
        assert (status, said["detail"]) == (403, "this needs the role change for q; sensors has feed:s read:q")
        assert (await ask(daemon, "GET", "/api/v1/queries/q", ssl=unknown))[0] == 401
        assert (await ask(daemon, "GET", "/api/v1/queries/q", ssl=unknown, token=admin))[0] == 200
        said = None
        with suppress(OSError):  # of another authority
            async with peer(daemon, greet=False, ssl=trust(keys, "stranger")) as client:
                said = await client.greet(admin)
        assert said is None
        reader, writer = await asyncio.open_connection(daemon.listen.host, daemon.listen.port, ssl=mine)
        writer.write(b'{"stream": "s", "tuple": {"k": 1}}\n{"subscribe": "q", "from": 0}\n')
        assert json.loads(await reader.readline())["row"]["k"] == 1
        revoke(path, "sensors")
        daemon.hang_up()
        assert json.loads(await reader.readline())["error"]["code"] == "unauthorised"
        writer.close()
        assert (await ask(daemon, "GET", "/api/v1/queries/q", ssl=mine))[0] == 401

    play()


@played
async def test_a_browser_that_shows_a_certificate_must_name_the_server(tmp_path):
    """A page of another site knows no token, but the browser shows the certificate for it."""
    from tests.server.test_roles import answer

    path = tmp_path / "tokens.json"
    admin = create(path, "admin", [Grant(Role.ADMIN)], 1).token
    create(path, "console", [Grant(Role.ADMIN)], 1, certificate="CN=console")
    async with running(SCHEMA_SQL, server={"tokens_file": path}) as daemon:
        app = build(daemon)
        shown = {"millrace.certificate": frozenset({"CN=console"})}
        for state, token, host, status in (
            (shown, None, "localhost", 200),
            (shown, None, "evil.example.org", 403),
            ({}, admin, "evil.example.org", 200),
            ({}, None, "localhost", 401),
        ):
            found = await answer(app, "GET", "/api/v1/server", token, state=state, host=host)
            assert found[0] == status, (state, host)


def subject(transport):
    return dict(part[0] for part in transport.get_extra_info("peercert")["subject"])["commonName"]


@played
async def test_certificates_are_read_again_when_they_change(keys, tmp_path):
    admin = create(tmp_path / "tokens.json", "admin", [Grant(Role.ADMIN)], 1).token
    async with running(SCHEMA_SQL, server=server_of(keys, tmp_path)) as daemon:

        async def shown():
            """The names in the certificates of both ports."""
            names = []
            for address in (daemon.listen, daemon.admin):
                _, writer = await asyncio.open_connection(*address, ssl=trust(keys))
                names.append(subject(writer.transport))
                writer.close()
            return names

        assert await shown() == ["server", "server"]
        async with peer(daemon, greet=False, ssl=trust(keys)) as early:
            shutil.copy(keys / "server2.pem", tmp_path / "live.pem")  # without its key
            daemon.certificates.refresh()
            assert await shown() == ["server", "server"]
            assert "the earlier ones are still used" in (await get(daemon, "/-/healthy", ssl=trust(keys)))
            status, _, said = await ask(daemon, "POST", "/api/v1/reload", ssl=trust(keys), token=admin)
            assert (status, said["code"]) == (409, "certificate")
            shutil.copy(keys / "server2.key", tmp_path / "live.key")
            daemon.certificates.refresh()
            assert await shown() == ["server2", "server2"]
            assert await get(daemon, "/-/healthy", ssl=trust(keys)) == "healthy\n"
            status, _, said = await ask(daemon, "POST", "/api/v1/reload", ssl=trust(keys), token=admin)
            assert (status, said) == (200, {"tokens": 1, "certificates": 1})
            assert isinstance(await early.greet(admin), Welcome)


@pytest.mark.parametrize("port", ["listen", "admin"])
def test_tls_below_1_2_is_refused(keys, tmp_path, port):
    contexts = Certificates(ServerSection(tls_certificate=keys / "server.pem", tls_key=keys / "server.key"))
    context: Any = contexts.context(port)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert Certificates(ServerSection()).context(port) is None


def test_what_is_wrong_with_certificates_is_said_at_the_start(keys, tmp_path):
    with pytest.raises(ConfigError, match=r"server\.pem with key"):
        check_certificates(ServerSection(tls_certificate=keys / "server.pem", tls_key=keys / "ca.key"))
    (tmp_path / "empty").write_text("")
    pair = {"tls_certificate": keys / "server.pem", "tls_key": keys / "server.key"}
    with pytest.raises(ConfigError, match="authority of client certificates"):
        check_certificates(ServerSection(**pair, tls_client_ca=tmp_path / "empty"))
    with pytest.raises(ConfigError, match=r"server\.tls_client_ca: clients show certificates over TLS alone"):
        load(flags={"server": {"tls_client_ca": keys / "ca.pem"}})


def test_no_route_is_html_unnoticed():
    """Routes with a name in their path answer with JSON."""
    document = build(Daemon(settings())).openapi()
    kinds = {
        kind
        for path, methods in document["paths"].items()
        for answers in methods.values()
        for reply in answers["responses"].values()
        for kind in reply.get("content", ())
    }
    assert "text/html" not in kinds
