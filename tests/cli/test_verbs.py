"""Commands made from the table of changes."""

import pytest
import typer

from millrace.changes.table import CHANGES
from millrace.cli import verbs
from millrace.cli.change_verbs import VERBS

SQL = (
    "CREATE STREAM t (k BIGINT); CREATE QUERY p AS SELECT k FROM t WHERE k > 1; CREATE QUERY p2 AS SELECT k FROM t "
    "WHERE k > 1; CREATE QUERY pairs WITH (order = 'event') AS SELECT a.k FROM t a [RANGE '1 s'] JOIN t b "
    "[RANGE '1 s'] ON a.k = b.k; CREATE STREAM u (k BIGINT) WITH (update_key = 'k'); "
    "CREATE QUERY latest AS SELECT k FROM u LATEST WHERE k > 1"
)
# Each command of a change, in this order, and the sentence that it prints.
SPOKEN = (
    ("query unshare p", "query p has separate copies of: p.filter1"),
    ("query pause p --reason lunch", "paused query p"),
    ("query resume p", "resumed query p; it skipped 0 tuples"),
    ("query unshare pairs", "query pairs shared nothing"),
    ("query order pairs sync", "joins of pairs now use order sync"),
    ("query rename p2 p3", "renamed query p2 to p3"),
    ("operator queue latest.filter1 fifo", "input 0 of latest.filter1 now has a queue of kind fifo"),
    ("operator insert pairs.join1 --where true",
     "inserted pairs.filter1 in front of pairs.join1, input 0, until its query is replaced"),
    ("operator replace pairs.filter1 --sample 0.5", "replaced pairs.filter1 until its query is replaced"),
    ("operator remove pairs.filter1", "removed pairs.filter1 until its query is replaced"),
    ("strategy set t bfs", "t now runs bfs"),
    ("strategy set t dfs(2) --operator p.filter1", "p.filter1 now runs dfs(2)"),
    ("component weight t 7", "t now weighs 7"),
    ("break set p.filter1", "set a break point at p.filter1"),
    ("break unset p.filter1", "removed the break point at p.filter1"),
    ("stream rename-column t k key", "column k of stream t is called key now"),
    ("query drop pairs", "dropped query pairs"),
    ("query drop latest", "dropped query latest"),
    ("stream drop u", "dropped stream u"),
)  # fmt: skip


def test_each_command_plans_applies_and_says_so(server):
    assert server.millrace("sql", SQL).returncode == 0
    for words, text in SPOKEN:
        newest = server.millrace("changes", "--last", "1").stdout
        planned = server.millrace(*words.split(), "--plan")
        assert (planned.returncode, planned.stderr) == (0, ""), words
        assert server.millrace("changes", "--last", "1").stdout == newest, words
        done = server.millrace(*words.split())
        assert (done.returncode, done.stderr) == (0, f"{text}\n"), words
    tried = {" ".join(words.split()[:2]) for words, _ in SPOKEN}
    assert {verb["path"] for verb in VERBS} - tried == {"sink drop"}


def test_every_route_of_a_change_has_a_command():
    paths = [route.verb.path for change in CHANGES for route in change.routes]
    assert sorted(verb["path"] for verb in VERBS) == sorted(set(paths)) == sorted(paths)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"a": 1, "b": ["x", "y"]}, "q has 1 row: x, y"),
        ({"a": 2, "b": []}, "q has 2 rows nothing"),
        ({"a": 2}, "q has 2 rows nothing"),
    ],
)
def test_a_sentence_counts_lists_and_chooses(values, text):
    assert verbs.sentence("{name} has {a:row}[: {b}| nothing]", {**values, "name": "q"}) == text


@pytest.mark.parametrize(
    ("bounds", "fits", "wrong", "text"),
    [
        ({"ge": 0, "lt": 1}, (0, 0.99), (-0.1, 1, float("nan")), "from 0 to below 1"),
        ({"gt": 0, "lt": 1}, (0.01, 0.99), (0, 1, float("inf")), "above 0 to below 1"),
    ],
)
def test_a_number_outside_its_bounds_is_wrong_usage(bounds, fits, wrong, text):
    for value in fits:
        verbs._check_number("share", value, bounds)
    for value in wrong:
        with pytest.raises(typer.BadParameter, match=text):
            verbs._check_number("share", value, bounds)
