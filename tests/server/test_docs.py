"""The server's messages are the messages of the pages."""

import re
import subprocess
import sys
from pathlib import Path

from millrace.cli.commands import COMMANDS
from millrace.engine.events import SetQueue
from millrace.history.archive import Limits
from millrace.http.api import build
from millrace.observe.metrics import reference
from millrace.run.daemon import Daemon
from millrace.run.durability import Durability
from tests.server.harness import SCHEMA_SQL, lines, served, settings, until

DOCS = Path(__file__).parents[2] / "docs"


JOIN = "CREATE QUERY pairs AS SELECT a.k FROM s a [RANGE '1 s'] JOIN s b [RANGE '1 s'] ON a.k = b.k"
LATEST = (
    "CREATE STREAM u (k BIGINT) WITH (update_key = 'k'); CREATE QUERY latest AS SELECT k FROM u WHERE k > 0; "
    "CREATE QUERY chosen AS SELECT k FROM u LATEST USING AUTO"
)


def table_of_metrics():
    daemon = Daemon(settings())
    return reference(daemon.metrics)


def test_every_metric_is_explained_in_a_sentence():
    texts = [row.rsplit("|", 2)[1].strip() for row in table_of_metrics().splitlines()[2:]]
    assert [
        text for text in texts if not re.fullmatch(r"[A-Z0-9](?:[^.]|\.\d)*\w\)?\.", text) or len(text.split()) < 5
    ] == []


@served(f"{SCHEMA_SQL}; {JOIN}; {LATEST}; CREATE SINK f FROM q WITH (type = 'stdout')")
async def test_the_labels_of_every_metric_are_those_of_its_samples(daemon, tmp_path):
    daemon.archive.limits = Limits(tmp_path)
    daemon.metrics.durability = Durability(daemon, tmp_path)
    await daemon.catalog.execute("CREATE STREAM h (k BIGINT) WITH (history = 'true')")
    async with lines(daemon) as nc:
        nc.say('{"stream": "s", "tuple": {"k": 1}}')  # a low watermark is shown once it is known
        await until(lambda: daemon.queries()[0].rows == 1)
    await daemon.runner.command(SetQueue("latest.filter1", "inplace"))
    told = dict(re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \|", table_of_metrics(), re.MULTILINE))
    for family in daemon.metrics.collect():
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        name = family.name + ("_total" if family.type == "counter" else "")
        assert ", ".join(labels) == told[name], name


def test_every_verb_is_documented():
    page = (DOCS / "cli.md").read_text(encoding="utf-8").replace("\\|", "|")
    for command in COMMANDS:
        group, _, name = command.path.rpartition(" ")
        pattern = rf"`millrace [\w|]*\b{group}\b[\w|]* [\w|]*\b{name}\b" if group else rf"`millrace {name}\b"
        assert re.search(pattern, page), command.path


@served()
async def test_every_route_is_documented(daemon):
    page = (DOCS / "http.md").read_text(encoding="utf-8")
    told = {
        (method, path)
        for methods, path in re.findall(r"^\| ([A-Z, ]+) \| `(/\S*)` \|", page, re.MULTILINE)
        for method in methods.split(", ")
    }
    paths = build(daemon).openapi()["paths"]
    served_here = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert told == served_here | {
        ("GET", path) for path in ("/", "/console/login", "/console/{file}", "/api/v1/openapi.json")
    }


def test_generated_parts_are_current():
    done = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
