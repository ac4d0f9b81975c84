"""A real Prometheus scrapes a busy server: every panel has data, alerts fire and clear."""

import json
import math

import pytest
import yaml

from deploy.check.servers import DEPLOY, SOON, Crowd, Millrace, Prometheus, until


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    ends = []
    try:
        server = Millrace(folder)
        ends.append(server.end)
        server.start()
        prometheus = Prometheus(folder, server)
        ends.append(prometheus.end)
        # Prometheus counts only changes that it has seen.
        until(lambda: prometheus.values('up{job="millrace"} == 1'), "the target is up")
        server.fill()
        crowd = Crowd(server)
        ends.append(crowd.end)
        yield server, crowd, prometheus
    finally:
        for end in reversed(ends):
            end()


def test_the_target_is_up_by_tls_and_token_and_every_rule_is_healthy(watched):
    _, _, prometheus = watched
    targets = prometheus.get("targets")["activeTargets"]
    assert [(target["health"], target["scrapeUrl"].split(":")[0]) for target in targets] == [("up", "https")]

    files = [yaml.safe_load(path.read_text()) for path in (DEPLOY / "prometheus" / "rules").glob("*.yml")]
    written = [rule for file in files for group in file["groups"] for rule in group["rules"]]

    def unhealthy():
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert len(rules) == len(written)
        return [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"]

    until(lambda: not unhealthy(), "every rule was evaluated")


def test_the_token_of_prometheus_only_reads(watched):
    server, _, _ = watched
    done = server.tried("query", "drop", "talkers", "--token-file", str(server.scrape / "token"))
    assert (done.returncode, "this needs the role change" in done.stderr) == (1, True)
    assert "talkers" in server.say("query", "list", "--token-file", str(server.scrape / "token"))


def expressions():
    dashboard = json.loads((DEPLOY / "grafana/dashboards/millrace.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_a_panel_has_data(watched, title, expression):
    _, crowd, prometheus = watched
    for name, value in (("$__rate_interval", SOON), ("$instance", ".+"), ("$component", ".+")):
        expression = expression.replace(name, value)

    def shown():
        crowd.refuse_some()
        return [value for _, value in prometheus.values(expression) if not math.isnan(value)]

    until(shown, f"{title}: {expression}")


def test_an_alert_fires_and_clears(watched):
    _, crowd, prometheus = watched

    def fires():
        crowd.refuse_some()
        return prometheus.alerts("MillraceRejectedRows")

    assert until(fires, "it fires")[0]["stream"] == "door"
    until(lambda: not prometheus.alerts("MillraceRejectedRows"), "it clears")


def test_late_tuples_and_broken_freshness_are_told(watched):
    _, _, prometheus = watched
    assert until(lambda: prometheus.alerts("MillraceLateTuples"), "it fires")[0]["stream"] == "till"
    assert until(lambda: prometheus.alerts("MillraceStalenessBroken"), "it fires")[0]["sink"] == "newest"


def test_a_server_that_goes_is_told_and_one_that_comes_back_too(watched):
    server, _, prometheus = watched
    server.end()
    until(lambda: prometheus.alerts("MillraceDown"), "it is missed")
    server.start()
    until(lambda: prometheus.alerts("MillraceRestarted"), "the restart is reported")
    until(lambda: not prometheus.alerts("MillraceDown"), "it is there")
    until(lambda: not prometheus.alerts("MillraceRestarted"), "and nothing is new any more")
