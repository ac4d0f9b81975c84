"""Every metric and every label in the dashboard, the rules and their test cases exists."""

import json
import re
import runpy
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from millrace.run.config import Settings
from millrace.run.daemon import Daemon
from millrace.spark.metrics import Metrics as LiveMetrics
from tests.deploy.promql import ExpressionNames, names_in, samples, unknown

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# Labels that Prometheus adds to every series, and the series that it adds for each scrape.
ADDED = frozenset({"job", "instance"})
# Series of the process; ProcessCollector reads /proc for them.
PROCESS = ("process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes")


def rules(name):
    groups = yaml.safe_load((DEPLOY / f"prometheus/rules/{name}.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard():
    return json.loads((DEPLOY / "grafana/dashboards/millrace.json").read_text(encoding="utf-8"))


def panels():
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


@pytest.fixture(scope="module")
def known():
    """Every series with its labels: of the server, of live jobs, of the process, and of the recording rules."""
    metrics = Daemon(Settings()).metrics
    series = {name: labels | ADDED for name, labels in samples(metrics.collect())}
    series |= {name: labels | ADDED for name, labels in spark_samples()}
    text = metrics.text().decode()
    series |= {name: ADDED for name in PROCESS if re.search(f"^{name} ", text, re.MULTILINE)}
    series["up"] = ADDED
    for rule in rules("recording"):
        names = names_in(rule["expr"])
        assert unknown(rule["expr"], series) == [], rule["record"]
        # A grouping leaves the labels that it names; without a grouping a series has all of its labels.
        series[rule["record"]] = names.groups - {"le"} or frozenset().union(*(series[name] for name, _ in names.series))
    return series


def spark_samples():
    """The series of the driver of a live job, with their labels."""
    for one in vars(LiveMetrics(None)).values():
        if isinstance(one, MetricWrapperBase):
            yield f"{one._name}{'_total' if one._type == 'counter' else ''}", frozenset(one._labelnames)


def test_expressions_are_read_as_prometheus_reads_them():
    assert names_in('sum by (a, le) (rate(m_bucket{x="}",y!~"b"}[5m])) / on (a) n > bool 0') == ExpressionNames(
        (("m_bucket", frozenset({"x", "y"})), ("n", frozenset())), frozenset({"a", "le"})
    )
    known = {"m": frozenset({"a"})}
    assert unknown('sum by (b) (m{c="1"}) + n', known) == [
        "the series n does not exist",
        "m has no label c",
        "nothing here has the label b",
    ]


def test_every_panel_queries_existing_series(known):
    for panel in panels():
        for target in panel["targets"]:
            assert unknown(target["expr"], known) == [], panel["title"]
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            found = names_in(target["expr"])
            kept = found.groups or frozenset().union(*(known[name] for name, _ in found.series))
            assert legend <= kept, panel["title"]


def test_the_variables_and_annotations_of_the_dashboard_query_existing_series(known):
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            assert unknown(series, known) == []
            assert label in known[names_in(series).series[0][0]]
    for annotation in dashboard()["annotations"]["list"]:
        assert unknown(annotation["expr"], known) == []


def test_every_alert_queries_existing_series(known):
    for rule in rules("alerts"):
        assert unknown(rule["expr"], known) == [], rule["alert"]
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        kept = names_in(rule["expr"]).groups or frozenset().union(
            *(known[name] for name, _ in names_in(rule["expr"]).series)
        )
        assert used <= kept, rule["alert"]


def test_every_alert_and_every_recorded_series_has_a_case():
    cases = yaml.safe_load((DEPLOY / "prometheus/rules_test.yml").read_text(encoding="utf-8"))["tests"]
    checks = [check for case in cases for check in case.get("alert_rule_test", [])]
    for rule in rules("alerts"):
        expected = [bool(check["exp_alerts"]) for check in checks if check["alertname"] == rule["alert"]]
        assert expected == [False, True, False], f"{rule['alert']}: quiet, fires, clears"
    asked = {
        name
        for case in cases
        for check in case.get("promql_expr_test", [])
        for name, _ in names_in(check["expr"]).series
    }
    alerts = {name for rule in rules("alerts") for name, _ in names_in(rule["expr"]).series}
    assert {rule["record"] for rule in rules("recording")} - asked - alerts == set()


def test_the_dashboard_is_the_generator_s():
    made = runpy.run_path(str(DEPLOY / "grafana/generate.py"))["text"]()
    kept = (DEPLOY / "grafana/dashboards/millrace.json").read_text(encoding="utf-8")
    assert kept == made, "run: python deploy/grafana/generate.py"


def test_the_dashboard_has_a_row_per_question_and_no_panels_on_each_other():
    found = dashboard()
    assert [panel["title"] for panel in found["panels"] if panel["type"] == "row"] == [
        "Is it alive and moving?",
        "Where does time wait?",
        "Where is work?",
        "Does it have enough memory and time?",
        "Is it fresh?",
        "Is its state safe?",
        "Who is refused?",
        "Do live jobs on Spark keep up?",
    ]
    cells = [
        (x, y)
        for panel in found["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)
    assert found["uid"] == "millrace"
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
