"""The metrics of standbys, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from millrace.observe.families import gauge
from millrace.protocol.admin.server import FollowedView, StandbyView


class Facts(NamedTuple):
    """The server that this one follows, if it does, and the standbys of this server."""

    follows: FollowedView | None = None
    standbys: Sequence[StandbyView] = ()
    epoch: int = 1


def _followed(name: str) -> Callable[[Facts], float]:
    return lambda facts: 0.0 if facts.follows is None else getattr(facts.follows, name)


_GAUGES: Final[tuple[tuple[str, str, Callable[[Facts], float]], ...]] = (
    ("follows", "1 while this server is the standby of another one.", lambda facts: facts.follows is not None),
    ("connected", "1 while this standby is connected to its primary.", _followed("connected")),
    (
        "lag_seconds",
        "At a standby: the time since it had everything that its primary had announced; 0 if it has.",
        _followed("lag_seconds"),
    ),
    (
        "lag_tuples",
        "At a standby: tuples that its primary has taken and this server has not.",
        _followed("lag_tuples"),
    ),
    ("lag_steps", "At a standby: steps of its primary that are not on this server's disk.", _followed("lag_steps")),
    ("to_replay_steps", "At a standby: steps on its disk that it has not replayed yet.", _followed("to_replay")),
    ("epoch", "How often a standby has become the primary, plus 1.", lambda facts: facts.epoch),
    ("standbys", "At a primary: its standbys, connected or not.", lambda facts: len(facts.standbys)),
    (
        "gone",
        "At a primary: its standbys that are not connected.",
        lambda facts: sum(not (one.connected or one.copying) for one in facts.standbys),
    ),
    (
        "lacking_steps",
        "At a primary: the steps that its last standby lacks.",
        lambda facts: max((one.lag_steps for one in facts.standbys), default=0),
    ),
)


def standby_families(facts: Facts) -> Iterator[Metric]:
    for name, text, value in _GAUGES:
        yield gauge(f"standby_{name}", text, (), [((), value(facts))])
