"""`millrace strategy try` and `strategy trial`: a trial is begun in the server, watched, and told as a table.

Rule: the trial is the server's. Whoever interrupts the command has only stopped watching.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer

from millrace.cli import show
from millrace.cli.link import Link, segment
from millrace.protocol.errors import MillraceError, Refuse

# How often the server is asked how far the trial is, and how often a person is told.
POLL_SECONDS: Final = 0.5
TELL_SECONDS: Final = 5.0

Component = Annotated[str, typer.Argument()]


def strategy_try(
    link: Link,
    component: Component,
    strategy: Annotated[str, typer.Argument(help="dfs, bfs, rr or chain, also with (k).")],
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long to try it, such as 30s.")] = "30s",
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long to measure before. [as long as --for]")
    ] = None,
    revert_if: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="When to go back, such as 'p99 > 200ms or queue > 2x'.")
    ] = None,
    revert: Annotated[bool, typer.Option("--revert", help="Go back in any case.")] = False,
    operator: Annotated[str | None, typer.Option(help="Try it for this operator alone.")] = None,
) -> None:
    """Measure, set a strategy, measure again; then keep it, or go back. It goes on in the server if you leave."""
    from millrace.operators.intervals import parse_duration
    from millrace.server.conditions import parse_condition

    _check("--for", for_, parse_duration)
    _check("--before", before, parse_duration)
    _check("--revert-if", revert_if, parse_condition)
    if revert and revert_if is not None:
        raise typer.BadParameter("--revert goes back in any case: give one of the two", param_hint="--revert-if")
    body = {
        "strategy": strategy,
        "operator": operator,
        "for": for_,
        "before": before,
        "revert_if": revert_if,
        "revert": revert,
    }
    path = f"components/{segment(component)}/trial"
    trial = link.post(path, body)
    try:
        trial = _watch(link, path, trial)
    except KeyboardInterrupt:
        raise MillraceError(f"the trial goes on in the server: see `millrace strategy trial {component}`") from None
    _tell(link, trial)
    if trial["outcome"] in ("failed", "cancelled"):
        raise MillraceError(f"the trial {_outcome_words(trial)}")


def strategy_trial(
    link: Link,
    component: Component,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the trial that runs, and go back.")] = False,
) -> None:
    """Show the trial that runs in a component, or the last one."""
    path = f"components/{segment(component)}/trial"
    _tell(link, link.delete(path) if cancel else link.get(path))


def _check(flag: str, text: str | None, parse: Callable[[str], Any]) -> None:
    try:
        if text is not None:
            parse(text)
    except Refuse as refused:
        raise typer.BadParameter(refused.text, param_hint=flag) from None


def _watch(link: Link, path: str, trial: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask until the trial has ended."""
    told, due = "", 0.0
    while trial["state"] != "ended":
        if trial["state"] != told or time.monotonic() >= due:
            told, due = trial["state"], time.monotonic() + TELL_SECONDS
            under = trial["previous"] if told == "before" else trial["strategy"]
            show.tell(f"measuring under {under}; the trial ends in {math.ceil(trial['left_seconds'])} s")
        time.sleep(min(POLL_SECONDS, max(trial["left_seconds"], 0.01)))
        trial = link.get(path)
    return trial


def _tell(link: Link, trial: Mapping[str, Any]) -> None:
    if link.as_json:
        show.as_json(trial)
        return
    show.table(("", f"before ({trial['was']})", f"during ({trial['strategy']})", "change"), rows(trial))
    show.tell(f"the trial {_outcome_words(trial)}")


def _outcome_words(trial: Mapping[str, Any]) -> str:
    """How a sentence about the trial goes on."""
    match trial["outcome"]:
        case None:
            return f"runs; it ends in {trial['left_seconds']:.0f} s"
        case "kept":
            return f"kept {trial['strategy']}: {trial['reason']}"
        case "reverted":
            return f"went back to {trial['was']}: {trial['reason']}"
        case "cancelled":
            return f"was ended, and {trial['was']} holds: {trial['reason']}"
        case _:
            return f"failed, and {trial['was']} holds: {trial['reason']}"


def rows(trial: Mapping[str, Any]) -> list[list[str]]:
    """The table of what was measured before and during."""
    found = []
    for head, key, words in (
        ("latency mean", "mean_us", _time),
        ("latency p50", "p50_us", _time),
        ("latency p99", "p99_us", _time),
        ("latency max", "max_us", _time),
        ("queue mean", "queue_mean", _number),
        ("queue peak", "queue_peak", _number),
        ("idle-wait", "idle", _share),
        ("steps/s", "steps_per_second", _number),
        ("tuples/s in", "input_per_second", _number),
        ("rows", "rows", _number),
        ("seconds", "seconds", _number),
    ):
        before, during = (None if span is None else span[key] for span in (trial["before"], trial["during"]))
        change = "" if key == "seconds" else _change(before, during)
        found.append([head, *("-" if value is None else words(value) for value in (before, during)), change])
    return found


def _time(us: float) -> str:
    return f"{us:.0f} us" if us < 1_000 else f"{us / 1_000:.1f} ms" if us < 1_000_000 else f"{us / 1e6:.2f} s"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _share(value: float) -> str:
    return f"{value * 100:.1f}%"


def _change(before: float | None, during: float | None) -> str:
    if before is None or during is None or before == during:
        return ""
    return f"{(during / before - 1) * 100:+.0f}%" if before else "from nothing"
