"""`millrace standby` and `millrace promote`: a second server that takes over."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from millrace.cli import show
from millrace.cli.link import Link
from millrace.protocol.admin.bodies import PromotionRequest
from millrace.protocol.admin.data import from_data, to_data
from millrace.protocol.admin.server import FollowedView, PromotionView, ServerView
from millrace.protocol.errors import MillraceError
from millrace.protocol.words import counted

# How long a promotion may replay what was received.
PROMOTE_SECONDS: Final = 3_600.0


def standby(link: Link) -> None:
    """Show the server's standbys, or the server that it follows, with the lag."""
    from millrace.cli import details

    server = link.view(ServerView, "server")
    if link.as_json:
        follows = None if server.follows is None else to_data(server.follows)
        show.as_json({"epoch": server.epoch, "follows": follows, "standbys": [to_data(one) for one in server.standbys]})
    elif server.follows is not None:
        show.details(_followed(server.follows))
    elif server.standbys:
        rows = [
            (
                one.peer,
                "copying" if one.copying else "connected" if one.connected else "gone",
                one.lsn,
                one.lag_steps,
                details.size(one.sent_bytes),
                "never" if one.heard_us is None else details.instant(one.heard_us),
            )
            for one in server.standbys
        ]
        show.table(("standby", "state", "has step", "lacks", "sent", "heard"), rows)
    else:
        show.tell("this server has no standby: start one with `millrace serve --data-dir DIR --follow HOST`")


def _followed(found: FollowedView) -> dict[str, Any]:
    from millrace.cli import details

    return {
        "follows": found.server,
        "connected": "yes" if found.connected else f"no: {found.error or 'connecting'}",
        "has_step": found.lsn,
        "behind": f"{counted(found.lag_steps, 'step')}, {counted(found.lag_tuples, 'tuple')}, "
        f"{found.lag_seconds:.1f} seconds",
        "to_replay": found.to_replay,
        "received": details.size(found.received_bytes),
        "heard": "never" if found.silent_seconds is None else f"{found.silent_seconds:.1f} seconds ago",
    }


def promote(
    link: Link,
    force: Annotated[
        bool, typer.Option("--force", help="Also while the other server still works: there are two primaries then.")
    ] = False,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="Let a primary with standby.lease or standby.confirm work without a standby until one follows. Make "
            "sure that the earlier one will not be promoted.",
        ),
    ] = False,
) -> None:
    """Make a standby the primary: it replays what it has received, and then accepts feeds, readers and changes."""
    if len(link.addresses) > 1:
        raise MillraceError("--admin: a promotion is for one server: name that one alone")
    if alone and force:
        raise MillraceError("--force is for a standby and --alone for a primary: use one of them")
    if alone:
        _go_alone(link)
        return
    answer = link.within(PROMOTE_SECONDS).post("standby/promote", PromotionRequest(force=force))
    if link.as_json:
        show.as_json(answer)
        return
    done = from_data(PromotionView, answer)
    show.tell(f"{link.admin} is the primary now, in epoch {done.epoch}, after step {done.last_lsn}")
    show.tell(_missing(done))


def _go_alone(link: Link) -> None:
    answer = link.post("standby/alone")
    if link.as_json:
        show.as_json(answer)
    else:
        show.tell(f"{link.admin} works without a standby until one follows")


def _missing(done: PromotionView) -> str:
    from millrace.cli import details

    if done.announced_lsn is None or done.announced_us is None:
        return "it has not heard the other server since its start: what that did since is missing"
    when = details.instant(done.announced_us)
    if not done.missing_steps:
        return f"nothing is missing up to step {done.announced_lsn}, which the other server announced last, at {when}"
    return (
        f"missing: {counted(done.missing_steps, 'step')} with about {counted(done.missing_tuples, 'tuple')}, of those "
        f"up to step {done.announced_lsn}, which the other server announced last, at {when}"
    )
