"""`millrace strategy try` and `strategy trial`: start a trial in the server, watch it, and print it as a table.

Rule: the trial runs in the server. Interrupting the command only stops watching.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from millrace.cli import show
from millrace.cli.link import Link, segment
from millrace.cli.names import request
from millrace.protocol.admin.bodies import TrialRequest
from millrace.protocol.admin.data import from_data
from millrace.protocol.admin.operators import TrialView
from millrace.protocol.errors import MillraceError, Refuse

# How often the command reads the trial's state, and how often it prints the state.
POLL_SECONDS: Final = 0.5
PRINT_SECONDS: Final = 5.0

Component = Annotated[
    str, typer.Argument(metavar="COMPONENT", help="A component, or a stream, query or operator in it.")
]


def strategy_try(
    link: Link,
    component: Component,
    strategy: Annotated[str, typer.Argument(help="dfs, bfs, rr or chain, each also with (k), as in dfs(1).")],
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="The length of the trial, such as 30s.")] = "30s",
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The length of the measurement before the trial; --for by default."),
    ] = None,
    revert_if: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Revert if this becomes true, such as 'p99 > 200ms or queue > 2x'."),
    ] = None,
    revert: Annotated[bool, typer.Option("--revert", help="Revert at the end in any case.")] = False,
    operator: Annotated[
        str | None, typer.Option(metavar="OPERATOR", help="Try the strategy for this operator only.")
    ] = None,
) -> None:
    """Measure, set a strategy, measure again, then keep the strategy or revert.

    The trial runs in the server. Ctrl-C only stops watching it.
    """
    from millrace.observe.conditions import parse_condition
    from millrace.values.intervals import parse_duration

    _check("--for", for_, parse_duration)
    _check("--before", before, parse_duration)
    _check("--revert-if", revert_if, parse_condition)
    if revert and revert_if is not None:
        raise typer.BadParameter("--revert reverts in any case; use one of the two", param_hint="--revert-if")
    body = TrialRequest(
        strategy=strategy, operator=operator, for_=for_, before=before, revert_if=revert_if, revert=revert
    )
    answer, name = request(link, "POST", "component", component, "/trial", body)
    try:
        answer = _watch(link, f"components/{segment(name)}/trial", answer)
    except KeyboardInterrupt:
        raise MillraceError(f"the trial continues in the server: see `millrace strategy trial {name}`") from None
    trial = _print(link, answer)
    if trial.outcome in ("failed", "cancelled"):
        raise MillraceError(f"the trial {_outcome_words(trial)}")


def strategy_trial(
    link: Link,
    component: Component,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the running trial and revert.")] = False,
) -> None:
    """Show the running trial of a component, or its last one."""
    _print(link, request(link, "DELETE" if cancel else "GET", "component", component, "/trial")[0])


def _check(flag: str, text: str | None, parse: Callable[[str], Any]) -> None:
    try:
        if text is not None:
            parse(text)
    except Refuse as refused:
        raise typer.BadParameter(refused.text, param_hint=flag) from None


def _watch(link: Link, path: str, answer: Any) -> Any:
    """Read the trial until it ends."""
    printed, due = "", 0.0
    while (trial := from_data(TrialView, answer)).state != "ended":
        if trial.state != printed or time.monotonic() >= due:
            printed, due = trial.state, time.monotonic() + PRINT_SECONDS
            under = trial.previous if printed == "before" else trial.strategy
            show.tell(f"measuring under {under}; the trial ends in {math.ceil(trial.left_seconds)} s")
        time.sleep(min(POLL_SECONDS, max(trial.left_seconds, 0.01)))
        answer = link.get(path)
    return answer


def _print(link: Link, answer: Any) -> TrialView:
    trial = from_data(TrialView, answer)
    if link.as_json:
        show.as_json(answer)
    else:
        show.table(("", f"before ({trial.previous})", f"during ({trial.strategy})", "change"), rows(trial))
        show.tell(f"the trial {_outcome_words(trial)}")
    return trial


def _outcome_words(trial: TrialView) -> str:
    """The end of a sentence that starts with `the trial`."""
    match trial.outcome:
        case None:
            return f"is running and ends in {trial.left_seconds:.0f} s"
        case "kept":
            return f"kept {trial.strategy}: {trial.reason}"
        case "reverted":
            return f"reverted to {trial.previous}: {trial.reason}"
        case "cancelled":
            return f"was cancelled; {trial.previous} is set: {trial.reason}"
        case _:
            return f"failed; {trial.previous} is set: {trial.reason}"


def rows(trial: TrialView) -> list[list[str]]:
    """The measurements before and during the trial, as a table."""
    table = []
    for head, key, words in (
        ("latency mean", "mean_us", _time),
        ("latency p50", "p50_us", _time),
        ("latency p99", "p99_us", _time),
        ("latency max", "max_us", _time),
        ("queue mean", "queue_mean", _number),
        ("queue peak", "queue_peak", _number),
        ("memory mean", "memory_mean_bytes", _bytes),
        ("memory peak", "memory_peak_bytes", _bytes),
        ("idle-wait", "idle", _share),
        ("steps/s", "steps_per_second", _number),
        ("tuples/s in", "input_per_second", _number),
        ("rows", "rows", _number),
        ("seconds", "seconds", _number),
    ):
        before, during = (None if span is None else getattr(span, key) for span in (trial.before, trial.during))
        change = "" if key == "seconds" else _change(before, during)
        table.append([head, *("-" if value is None else words(value) for value in (before, during)), change])
    return table


def _time(us: float) -> str:
    return f"{us:.0f} us" if us < 1_000 else f"{us / 1_000:.1f} ms" if us < 1_000_000 else f"{us / 1e6:.2f} s"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _bytes(value: float) -> str:
    units = (("MiB", 2**20), ("KiB", 2**10))
    return next((f"{value / size:.1f} {unit}" for unit, size in units if value >= size), f"{value:.0f} B")


def _share(value: float) -> str:
    return f"{value * 100:.1f}%"


def _change(before: float | None, during: float | None) -> str:
    if before is None or during is None or before == during:
        return ""
    return f"{(during / before - 1) * 100:+.0f}%" if before else "from zero"
