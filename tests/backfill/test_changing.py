"""Changes of a live job: the groups after them, and refusals before anything is stored."""

from __future__ import annotations

from random import Random

import pytest

from millrace.backfill.bucket import Bucket, Group, groups_of
from millrace.engine.events import AddQuery, DropQuery, ReplaceQuery, SetStrategy
from millrace.offline.script import plan_script
from millrace.protocol import Refuse
from millrace.spark.changing import Change, Changed, apply
from millrace.sql import Catalog
from tests.backfill.epochs import cut, run_epochs
from tests.backfill.test_bucket import TWO, clocked_of, random_reads

BY_PORT = """CREATE QUERY ports AS SELECT port, count(*) AS n, window_end
  FROM TUMBLE(packets, ts, INTERVAL '2 seconds') GROUP BY port;"""
BY_SRC = """CREATE QUERY sizes AS SELECT src, max(bytes) AS most, window_end
  FROM TUMBLE(packets, ts, INTERVAL '2 seconds') GROUP BY src;"""


def catalog_of(sql: str) -> Catalog:
    script = plan_script(sql)
    return Catalog(script.streams, script.queries)


def groups() -> list[Group]:
    return groups_of(catalog_of(TWO), 4)


def change(sql: str = "", *decision: str) -> Changed:
    return apply(catalog_of(TWO), groups(), Change(sql, decision), 4)


def kinds(changed: Changed) -> dict[int, list[type]]:
    return {number: [type(command) for command in commands] for number, commands in changed.commands.items()}


def test_a_query_with_a_known_key_joins_the_buckets():
    changed = change(BY_SRC)
    assert kinds(changed) == {0: [AddQuery]}
    assert [group.flow.names for group in changed.groups] == [("traffic", "large", "sizes")]


def test_a_query_with_another_key_gets_buckets_of_its_own():
    changed = change(BY_PORT)
    assert not changed.commands
    assert [group.flow.names for group in changed.groups] == [("traffic", "large"), ("ports",)]


def test_queries_go_and_are_replaced():
    assert kinds(change("DROP QUERY large;")) == {0: [DropQuery]}
    other = "CREATE OR REPLACE QUERY large AS SELECT src, count(*) AS n, window_end FROM TUMBLE(packets, ts, '5 s')"
    assert kinds(change(f"{other} GROUP BY src;")) == {0: [ReplaceQuery]}


def test_decisions():
    changed = change("", "strategy", "traffic", "bfs(7)")
    assert changed.commands == {0: (SetStrategy("packets", "bfs(7)"),)}
    (group,) = changed.groups
    (component,) = Bucket(group).engine.components()
    assert component.strategy == "bfs(7)"
    paused = apply(changed.catalog, changed.groups, Change("", ("pause", "large")), 4)
    states = Bucket(paused.groups[0]).engine.query_states()
    assert states == {"traffic": "running", "large": "paused"}


def test_changes_follow_one_another():
    """Each is applied to the outcome of those before it."""
    changed = change(BY_SRC)
    for text in ("DROP QUERY large;", BY_PORT, "DROP QUERY sizes;"):
        changed = apply(changed.catalog, changed.groups, Change(text), 4)
    assert [group.flow.names for group in changed.groups] == [("traffic",), ("ports",)]
    assert list(changed.catalog.queries) == ["traffic", "ports"]
    again = apply(catalog_of(TWO), groups(), Change(BY_SRC), 4)
    assert [group.fingerprint for group in again.groups] == [group.fingerprint for group in change(BY_SRC).groups]


def test_a_paused_query_emits_nothing_until_it_is_resumed():
    rng = Random(4)
    catalog = catalog_of(TWO)
    clocked = clocked_of(catalog, cut(rng, random_reads(rng, catalog, 2, 12), 5))
    (group,) = groups()
    paused = change("", "pause", "large")
    outcome = run_epochs([group], clocked, changes={0: (paused.groups[0], paused.commands[0])})
    assert outcome.rows["traffic"]
    assert "large" not in outcome.rows


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Change("CREATE STREAM more (ts TIMESTAMP) WITH (time = 'ts');"), "a live job can create, replace and drop"),
        (Change("ALTER STREAM packets SET (disorder = '9 s');"), "a live job can create, replace and drop"),
        (Change("ALTER QUERY large RENAME TO small;"), "a live job can create, replace and drop"),
        (Change("CREATE SINK s FROM large WITH (type = 'file', path = 'x.jsonl');"), "a live job can create"),
        (Change("DROP STREAM owners;"), "a live job can create, replace and drop"),
        (Change("DROP QUERY large; DROP QUERY large;"), "line 1, column 30: the query large does not exist"),
        (Change("CREATE OR REPLACE QUERY large AS SELECT count(*) AS n FROM TUMBLE(packets, ts, '1 s');"), "new query"),
        (Change("CREATE QUERY q AS SELECT * FROM owners;"), "stream owners, which has no input in this job"),
        (Change("SELECT nothing FROM packets;"), "nothing"),
        (Change("", ("strategy", "traffic", "fifo")), "fifo"),
        (Change("", ("pause", "nobody")), "changes nothing"),
    ],
)
def test_what_cannot_be_changed_is_refused(made, why):
    with pytest.raises(Refuse, match=why):
        apply(catalog_of(TWO), groups(), made, 4)


def test_a_change_is_stored_as_plain_data():
    made = Change("DROP QUERY large;", (), "me", 7)
    assert Change.from_data(made.to_data()) == made
    assert made.words == "DROP QUERY large;"
