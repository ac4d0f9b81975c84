"""`millrace serve` as a process: its start, the errors that prevent it, and its end."""

import json
import socket
import subprocess
from pathlib import Path

import pyarrow.parquet as pq

from tests.cli.conftest import Server, millrace
from tests.warm.start import COLD

ROOT = Path(__file__).parents[2]


def refused(*arguments, code, **variables):
    done = millrace(*arguments, **variables)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def test_sigterm_flushes_all_fed_rows_and_exits_0(tmp_path):
    sql = """CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s;
              CREATE SINK f FROM q WITH (type = 'file', path = 'out.parquet');
              CREATE SINK o FROM q WITH (type = 'stdout')"""
    rows = "".join(f'{{"k": {k}}}\n' for k in range(5_000))
    with Server(tmp_path, command=COLD) as server:
        assert server.millrace("sql", sql).returncode == 0
        assert server.millrace("feed", "s", stdin=rows).returncode == 0
        code, out, err = server.end()
    assert code == 0, err
    assert "Traceback" not in err
    assert [json.loads(line)["k"] for line in out.splitlines()] == list(range(5_000))
    assert pq.read_table(tmp_path / "sinks/out.parquet")["k"].to_pylist() == list(range(5_000))
    # After a restart the server knows the statements of the first run.
    with Server(tmp_path) as again:
        assert [query["name"] for query in again.json("query", "list")] == ["q"]
        assert [sink["name"] for sink in again.json("sink", "list")] == ["f", "o"]
        assert again.end()[0] == 0


def test_a_killed_server_restarts_with_its_catalog(tmp_path):
    with Server(tmp_path) as server:
        assert server.millrace("sql", "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s").returncode == 0
        assert server.millrace("strategy", "set", "s", "bfs(3)").returncode == 0
        assert server.millrace("query", "pause", "q", "--reason", "for lunch").returncode == 0
        before = server.json("export")
    (tmp_path / "addresses.json").unlink()
    with Server(tmp_path) as again:
        assert again.json("export") == before
        assert again.end()[0] == 0


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused("serve", "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", code=1)
    assert said.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in said


def test_wrong_configuration_is_exit_78(tmp_path):
    file = tmp_path / "m.toml"
    file.write_text("[server]\nlisten = 5\nportt = 3\n")
    for command in (("serve",), ("config", "check")):
        said = refused(*command, "--config", str(file), code=78)
        assert said.count("\n") == 2
        assert "server.portt: unknown setting" in said
        assert refused(*command, "--listen", "0.0.0.0:0", code=78).count("\n") == 1
        assert "MILLRACE_LOG__LEVEL" in refused(*command, code=78, MILLRACE_LOG__LEVEL="loud")
    pem = tmp_path / "pem"
    pem.write_text("nonsense")
    pems = {"MILLRACE_SERVER__TLS_CERTIFICATE": str(pem), "MILLRACE_SERVER__TLS_KEY": str(pem)}
    assert "certificate" in refused("serve", code=78, **pems)
    database = tmp_path / "catalog.sqlite"
    database.write_text("this is no database, and long enough to be noticed as such" * 100)
    flags = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", str(tmp_path))
    said = refused("serve", *flags, code=1)
    assert (said.count("\n"), "cannot read the catalog" in said, "catalog.sqlite" in said) == (1, True, True)
    assert database.read_text().startswith("this is no database")


def test_config_check_prints_the_effective_configuration(tmp_path):
    done = millrace("config", "check", "--data-dir", str(tmp_path), MILLRACE_ENGINE__BUDGET="5")
    assert done.returncode == 0
    assert f'data_dir = "{tmp_path}"' in done.stdout
    assert "budget = 5" in done.stdout
    assert json.loads(millrace("config", "check", "--json").stdout)["server"]["listen"] == "127.0.0.1:7420"


def test_the_command_line_over_tls_with_a_token(tmp_path):
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    subprocess.run([*command.split(), *more], check=True, capture_output=True)
    (tmp_path / "token").write_text("secret\n")
    guards = {
        "MILLRACE_SERVER__TLS_CERTIFICATE": str(tmp_path / "cert"),
        "MILLRACE_SERVER__TLS_KEY": str(tmp_path / "key"),
        "MILLRACE_SERVER__TOKEN_FILE": str(tmp_path / "token"),
    }
    with Server(tmp_path, **guards) as server:
        here = {"MILLRACE_ADMIN": server.admin, "MILLRACE_CA_FILE": str(tmp_path / "cert")}
        asked = millrace("query", "list", **here)
        assert (asked.returncode, "requires a token: use --token-file" in asked.stderr) == (1, True)
        assert millrace("query", "list", MILLRACE_ADMIN=f"https://{server.admin}").returncode == 1
        here["MILLRACE_TOKEN_FILE"] = str(tmp_path / "token")
        assert millrace("sql", "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s", **here).returncode == 0
        fed = millrace("feed", "s", stdin='{"k": 1}\n', **here)
        assert fed.returncode == 0, fed.stderr
        assert millrace("tail", "q", "--from", "0", "--limit", "1", **here).stdout == '{"k":1}\n'
        assert server.end()[0] == 0
