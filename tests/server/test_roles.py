"""Who may do what: the decision against a table written by hand, and the server against the decision.

A new route, message, line, change or statement fails here until somebody has decided who may use it.
"""

import json
import typing
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import pytest

from millrace.access import needs
from millrace.access.callers import ANYONE, NOBODY, Caller
from millrace.access.roles import (
    ACTIONS,
    NEEDED,
    SOMEWHERE,
    WHOLE,
    Action,
    BadGrantError,
    Grant,
    Role,
    allowed,
    parse_grant,
)
from millrace.access.tokens import create
from millrace.changes.state import ControlState
from millrace.changes.statements import Terms, draft
from millrace.changes.table import BY_ACTION
from millrace.http.api import build
from millrace.http.guard import OPEN_PATHS, WHO
from millrace.protocol import Kind, MillraceError, Refuse, Side, jsonlines
from millrace.protocol.messages import Error, Open, Opened, Subscribe, Subscribed, Welcome, kind_of
from millrace.protocol.session import CHANNEL, CONNECTION, Phase, Verdict
from millrace.run.daemon import Daemon
from millrace.sql import Planned
from millrace.sql.temporary import CreateTemporary
from tests.server.harness import lines, peer, played, request, running, served, settings

# Written by hand, not derived: which roles include an action.
MATRIX = """
meet     feed read operate change admin
look     feed read operate change admin
feed     feed admin
read     read operate change admin
operate  operate change admin
change   change admin
admin    admin
"""
# The same for routes. `mine`: also a role for the stream or query in the path; `some`: a role for any.
ROUTES = """
GET    /metrics                                 read
GET    /api/v1/openapi.json                     meet     some
GET    /api/v1/server                           meet     some
POST   /api/v1/sql                              meet     some
POST   /api/v1/sql/check                        meet     some
POST   /api/v1/sql/preview                      read
POST   /api/v1/sql/complete                     meet     some
GET    /api/v1/catalog                          read
GET    /api/v1/streams                          look     some
GET    /api/v1/streams/{name}                   look     mine
DELETE /api/v1/streams/{name}                   change   mine
POST   /api/v1/streams/{name}/rename-column     change   mine
GET    /api/v1/streams/{name}/stale             read     mine
GET    /api/v1/streams/{name}/late              read     mine
POST   /api/v1/streams/{name}/archive           operate  mine
GET    /api/v1/queries                          read     some
GET    /api/v1/queries/{name}                   read     mine
DELETE /api/v1/queries/{name}                   change   mine
GET    /api/v1/queries/{name}/explain           read     mine
GET    /api/v1/queries/{name}/time              read     mine
GET    /api/v1/queries/{name}/why               read     mine
POST   /api/v1/queries/{name}/rename            change
POST   /api/v1/queries/{name}/pause             operate  mine
POST   /api/v1/queries/{name}/resume            operate  mine
POST   /api/v1/queries/{name}/unshare           operate  mine
PUT    /api/v1/queries/{name}/order             operate  mine
POST   /api/v1/backfills                        change
GET    /api/v1/backfills/{name}                 read     mine
PUT    /api/v1/backfills/{name}                 change
DELETE /api/v1/backfills/{name}                 change
GET    /api/v1/sinks                            read     some
GET    /api/v1/sinks/{name}                     read
DELETE /api/v1/sinks/{name}                     change
GET    /api/v1/components                       read
GET    /api/v1/components/{name}                read
GET    /api/v1/components/{name}/table          read
GET    /api/v1/components/{name}/graph          read
GET    /api/v1/components/{name}/strategy       read
PUT    /api/v1/components/{name}/strategy       operate
PUT    /api/v1/components/{name}/weight         operate
GET    /api/v1/advice                           read
GET    /api/v1/trials                           read
POST   /api/v1/components/{name}/trial          operate
GET    /api/v1/components/{name}/trial          read
DELETE /api/v1/components/{name}/trial          operate
GET    /api/v1/operators                        read
POST   /api/v1/operators/{name}/insert          change
GET    /api/v1/operators/{name}                 read
DELETE /api/v1/operators/{name}                 change
PUT    /api/v1/operators/{name}                 change
PUT    /api/v1/operators/{name}/break           operate
DELETE /api/v1/operators/{name}/break           operate
PUT    /api/v1/operators/{name}/queue           operate
GET    /api/v1/changes                          read
POST   /api/v1/changes                          meet     some
POST   /api/v1/changes/undo                     read
GET    /api/v1/configuration                    read
GET    /api/v1/log                              operate
GET    /api/v1/events                           read     some
GET    /api/v1/tail/{name}                      read     mine
GET    /api/v1/operators/{name}/tap             read
POST   /api/v1/reload                           admin
GET    /api/v1/console/session                  meet     some
POST   /api/v1/console/link                     meet     some
POST   /api/v1/console/logout                   meet     some
GET    /api/v1/standby/copy                     admin
GET    /api/v1/standby/journal                  admin
POST   /api/v1/standby/heard                    admin
POST   /api/v1/standby/promote                  admin
POST   /api/v1/standby/alone                    admin
"""
# Their answers do not end by themselves.
ENDLESS = ("/api/v1/events", "/api/v1/tail/{name}", "/api/v1/operators/{name}/tap")
# Everybody may use these.
OPEN = """
GET    /
GET    /console/login
GET    /console/{file:path}
POST   /api/v1/console/login
"""
INCLUDES = {action: set(roles) for action, *roles in (line.split() for line in MATRIX.split("\n") if line)}
DECIDED = {
    (method, path): (action, *more) for method, path, action, *more in map(str.split, ROUTES.strip().split("\n"))
}
NAMES = ("mine", "other")
# Grants that the tests try: each role for everything, and for one name.
GRANTS = [*map(Grant, Role), *(Grant(role, frozenset({"mine"})) for role in Role if role is not Role.ADMIN)]


def caller(*texts):
    return Caller("tester", tuple(map(parse_grant, texts)), b"x")


def permits(grant, action, name=None, extent=None):
    """The decision, from the table above."""
    if grant.role not in INCLUDES[action]:
        return False
    return grant.scope is None or extent == "some" or (name is not None and name in grant.scope)


# -- the decision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", Action)
def test_each_role_includes_its_actions(action):
    for grant in GRANTS:
        for name in NAMES:
            assert grant.allows(action, name) == permits(grant, action, name)
        assert grant.allows(action, WHOLE) == permits(grant, action)
        assert grant.allows(action, SOMEWHERE) == permits(grant, action, extent="some")
    assert not NOBODY.may(action, SOMEWHERE)
    assert ANYONE.may(action, WHOLE)
    assert set(NEEDED) == set(Action)
    assert set(ACTIONS) == set(Role)


def test_late_tuples_belong_to_their_stream():
    assert allowed(Role.READ, frozenset({"trams"}), Action.READ, "trams.late")
    assert not allowed(Role.READ, frozenset({"trams.late"}), Action.READ, "trams")


def test_several_grants_are_decided_one_by_one():
    both = caller("feed:mine", "read:other")
    assert both.may(Action.FEED, "mine")
    assert both.may(Action.READ, "other")
    assert not both.may(Action.FEED, "other")
    assert not both.may(Action.READ, "mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reader", "expected a role (feed, read, operate, change, admin)"),
        ("", "expected a role"),
        ("read:", "expected names"),
        ("read:a,,b", "expected names"),
        ("read:a b", "expected names"),
        ("read:trams.late", "expected names"),
        ("admin:trams", "the role admin is for the whole server"),
    ],
)
def test_a_text_that_is_no_role(text, words):
    with pytest.raises(BadGrantError) as refused:
        parse_grant(text)
    assert words in refused.value.text
    assert "\n" not in refused.value.text


@pytest.mark.parametrize("grant", GRANTS, ids=str)
def test_a_role_has_one_text(grant):
    assert parse_grant(str(grant)) == grant


def test_a_refusal_names_the_role_and_no_object_that_exists():
    with pytest.raises(Refuse) as refused:
        caller("feed:mine").must(Action.READ, "other")
    assert refused.value.text == "this needs the role read for other; tester has feed:mine"
    assert refused.value.code == "not_permitted"


# -- the tables are total ----------------------------------------------------------------------------------------------


def test_every_route_has_a_decision():
    app: Any = build(Daemon(settings()))
    routes = {
        (method, route.path)
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method != "HEAD" and route.path not in OPEN_PATHS
    }
    opened = {tuple(line.split()) for line in OPEN.strip().split("\n")}
    assert opened == needs.OPEN_ROUTES
    assert set(needs.ROUTES) == routes - opened
    assert set(DECIDED) == routes - opened


def test_every_message_of_a_client_has_a_decision():
    client_sends = {
        kind
        for table in (CONNECTION, CHANNEL)
        for (side, kind), row in table.items()
        if side is Side.CLIENT and isinstance(kind, Kind) and any(not isinstance(to, Verdict) for to in row.values())
    }
    kinds = {kind_of(message) for message in map(_blank, needs.MESSAGES)}
    assert kinds == client_sends
    # Messages that open a channel name an object; others follow it.
    opens = {kind for (side, kind), row in CHANNEL.items() if side is Side.CLIENT and row[Phase.FREE] in Phase}
    named = {kind_of(_blank(message)) for message, said in needs.MESSAGES.items() if said.field is not None}
    assert named == opens


def _blank(message):
    return object.__new__(message)


def test_every_line_has_a_decision():
    assert set(needs.LINES) == set(typing.get_args(jsonlines.Line))
    for line, said in needs.LINES.items():
        names = {field.name for field in fields(line)}
        assert said.field in ("stream", "query", None)
        assert (said.field is None) == ("stream" not in names and "query" not in names)


def test_every_change_has_a_decision():
    assert set(needs.CHANGES_NEED) == set(BY_ACTION)


def test_every_statement_has_a_decision():
    planned = set(typing.get_args(Planned)) - {typing.get_args(Planned)[-1]}  # a SELECT becomes a CreateTemporary
    assert set(needs.STATEMENTS) == planned | {CreateTemporary}


# -- routes ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def guarded(folder, sql=None, **grants):
    """A running server, and the token of each name with these roles."""
    shown = {"admin": create(folder / "tokens.json", "admin", [Grant(Role.ADMIN)], 1).token}
    for name, texts in grants.items():
        shown[name] = create(folder / "tokens.json", name, [parse_grant(text) for text in texts.split()], 1).token
    async with running(sql, server={"tokens_file": folder / "tokens.json"}) as daemon:
        yield daemon, shown


async def answer(app, method, path, token, body=b"", state=None, **headers):
    """The status of a request, and its answer if that is an object."""
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    status, _, content = await request(app, method, path, body, state, **headers)
    return status, json.loads(content) if content.startswith(b"{") else {}


@played
async def test_every_route_with_every_role(tmp_path):
    grants = {f"t{number}": str(grant) for number, grant in enumerate(GRANTS)}
    async with guarded(tmp_path, **grants) as (daemon, tokens):
        app = build(daemon)
        for (method, path), (action, *extent) in DECIDED.items():
            for at in NAMES if "{name}" in path else ("",):
                where = path.replace("{name}", at) + ("?lines=1" if path in ENDLESS else "")
                for name, text in grants.items():
                    status, said = await answer(app, method, where, tokens[name])
                    wanted = permits(parse_grant(text), action, at if extent == ["mine"] else None, *extent)
                    refused = status == 403 and said["code"] == "not_permitted"
                    assert refused != wanted, (method, where, text, status, said)
                    assert not refused or said["detail"].startswith(f"this needs {NEEDED[Action(action)]}")
            if (method, path) == WHO:
                continue  # it answers everyone, and a client that is not known has no role
            status, said = await answer(app, method, path, None)
            assert (status, said["code"]) == (401, "unauthorised"), path
            assert NEEDED[Action(action)] in said["detail"]
        assert daemon.access.failures["admin", "missing"] == len(DECIDED) - 1
        assert (await answer(app, "GET", "/nowhere", tokens["t0"]))[0] == 404
        assert (await answer(app, "GET", "/-/ready", None))[0] == 200
        for path in ("/", "/console/index.html"):
            assert (await request(app, "GET", path))[0] == 200


SCHEMA = """
CREATE STREAM door (k BIGINT); CREATE STREAM secret (k BIGINT); CREATE STREAM idle (k BIGINT);
CREATE QUERY diary AS SELECT k FROM door; CREATE QUERY hidden AS SELECT k FROM secret;
CREATE QUERY above AS SELECT k FROM hidden;
CREATE SINK own FROM diary WITH (type = 'stdout'); CREATE SINK foreign_one FROM hidden WITH (type = 'stdout')
"""
# Statements, and which of the grants below may send them.
SENT = """
SHOW STREAMS                                    | read operate change admin
DESCRIBE STREAM door | feed read operate change admin feed:door read:door,diary change:diary+read:door
DESCRIBE QUERY diary                            | read operate change admin read:door,diary change:diary+read:door
SHOW CREATE STREAM door | feed read operate change admin feed:door read:door,diary change:diary+read:door
SHOW CREATE SINK own                            | read operate change admin read:door,diary change:diary+read:door
EXPLAIN diary                                   | read operate change admin read:door,diary change:diary+read:door
EXPLAIN SELECT k FROM door                      | read operate change admin read:door,diary change:diary+read:door
EXPLAIN SELECT k FROM secret                    | read operate change admin
EXPLAIN SELECT k FROM above                     | read operate change admin
EXPLAIN ANALYZE diary                           | read operate change admin read:door,diary change:diary+read:door
EXPLAIN ANALYZE hidden                          | read operate change admin
DESCRIBE QUERY hidden                           | read operate change admin
DESCRIBE SINK foreign_one                       | read operate change admin
INSERT INTO door VALUES (1)                     | feed admin feed:door
INSERT INTO secret VALUES (1)                   | feed admin
CREATE STREAM fresh (k BIGINT)                  | change admin
ALTER STREAM door SET (ets = 'none')            | change admin
DROP STREAM idle                                | change admin
CREATE QUERY fresh AS SELECT k FROM door        | change admin
CREATE OR REPLACE QUERY diary AS SELECT k FROM door WHERE k > 1 | change admin change:diary+read:door
CREATE OR REPLACE QUERY diary AS SELECT k FROM secret | change admin
CREATE OR REPLACE QUERY diary AS SELECT k FROM above  | change admin
CREATE SINK more FROM diary WITH (type = 'stdout') | change admin change:diary+read:door
CREATE SINK more FROM hidden WITH (type = 'stdout') | change admin
DROP SINK own                                   | change admin change:diary+read:door
DROP SINK foreign_one                           | change admin
ALTER QUERY diary RENAME TO fresh               | change admin
DROP SINK own; DROP QUERY diary                 | change admin change:diary+read:door
DROP QUERY above                                | change admin
SELECT k FROM door                              | change admin
DROP SINK own; DROP QUERY above                 | change admin
"""
SENDERS = ("feed", "read", "operate", "change", "admin", "feed:door", "read:door,diary", "change:diary+read:door")
# To them, what they may not see does not exist.
LIMITED = {"feed", "feed:door", "read:door,diary", "change:diary+read:door"}


@served(SCHEMA)
async def test_every_statement_with_every_role(daemon):
    terms = daemon.catalog.terms(idempotent=False, temporary=True, prune=False)
    for line in SENT.strip().split("\n"):
        sql, _, may = line.partition("|")
        for sender in SENDERS:
            try:
                await daemon.catalog.plan(sql.strip(), terms=terms, caller=caller(*sender.split("+")))
                refused = None
            except MillraceError as error:
                refused = error
            assert (refused is None) == (sender in may.split()), (sql, sender, refused)
            if refused is not None:
                assert refused.code in ("not_permitted", "sql", "unknown_query", "unknown_sink")
                assert sender in LIMITED or refused.code == "not_permitted"


@played
async def test_what_shows_everything_needs_the_role_for_everything(tmp_path):
    limited = "operate:diary change:diary read:door"
    async with guarded(tmp_path, SCHEMA, limited=limited, all="change") as (daemon, tokens):
        app = build(daemon)
        dry, plain = ({"sql": "EXPLAIN diary", "dry_run": dry} for dry in (True, False))
        for path, body, head, status in (
            ("sql", plain, {}, 200),
            ("sql", dry, {}, 200),
            ("sql", plain, {"if-match": '"x"'}, 412),  # the answer has the whole catalog
            ("queries/diary/pause", {"dry_run": True}, {}, 200),
            ("sql", {"sql": "EXPLAIN ANALYZE hidden"}, {}, 200),
        ):
            data = json.dumps(body).encode()
            assert (await answer(app, "POST", f"/api/v1/{path}", tokens["all"], data, **head))[0] == status
            found = await answer(app, "POST", f"/api/v1/{path}", tokens["limited"], data, **head)
            assert found[0] == (200 if body is plain and not head else 403), (path, found)


@played
async def test_a_limited_client_cannot_tell_what_exists(tmp_path):
    """The answers about an object that it may not see, and about one that does not exist, differ in the name alone."""
    async with guarded(tmp_path, SCHEMA, limited="change:diary read:door") as (daemon, tokens):
        app = build(daemon)
        for method, path in DECIDED:
            if "{name}" not in path:
                continue
            for names in ("secret", "seCret"), ("hidden", "hiddem"), ("foreign_one", "foreign_two"):
                asked = [path.replace("{name}", name) for name in names]
                told = [await answer(app, method, one, tokens["limited"]) for one in asked]
                assert len({(status, _without(said, names)) for status, said in told}) == 1, (path, told)
        for text in (
            "DROP QUERY {}",
            "DROP SINK {}",
            "SELECT k FROM {}",
            "DESCRIBE STREAM {}",
            "INSERT INTO {} VALUES (1)",
            "CREATE QUERY {} AS SELECT k FROM door",
            "EXPLAIN ANALYZE {}",
            "CREATE OR REPLACE QUERY diary AS SELECT k FROM {}",
        ):
            for names in ("secret", "secrex"), ("hidden", "hiddem"), ("foreign_one", "foreign_twu"):
                bodies = [json.dumps({"sql": text.format(one), "temporary": True}).encode() for one in names]
                told = [await answer(app, "POST", "/api/v1/sql", tokens["limited"], body) for body in bodies]
                assert all(status >= 400 for status, _ in told)
                assert len({(status, _without(said, names)) for status, said in told}) == 1, (text, told)


def _without(said, names):
    text = json.dumps(said)
    for name in names:
        text = text.replace(name, "...")
    return text


@played
async def test_lists_show_what_a_client_may_see(tmp_path):
    grants = {"all": "read", "some": "read:diary,door,doo", "feeds": "feed:secret"}
    async with guarded(tmp_path, SCHEMA, **grants) as (daemon, tokens):
        app = build(daemon)

        async def names(plural, token):
            sent = await raw(app, f"/api/v1/{plural}", tokens[token])
            return [one["name"] for one in sent]

        assert await names("streams", "all") == ["door", "secret", "idle"]
        assert await names("streams", "some") == ["door"]
        assert await names("streams", "feeds") == ["secret"]
        assert await names("queries", "all") == ["diary", "hidden", "above"]
        assert await names("queries", "some") == ["diary"]
        assert await names("sinks", "some") == ["own"]
        daemon.catalog.keeper.error = "the disk of hidden is full"
        assert (await raw(app, "/api/v1/server", tokens["all"]))["problems"]
        assert (await raw(app, "/api/v1/server", tokens["some"]))["problems"] == []
        _, said = await answer(app, "GET", "/api/v1/streams/doo", tokens["all"])
        assert "did you mean door" in said["detail"]
        _, said = await answer(app, "GET", "/api/v1/streams/doo", tokens["some"])
        assert said["detail"] == "stream doo does not exist"


async def raw(app, path, token):
    _, _, content = await request(app, "GET", path, authorization=f"Bearer {token}")
    return json.loads(content)


@played
async def test_changes_as_data_need_the_role_for_all(tmp_path):
    pause = {"changes": [{"change": "pause_query", "name": "diary"}]}
    drop = {"changes": [{"change": "drop_query", "name": "above"}]}
    grants = {"o": "operate", "c": "change", "limited": "change:diary", "r": "read"}
    async with guarded(tmp_path, SCHEMA, **grants) as (daemon, tokens):
        app = build(daemon)
        for body, may in ((pause, "oc"), (drop, "c")):
            for name in ("o", "c", "limited", "r"):
                data = json.dumps({**body, "dry_run": True}).encode()
                status, said = await answer(app, "POST", "/api/v1/changes", tokens[name], data)
                assert (status, said.get("code")) == ((200, None) if name in may else (403, "not_permitted"))
        data = json.dumps(pause).encode()
        assert (await answer(app, "POST", "/api/v1/changes", tokens["c"], data))[0] == 200
        for name, status in (("r", 403), ("limited", 403), ("o", 200)):
            assert (await answer(app, "POST", "/api/v1/changes/undo", tokens[name], b"{}"))[0] == status
        entry = daemon.catalog.ledger.entries()[-1]
        assert (entry.author, entry.client) == ("o", "admin 127.0.0.1:1")


# -- messages and lines ------------------------------------------------------------------------------------------------

STREAMS = {"feed": "mine other", "admin": "mine other", "feed:mine": "mine"}
QUERIES = {"read": "q r", "operate": "q r", "change": "q r", "admin": "q r", "read:q": "q", "change:q": "q"}
TWO = """CREATE STREAM mine (k BIGINT); CREATE STREAM other (k BIGINT);
CREATE QUERY q AS SELECT k FROM mine; CREATE QUERY r AS SELECT k FROM mine"""


@played
async def test_frames_of_every_role(tmp_path):
    texts = [str(grant) for grant in GRANTS] + ["read:q", "change:q"]
    grants = {f"t{number}": text for number, text in enumerate(texts)}
    async with guarded(tmp_path, TWO, **grants) as (daemon, tokens):
        for name, text in grants.items():
            async with peer(daemon, greet=False) as client:
                assert isinstance(await client.greet(tokens[name]), Welcome)
                for channel, stream in enumerate(("mine", "other", "none")):
                    client.say(Open(channel, stream, None, "p"))
                    said = await client.hear((Opened, Error))
                    assert isinstance(said, Opened) == (stream in STREAMS.get(text, "").split())
                    allowed_one = Caller("", (parse_grant(text),)).may(Action.FEED, stream)
                    assert allowed_one or said.code == "not_permitted"
                for channel, query in enumerate(("q", "r", "none"), 10):
                    client.say(Subscribe(channel, query))
                    said = await client.hear((Subscribed, Error))
                    assert isinstance(said, Subscribed) == (query in QUERIES.get(text, "").split())
                    allowed_one = Caller("", (parse_grant(text),)).may(Action.READ, query)
                    assert allowed_one or said.code == "not_permitted"


@played
async def test_lines_of_limited_clients(tmp_path):
    async with guarded(tmp_path, TWO, feeds="feed:mine", reads="read:q") as (daemon, tokens):
        async with lines(daemon) as nc:
            nc.say(json.dumps({"token": tokens["feeds"]}))
            for stream in ("other", "none"):
                for line in (
                    {"stream": stream, "tuple": {"k": 1}},
                    {"stream": stream, "punctuation": 1},
                    {"stream": stream, "producer": "p", "seq": 0, "tuple": {"k": 2**70}},  # which has its number
                    {"stream": stream, "producer": "p", "open": True},
                    {"stream": stream, "answers": True},
                    {"stream": stream, "answer": 1, "punctuation": None},
                    {"stream": stream, "close": True},
                ):
                    nc.say(json.dumps(line))
                    said = await nc.hear()
                    assert said["error"]["code"] == "not_permitted"
                    assert said["error"]["text"] == f"this needs the role feed for {stream}; feeds has feed:mine"
            nc.say(json.dumps({"subscribe": "q"}))
            assert (await nc.hear())["error"]["code"] == "not_permitted"
            nc.say(json.dumps({"unsubscribe": "q"}))
            assert (await nc.hear())["error"]["code"] == "not_permitted"
            # Many lines at once are read together: each of them is decided all the same.
            nc.say("\n".join(['{"stream": "mine", "tuple": {"k": 1}}'] * 40))
            nc.say("\n".join(['{"stream": "other", "tuple": {"k": 1}}'] * 40))
            for _ in range(40):
                assert (await nc.hear())["error"]["code"] == "not_permitted"
        async with lines(daemon) as nc:
            nc.say(json.dumps({"token": tokens["reads"]}))
            nc.say(json.dumps({"stream": "mine", "tuple": {"k": 1}}))
            assert (await nc.hear())["error"]["code"] == "not_permitted"
            nc.say(json.dumps({"subscribe": "r"}))
            assert (await nc.hear())["error"]["text"] == "this needs the role read for r; reads has read:q"
            nc.say(json.dumps({"subscribe": "millrace.changes"}))
            assert (await nc.hear())["error"]["code"] == "not_permitted"
            nc.say(json.dumps({"subscribe": "q", "from": 0}))
            for number in range(40):
                assert (await nc.hear())["seq"] == number
        assert daemon.access.failures["listen", "role"] > 50


def test_a_text_is_decided_as_a_whole():
    state = ControlState()
    text = draft("CREATE STREAM mine (k BIGINT); CREATE STREAM other (k BIGINT)", state, Terms())
    needs.check_text(caller("change:mine,other"), text, state.definitions)
    with pytest.raises(Refuse, match="for other"):
        needs.check_text(caller("change:mine"), text, state.definitions)
