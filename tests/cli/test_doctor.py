"""`millrace doctor` and `millrace support-bundle` against a real server."""

import io
import json
import tarfile

from tests.cli.conftest import Server, millrace

SQL = """CREATE STREAM a (at TIMESTAMP, k BIGINT) WITH (time = 'at', update_key = 'k');
CREATE STREAM b (at TIMESTAMP, k BIGINT) WITH (time = 'at');
CREATE QUERY all_of_it WITH (order = 'event') AS SELECT at, k FROM a UNION ALL SELECT at, k FROM b;
CREATE QUERY newest AS SELECT k, at FROM a LATEST;
CREATE SINK out FROM newest WITH (type = 'file', path = 'out.jsonl', freshness = '1 us')"""
ROWS = '{"at": "2026-01-01T00:00:09Z", "k": 424242}\n{"at": "2026-01-01T00:00:03Z", "k": 2}\n'


def test_a_server_that_needs_nothing(server):
    done = server.millrace("doctor")
    assert (done.returncode, done.stdout) == (0, "nothing to advise\n"), done
    assert server.json("doctor") == []


def test_no_server():
    done = millrace("doctor", "--admin", "127.0.0.1:1")
    assert done.returncode == 1
    assert "start one with `millrace serve`" in done.stderr


def parts_of(path):
    with tarfile.open(path) as tar:
        return {entry.name.partition("/")[2]: content(tar, entry).decode() for entry in tar}


def content(tar, entry):
    file = tar.extractfile(entry)
    assert file is not None
    return file.read()


def test_a_problem_is_reported_with_a_command_that_helps(tmp_path):
    token = "a-token-that-nobody-shall-see"
    (tmp_path / "token").write_text(token + "\n")
    guards = {"MILLRACE_SERVER__TOKEN_FILE": str(tmp_path / "token")}
    with Server(tmp_path, **guards) as server:
        here = {"MILLRACE_ADMIN": server.admin, "MILLRACE_TOKEN_FILE": str(tmp_path / "token")}
        (tmp_path / "other").write_text("another\n")
        for given, words in (
            ({}, "requires a token: use --token-file FILE, or set MILLRACE_TOKEN_FILE or MILLRACE_TOKEN"),
            ({"MILLRACE_TOKEN": "another"}, "refuses the token in MILLRACE_TOKEN"),
            (
                {"MILLRACE_TOKEN_FILE": str(tmp_path / "other")},
                f"refuses the token in {tmp_path / 'other'} (--token-file)",
            ),
        ):
            done = millrace("query", "list", **{"MILLRACE_ADMIN": server.admin, **given})
            assert done.returncode == 1
            assert words in done.stderr
        assert millrace("sql", SQL, **here).returncode == 0
        assert millrace("feed", "a", stdin=ROWS, **here).returncode == 0
        found = json.loads(millrace("doctor", "--json", **here).stdout)
        late = next(one for one in found if one["code"] == "late")
        assert late["try"] == "millrace sql \"ALTER STREAM a SET (disorder = '6 seconds')\""
        assert f"{late['text']}\n  try: {late['try']}\n" in millrace("doctor", **here).stdout
        assert millrace("sql", "ALTER STREAM a SET (disorder = '6 seconds')", **here).returncode == 0
        followed = json.loads(millrace("doctor", "--json", **here).stdout)
        assert [advice["text"] for advice in followed if advice["code"] == "late"] == []

        bundle = tmp_path / "bundle.tar.gz"
        done = millrace("support-bundle", "-o", str(bundle), **here)
        assert done.returncode == 0, done
        assert "left out are\n  rows and tuples" in done.stderr
        again = millrace("support-bundle", "-o", str(bundle), **here)
        assert (again.returncode, "exists: name another file" in again.stderr) == (1, True)
        assert server.end()[0] == 0
    assert bundle.stat().st_mode & 0o077 == 0
    parts = parts_of(bundle)
    assert set(parts) == {
        *("README.txt", "advice.json", "catalog.sql", "components.json", "configuration.json", "log.jsonl"),
        *("metrics.txt", "operators.json", "plans.txt", "queries.json", "server.json", "sinks.json", "streams.json"),
        *("tables.txt", "why.json"),
    }
    for name, text in parts.items():
        assert text, name
        assert token not in text, name
        assert "424242" not in text, name
    assert str(tmp_path / "token") not in parts["configuration.json"]
    assert json.loads(parts["configuration.json"])["server"]["token_file"] == "(set, left out)"
    assert "CREATE QUERY newest AS SELECT k, at FROM a LATEST;" in parts["catalog.sql"]
    assert "all_of_it.union1" in parts["tables.txt"]
    assert '"event": "ready"' in parts["log.jsonl"]
    assert "millrace_build_info" in parts["metrics.txt"]
    assert json.loads(parts["server.json"])["process"]["libraries"]["numpy"]
    assert io.StringIO(parts["README.txt"]).readline().startswith("Made by millrace support-bundle")


def test_each_port_with_a_separate_token(tmp_path):
    """Each token goes to its port, whether a flag or a file sets it. A wrong token is reported with its flag."""
    streams, admin, wrong = tmp_path / "streams", tmp_path / "admin", tmp_path / "wrong"
    for file in (streams, admin, wrong):
        file.write_text(f"the token of {file.name}\n")
    guards = {"MILLRACE_SERVER__TOKEN_FILE": str(streams), "MILLRACE_SERVER__ADMIN_TOKEN_FILE": str(admin)}
    with Server(tmp_path / "data", **guards) as server:
        there = {"MILLRACE_ADMIN": server.admin}
        sql = "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s"
        assert millrace("sql", sql, "--token-file", str(admin), **there).returncode == 0
        fed = 0
        for flags, variables, words in (
            (("--token-file", admin, "--feed-token-file", streams), {}, None),
            (("--token-file", admin), {"MILLRACE_FEED_TOKEN": "the token of streams"}, None),
            (
                (),
                {"MILLRACE_TOKEN": "the token of admin", "MILLRACE_FEED_TOKEN_FILE": str(streams)},
                None,
            ),
            (
                ("--token-file", admin),
                {},
                f"its port for feeds and subscribers, refuses the token in {admin} (--token-file)",
            ),
            (("--token-file", admin), {}, "differs from the HTTP port's, use --feed-token-file FILE, or set"),
            (
                ("--token-file", streams),
                {},
                f"the server at {server.admin}, the HTTP port, refuses the token in",
            ),
            (
                ("--token-file", admin, "--feed-token-file", wrong),
                {},
                f"its port for feeds and subscribers, refuses the token in {wrong} (--feed-token-file)",
            ),
            (("--token-file", admin), {"MILLRACE_FEED_TOKEN": "no"}, "refuses the token in MILLRACE_FEED_TOKEN"),
            (("--feed-token-file", streams), {}, "requires a token: use --token-file FILE"),
            (("--token-file", admin, "--feed-token-file", "/no/token"), {}, "token file /no/token: "),
        ):
            given = [str(flag) for flag in flags]
            done = millrace("feed", "s", *given, stdin='{"k": 1}\n', **there, **variables)
            if words is None:
                fed += 1
                assert done.returncode == 0, done
                tailed = millrace("tail", "q", "--from", "0", "--limit", str(fed), *given, **there, **variables)
                assert tailed.stdout == '{"k":1}\n' * fed, tailed
            else:
                assert done.returncode == 1
                assert words in done.stderr
                assert done.stderr.count("\n") == 1
        assert server.end()[0] == 0


def test_the_token_is_left_out_of_whatever_holds_it():
    from millrace.cli.bundle import pack

    made = pack({"log.jsonl": "it was s3cret"}, {}, "s3cret")
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        assert content(tar, "millrace-support/log.jsonl") == b"it was (left out)"
