"""Requests about a live job, whether it runs or not: changes, and why a query emits nothing.

Rule: all is read from the checkpoint. A change is stored there, and takes effect when the job's driver has committed
its present epoch.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Mapping
from typing import Any

from millrace.backfill.bucket import Bucket, groups_of
from millrace.engine.plan import StreamDefinition
from millrace.offline.script import plan_script
from millrace.protocol import Refuse, format_timestamp
from millrace.protocol.words import counted
from millrace.spark.changing import Change, Decision, check_query
from millrace.spark.checkpoint import STATES, Checkpoint, read_states
from millrace.spark.epochs import Plan, check_not_ended
from millrace.spark.inputs.reader import as_read
from millrace.spark.records import CommitRecord, PartProgress
from millrace.spark.status import existing
from millrace.sql import Catalog
from millrace.sql.functions import install_module
from millrace.values.eventtime import MIN_TIME, is_time


def plan_of(checkpoint: Checkpoint, job: Mapping[str, Any]) -> Plan:
    """The plan that a job started with."""
    for module in job["functions"]:
        install_module(module)
    script = plan_script(job["sql"])
    catalog = as_read(Catalog(script.streams, script.queries), job["punctuated"])
    names = [name for group in job["groups"] for name in group["queries"]]
    groups = tuple(groups_of(catalog, job["buckets"], names))
    plan = Plan(job["sql"], catalog, groups, tuple(job["functions"]), job["buckets"], tuple(job["punctuated"]))
    checkpoint.check(plan.identity())
    return plan


def ask(path: str, sql: str = "", decision: Decision = ()) -> tuple[Change, int]:
    """Store a change, and return it with its number; Refuse says why it cannot be made, with nothing stored."""
    checkpoint, job = existing(path)
    check_not_ended(checkpoint, checkpoint.last())
    before = checkpoint.changes()
    plan, _ = plan_of(checkpoint, job).after(before)
    if decision:
        check_query(plan.groups, decision[1])
    change = Change(sql, decision, f"{getpass.getuser()}@{socket.gethostname()}", time.time_ns() // 1_000)
    plan.after([change])
    if not checkpoint.put_change(len(before) + 1, change):
        raise Refuse("another change was stored at the same time: try again", code="conflict")
    return change, len(before) + 1


def why(path: str, query: str) -> str:
    """Why a query emits no rows, by the last commit: in the bucket that waits, and the part that holds its stream."""
    checkpoint, job = existing(path)
    last = checkpoint.last()
    if last is None:
        raise Refuse(f"{path}: no epoch is committed yet", code="no_commit")
    record = checkpoint.epoch(last.epoch)
    plan, _ = plan_of(checkpoint, job).after(checkpoint.changes()[: 0 if record is None else record.changes])
    check_query(plan.groups, query)
    number, group = next((at, one) for at, one in enumerate(plan.groups) if query in one.names)
    places = {unit: place for unit, place in last.states.items() if unit[0] == number}
    found = [
        (bucket, Bucket(group, state).engine.why(query, last.at_us))
        for (_, bucket), state in read_states(checkpoint.path / STATES, places)
    ]
    waiting = [(bucket, one) for bucket, one in found if one.operator is not None and one.stream is not None]
    if not waiting:
        rows, newest = (counts.rows.get(query, 0) for counts in (last.totals, last.counts))
        flows = f"Not blocked: {query} has emitted {counted(rows, 'row')}, {newest} of them in epoch {last.epoch}."
        return next((one.text for _, one in found if one.reason != "flowing"), flows)
    bucket, reason = waiting[0]
    assert reason.stream is not None
    # A part holds a stream of a job: no feed could answer a request for a timestamp.
    blocked = reason.text.partition("; ")[0].rstrip(".")
    holder = _holder(reason.stream, plan.catalog, last)
    return f"{blocked} (bucket {bucket}; {len(waiting)} of {group.buckets} wait); {holder}."


def _holder(name: str, catalog: Catalog, commit: CommitRecord) -> str:
    """The part that holds a stream, in words."""
    stream = catalog.streams.get(name)
    if stream is None or stream.timestamps != "external":
        return f"{name} has the time of the newest epoch, {format_timestamp(commit.at_us)}"
    parts = commit.parts.get(stream.name, {})
    if not parts:
        return f"stream {name} has no part yet"
    marks = {name: _mark(stream, part) for name, part in parts.items()}
    least = min(marks, key=lambda part: (marks[part], part))
    at = format_timestamp(marks[least]) if is_time(marks[least]) else "the start"
    holds = f"part {least} of {name} is at {at}"
    if parts[least].promise is not None:
        return f"{holds}, which it has promised"
    skew = "" if stream.max_skew_us is None else " until it is read to its end"
    return f"{holds}, and promises nothing{skew or f', because {name} has no max_skew'}"


def _mark(stream: StreamDefinition, part: PartProgress) -> int:
    by_rows = MIN_TIME if part.newest is None or stream.progress != "tuples" else part.newest - stream.disorder_us
    return max(by_rows, MIN_TIME if part.promise is None else part.promise)
