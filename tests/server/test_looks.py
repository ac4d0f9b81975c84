"""What a person looks at: advice, trials, and statements that are checked while they are written."""

from typing import Any

from millrace.cli.doctor import look
from millrace.observe.advice import advise
from millrace.protocol.admin.data import from_data, to_data
from tests.server.harness import served
from tests.server.test_etags import ask

SQL = "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s"


class Answers:
    """What the doctor reads of the API, kept before it asks."""

    def __init__(self, data):
        self.data = data

    def get(self, path):
        return self.data[path]

    def view(self, kind, path):
        return from_data(kind, self.data[path])

    def views(self, kind, path):
        return [from_data(kind, one) for one in self.data[path]]


@served(SQL)
async def test_the_advice_is_what_the_doctor_prints(daemon):
    await daemon.catalog.execute("CREATE QUERY broken AS SELECT k FROM s")
    assert (await ask(daemon, "POST", "queries/broken/pause", {"reason": "lunch"}))[0] == 200
    status, _, advice = await ask(daemon, "GET", "advice")
    assert status == 200
    paths = (
        "server",
        "configuration",
        "streams",
        "queries",
        "sinks",
        "operators",
        "queries/q/why",
        "queries/broken/why",
    )
    answers: Any = Answers({path: (await ask(daemon, "GET", path))[2] for path in paths})
    expected = [to_data(one) for one in advise(look(answers))]
    assert [one for one in advice if one["code"] != "clock"] == [one for one in expected if one["code"] != "clock"]
    assert any(one["about"] == "broken" and one["try"] == "millrace query resume broken" for one in advice)


@served(SQL)
async def test_trials_are_listed(daemon):
    assert (await ask(daemon, "GET", "trials"))[::2] == (200, [])
    body = {"strategy": "bfs", "for": "1s"}
    assert (await ask(daemon, "POST", "components/s/trial", body))[0] == 202
    (trial,) = (await ask(daemon, "GET", "trials"))[2]
    one = (await ask(daemon, "GET", "components/s/trial"))[2]
    assert {**trial, "left_seconds": 0} == {**one, "left_seconds": 0}
    assert (trial["component"], trial["state"]) == ("s", "before")


async def check(daemon, sql):
    status, tag, answer = await ask(daemon, "POST", "sql/check", {"sql": sql})
    assert status == 200
    return answer, tag


@served(SQL)
async def test_statements_are_checked_while_they_are_written(daemon):
    """Each unfinished text has an answer, and the whole text is planned as a dry run plans it."""
    text = "CREATE QUERY r AS SELECT k, count(*) AS n FROM s GROUP BY k"
    for end in range(len(text)):
        answer, _ = await check(daemon, text[:end])
        assert (answer["problem"] is None) == (answer["plan"] is not None)
    answer, tag = await check(daemon, text)
    dry = {"sql": text, "dry_run": True, "idempotent": True, "temporary": True}
    _, dry_tag, planned = await ask(daemon, "POST", "sql", dry)
    assert answer == {"problem": None, "statements": planned["statements"], "plan": planned["plan"]}
    assert tag == dry_tag
    assert [query["name"] for query in (await ask(daemon, "GET", "queries"))[2]] == ["q"]


@served(SQL)
async def test_a_refusal_is_the_answer(daemon):
    text = "CREATE QUERY r AS\n  SELECT k FROM t"
    answer, _ = await check(daemon, text)
    _, _, refused = await ask(daemon, "POST", "sql", {"sql": text, "dry_run": True})
    assert answer["problem"] == {key: refused[key] for key in ("code", "detail", "line", "column")}
    assert (answer["problem"]["line"], answer["statements"], answer["plan"]) == (2, [], None)
