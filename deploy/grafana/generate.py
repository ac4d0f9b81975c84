"""Writes the dashboard: a row for each question of an administrator.

    python deploy/grafana/generate.py

A panel has a title, a description, and queries with legends. This program adds Grafana's JSON and the positions. A test
runs every query against a busy server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).parent
DASHBOARD: Final = HERE / "dashboards" / "millrace.json"
# The selection by the variables at the top of the dashboard.
SERVER: Final = 'job="millrace",instance=~"$instance"'
PART: Final = f'{SERVER},component=~"$component"'
# Live jobs on Spark: each driver serves its metrics itself.
SPARK: Final = 'job="millrace-spark"'
# Grafana's grid is 24 wide: three panels per row.
WIDTH: Final = 8
HEIGHT: Final = 7


class Panel(NamedTuple):
    """`queries` are pairs of an expression and the legend of its series."""

    title: str
    unit: str
    description: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


def rate(metric: str, of: str) -> str:
    return f"rate({metric}{{{of}}}[$__rate_interval])"


def total(expression: str, by: str) -> str:
    return f"sum by ({by}) ({expression})"


def summed(metric: str, by: str, of: str = SERVER, called: str = "") -> tuple[str, str]:
    """A query: a rate by one label, with that label as its legend."""
    return total(rate(metric, of), by), f"{called} {{{{{by}}}}}".strip()


def quantile(share: float, metric: str, by: str, of: str = SERVER) -> str:
    return f"histogram_quantile({share}, {total(rate(metric + '_bucket', of), f'{by}, le')})"


def share(part: str, whole: str, of: str) -> str:
    """A part as a share of the whole; no value without a whole."""
    return f"{rate(part, of)} / ({rate(whole, of)} > 0)"


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Is it alive and moving?": (
        Panel(
            "Up, and ready since",
            "s",
            "How long the server has been running. No value: it is not running.",
            ((f"time() - process_start_time_seconds{{{SERVER}}} and on (instance, job) up == 1", "{{instance}}"),),
            "stat",
        ),
        Panel(
            "Tuples in",
            "cps",
            "Tuples from feeds, by stream, including late ones.",
            ((rate("millrace_source_tuples_total", SERVER), "{{stream}}"),),
        ),
        Panel(
            "Rows out",
            "cps",
            "Rows delivered to all consumers of a query.",
            (summed("millrace_sink_delivered_tuples_total", by="query"),),
        ),
        Panel(
            "Feeds",
            "short",
            "Open feeds, by stream.",
            ((f"millrace_source_connections{{{SERVER}}}", "{{stream}}"),),
        ),
        Panel(
            "Queries that are not running",
            "short",
            "Paused or failed; `millrace query show NAME` has the reason.",
            ((f'sum by (state) (millrace_query_state{{{SERVER},state!="running"}})', "{{state}}"),),
        ),
        Panel(
            "Refused and dropped",
            "cps",
            "Rows that did not match the schema, could not be computed, or were dropped for slow consumers.",
            (
                summed("millrace_source_rejected_total", by="stream", called="refused"),
                summed("millrace_operator_errors_total", by="operator", of=PART, called="not computed"),
                summed("millrace_sink_dropped_tuples_total", by="query", called="dropped"),
            ),
        ),
    ),
    "Where does time wait?": (
        Panel(
            "Share of time for which inputs block operators",
            "percentunit",
            "The time of this input did not advance: its feed is silent, or advances it rarely.",
            (
                (
                    rate("millrace_operator_idle_wait_seconds_total", PART),
                    "{{operator}} for {{input}}",
                ),
            ),
        ),
        Panel(
            "Response time of clients to timestamp requests",
            "s",
            "99 % of the answered requests took at most this long.",
            (
                (
                    quantile(0.99, "millrace_ets_request_seconds", by="stream", of=f'{SERVER},outcome="answered"'),
                    "{{stream}}",
                ),
            ),
        ),
        Panel(
            "Requests for timestamps, by outcome",
            "cps",
            "Timeouts mean that a client does not answer.",
            (summed("millrace_ets_request_seconds_count", by="outcome"),),
        ),
        Panel(
            "What advances the time of streams",
            "cps",
            "Punctuation by cause: tuples, clients, requests, the clock, feeds that left.",
            ((rate("millrace_punctuation_total", SERVER), "{{cause}}"),),
        ),
        Panel(
            "Lag compared to the clock",
            "s",
            "Distance from each component's time to now. Flat is normal; rising means that its time stands still.",
            ((f"time() - min by (component) (millrace_operator_low_watermark_seconds{{{PART}}})", "{{component}}"),),
        ),
        Panel(
            "Late tuples",
            "percentunit",
            "The share of a stream's tuples that were older than the time it had already promised.",
            (
                (
                    share("millrace_source_late_tuples_total", "millrace_source_tuples_total", SERVER),
                    "{{stream}}",
                ),
            ),
        ),
    ),
    "Where is work?": (
        Panel(
            "Share of time for which operators are busy",
            "percentunit",
            "The sum is at most one: the engine uses one core.",
            ((rate("millrace_operator_busy_seconds_total", PART), "{{operator}}"),),
        ),
        Panel(
            "Tuples queued",
            "short",
            "Tuples in the queues of operators. Growing: overload, or an operator is blocked.",
            ((f"millrace_operator_queue_tuples{{{PART}}}", "{{operator}} from {{input}}"),),
        ),
        Panel(
            "State",
            "bytes",
            "The state of windows, joins and aggregates.",
            ((f"millrace_operator_state_bytes{{{PART}}}", "{{operator}}"),),
        ),
        Panel(
            "Tuples in an execution",
            "short",
            "Tuples that an operator reads per execution: many under load, few for low latency.",
            (
                (
                    share("millrace_operator_input_tuples_total", "millrace_operator_executions_total", PART),
                    "{{operator}}",
                ),
            ),
        ),
        Panel(
            "Processor and memory of the process",
            "short",
            "Processor seconds per second, and memory in GiB.",
            (
                (rate("process_cpu_seconds_total", SERVER), "processors {{instance}}"),
                (f"process_resident_memory_bytes{{{SERVER}}} / 2^30", "GiB {{instance}}"),
            ),
        ),
        Panel(
            "Changes",
            "short",
            "Changes by administrators in the last five minutes, by result.",
            (
                (
                    f"sum by (kind, result) (increase(millrace_reconfigurations_total{{{SERVER}}}[5m])) > 0",
                    "{{kind}} {{result}}",
                ),
            ),
        ),
    ),
    "Does it have enough memory and time?": (
        Panel(
            "Memory by part, and the budget",
            "bytes",
            "What the server holds, and `server.memory`. Near it feeds wait, rows are dropped, then a query fails.",
            (
                (f"millrace_memory_used_bytes{{{SERVER}}}", "{{part}}"),
                (f"millrace_memory_budget_bytes{{{SERVER}}}", "budget {{instance}}"),
            ),
        ),
        Panel(
            "Overload",
            "short",
            "0: none. 1: feeds wait, nothing is lost. 2: rows are dropped. 3: queries fail.",
            ((f"millrace_overload_mode{{{SERVER}}}", "{{instance}}"),),
        ),
        Panel(
            "Rows dropped and queries failed for memory",
            "short",
            "In the last five minutes: retained rows, rows that waited for slow readers, and failed queries.",
            (
                (f"increase(millrace_shed_rows_total{{{SERVER}}}[5m])", "{{kind}}"),
                (f"increase(millrace_memory_failed_queries_total{{{SERVER}}}[5m])", "failed {{instance}}"),
            ),
        ),
        Panel(
            "Load of the engine",
            "percentunit",
            "The share of time in which the engine works. At 1 feeds wait for it.",
            ((f"millrace_engine_load{{{SERVER}}}", "{{instance}}"),),
        ),
        Panel(
            "Delay of the event loop",
            "s",
            "The longest time for which sockets had to wait, in the last ten seconds.",
            ((f"millrace_loop_delay_seconds{{{SERVER}}}", "{{instance}}"),),
        ),
        Panel(
            "Feeds wait for memory",
            "short",
            "1 while feeds get no credit because the memory budget is nearly used up.",
            ((f"millrace_memory_held{{{SERVER}}}", "{{instance}}"),),
        ),
    ),
    "Is it fresh?": (
        Panel(
            "From arrival to delivery",
            "s",
            "99 % and 50 % of rows are delivered within this time after the arrival of their newest tuple.",
            (
                (
                    quantile(0.99, "millrace_query_latency_seconds", by="query"),
                    "{{query}} 99 %",
                ),
                (
                    quantile(0.5, "millrace_query_latency_seconds", by="query"),
                    "{{query}} 50 %",
                ),
            ),
        ),
        Panel(
            "Oldest row that a consumer holds",
            "s",
            "A slow disk or subscriber.",
            ((f"millrace_sink_lag_seconds{{{SERVER}}}", "{{query}} {{sink}}"),),
        ),
        Panel(
            "Rows that consumers hold",
            "short",
            "At `slow_limit` the `on_slow` policy applies.",
            ((f"millrace_sink_unacked_tuples{{{SERVER}}}", "{{query}} {{sink}}"),),
        ),
        Panel(
            "Staleness of update queues",
            "s",
            "Mean age of the oldest update that the results of a key do not contain.",
            ((f'millrace_update_staleness_seconds{{{PART},kind="application"}}', "{{operator}} from {{input}}"),),
        ),
        Panel(
            "Superseded, shed, and freshness broken",
            "cps",
            "Updates replaced by newer ones, tuples dropped by shedding, and rows older than a sink's freshness.",
            (
                summed("millrace_update_superseded_total", by="operator", of=PART, called="superseded"),
                summed("millrace_update_shed_total", by="operator", of=PART, called="shed"),
                summed("millrace_sink_freshness_breaches_total", by="sink", called="broken"),
            ),
        ),
        Panel(
            "Age of unwritten history",
            "s",
            "Age of the oldest row that is in no complete file of its stream's history.",
            ((f"millrace_archive_waiting_seconds{{{SERVER}}}", "{{stream}}"),),
        ),
    ),
    "Is its state safe?": (
        Panel(
            "Problems",
            "short",
            "Reasons why the server cannot save its state; /-/healthy lists them.",
            ((f"millrace_problems{{{SERVER}}}", "{{instance}}"),),
            "stat",
        ),
        Panel(
            "Written to the journal",
            "Bps",
            "Bytes of steps, and their number.",
            ((rate("millrace_journal_bytes_total", SERVER), "{{instance}}"),),
        ),
        Panel(
            "Sync of the journal",
            "s",
            "Under sync = 'always' every row waits for one.",
            (
                (quantile(0.99, "millrace_journal_sync_seconds", by="instance"), "{{instance}} 99 %"),
                (quantile(0.5, "millrace_journal_sync_seconds", by="instance"), "{{instance}} 50 %"),
            ),
        ),
        Panel(
            "Waiting for the disk",
            "bytes",
            "Steps in memory that are not durable yet; with 64 MB, feeds get no credit.",
            ((f"millrace_journal_waiting_bytes{{{SERVER}}}", "{{instance}}"),),
        ),
        Panel(
            "Journal and checkpoint on the disk",
            "bytes",
            "Checkpoints let the server remove older segments. The past is what `journal.keep` keeps in addition.",
            (
                (f"millrace_journal_disk_bytes{{{SERVER}}}", "{{instance}} journal"),
                (f"millrace_journal_checkpoint_bytes{{{SERVER}}}", "{{instance}} checkpoint"),
                (f"millrace_journal_past_bytes{{{SERVER}}}", "{{instance}} past"),
            ),
        ),
        Panel(
            "Retained rows",
            "bytes",
            "Rows of all queries for readers that resume: on the disk, and in memory until they are written.",
            (
                (f"millrace_results_bytes{{{SERVER}}}", "{{instance}} disk"),
                (f"millrace_results_waiting_bytes{{{SERVER}}}", "{{instance}} memory"),
            ),
        ),
        Panel(
            "Age of the newest checkpoint",
            "s",
            "After a restart, the server replays everything since this checkpoint.",
            ((f"millrace_journal_checkpoint_age_seconds{{{SERVER}}}", "{{instance}}"),),
        ),
        Panel(
            "Lag of the follower",
            "s",
            "How far the process that writes checkpoints is behind; no line without a data directory.",
            ((f"millrace_journal_follower_lag_seconds{{{SERVER}}}", "{{instance}}"),),
        ),
        Panel(
            "Lag of the standby",
            "s",
            "At a standby: the time since it had everything that its primary had announced. A promotion loses that.",
            ((f"millrace_standby_lag_seconds{{{SERVER}}}", "{{instance}}"),),
        ),
        Panel(
            "Steps that standbys lack",
            "short",
            "At a primary: the steps that its last standby lacks; it grows while none is connected.",
            ((f"millrace_standby_lacking_steps{{{SERVER}}}", "{{instance}}"),),
        ),
        Panel(
            "Last recovery",
            "s",
            "How long the last start took to recover the state.",
            ((f"millrace_journal_recovery_seconds{{{SERVER}}}", "{{instance}}"),),
        ),
    ),
    "Who is refused?": (
        Panel(
            "Refused clients",
            "cps",
            "Requests and connections without a valid token, or without the role that they need.",
            ((rate("millrace_auth_failures_total", SERVER), "{{port}} {{reason}}"),),
        ),
        Panel(
            "Wrong tokens",
            "cps",
            "Those whose answer was delayed, and those that got none because too many came from one address.",
            (summed("millrace_wrong_tokens_total", by="outcome"),),
        ),
        Panel(
            "Ended connections",
            "cps",
            "Connections that the server ended because of what their client did, by reason.",
            (summed("millrace_connections_refused_total", by="reason"),),
        ),
    ),
    "Do live jobs on Spark keep up?": (
        Panel(
            "Behind the clock",
            "s",
            "The time of the newest epoch minus the lowest mark. It rises if a part is silent or the job is too slow.",
            ((f"millrace_spark_mark_lag_seconds{{{SPARK}}}", "{{instance}}"),),
        ),
        Panel(
            "An epoch",
            "s",
            "Duration of the newest epoch by phase. Phases inside tasks are times of the slowest task.",
            ((f"millrace_spark_epoch_seconds{{{SPARK}}}", "{{instance}} {{phase}}"),),
        ),
        Panel(
            "Rows read and emitted",
            "cps",
            "Rows of all streams, and of all queries.",
            (
                summed("millrace_spark_rows_read_total", by="stream", of=SPARK, called="read"),
                summed("millrace_spark_rows_emitted_total", by="query", of=SPARK, called="emitted"),
            ),
        ),
        Panel(
            "Late and failed rows",
            "cps",
            "Rows that entered no query, by stream, and rows that an operator could not compute.",
            (
                summed("millrace_spark_late_total", by="stream", of=SPARK, called="late"),
                summed("millrace_spark_failed_rows_total", by="operator", of=SPARK, called="failed"),
            ),
        ),
        Panel(
            "Skew of the buckets",
            "none",
            "Time of the slowest bucket divided by the mean. A key with most of the rows makes it large.",
            ((f"millrace_spark_bucket_skew{{{SPARK}}}", "{{instance}}"),),
        ),
        Panel(
            "Parts behind",
            "none",
            "Parts of a stream that lag another part by more than a second. `millrace spark status` names them.",
            ((f"millrace_spark_parts_behind{{{SPARK}}}", "{{instance}}"),),
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it. The uid never changes, so links to the dashboard stay valid."""
    return {
        "uid": "millrace",
        "title": "Millrace",
        "tags": ["millrace"],
        "schemaVersion": 38,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "templating": {"list": [_datasource(), _variable("instance", 'up{job="millrace"}'), _component()]},
        "annotations": {"list": [_restarts()]},
        "panels": list(_panels()),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(name: str, series: str) -> dict[str, Any]:
    query = f"label_values({series}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": _source(),
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def _component() -> dict[str, Any]:
    return _variable("component", f"millrace_component_ready{{{SERVER}}}")


def _restarts() -> dict[str, Any]:
    return {
        "name": "Restarts",
        "datasource": _source(),
        "enable": True,
        "iconColor": "red",
        "expr": f"changes(process_start_time_seconds{{{SERVER}}}[1m]) > 0",
        "titleFormat": "started again",
    }


def _source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}


def _panels() -> Iterator[dict[str, Any]]:
    top = number = 0
    for title, panels in ROWS.items():
        number += 1
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        for at, panel in enumerate(panels):
            number += 1
            x, y = at % 3 * WIDTH, top + at // 3 * HEIGHT
            yield _panel(panel, number, {"x": x, "y": y, "w": WIDTH, "h": HEIGHT})
        top += -(-len(panels) // 3) * HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _source(),
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": _options(panel.kind),
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _source(), "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _options(kind: str) -> dict[str, Any]:
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none"}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    DASHBOARD.write_text(text(), encoding="utf-8")
