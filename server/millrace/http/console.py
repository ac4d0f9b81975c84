"""The page at `/`: what there is, in plain tables, for a person without tools.

Rule: a browser runs no script of it, loads nothing for it, shows it in no frame of another page and stores it nowhere.
`HEADERS` say so, and every page of HTML has them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from millrace.observe.metrics import version

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin-bottom:1.5rem}td,th{text-align:left;padding:.2rem 1.2rem .2rem 0;"
    "border-bottom:1px solid #ddd;vertical-align:top}th{font-weight:600}p{color:#555}"
)

_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def page(daemon: Daemon) -> str:
    """The whole page; it shows the state of now and has no script."""
    body = "".join(
        (
            f"<h1>Millrace {escape(version())}</h1>",
            (
                f"<p>The server is {escape(daemon.state)}. Feeds and subscribers: {escape(str(daemon.listen))}. "
                'See also <a href="/metrics">metrics</a> and the <a href="/api/v1/openapi.json">API</a>.</p>'
            ),
            _table("Streams", daemon.streams(), ("name", "timestamps", "tuples", "late", "component")),
            _table("Queries", daemon.queries(), ("name", "state", "rows", "component", "subscribers")),
            _table("Sinks", daemon.catalog.sinks(), ("name", "query", "type", "delivered", "held", "dropped")),
            _table("Components", daemon.engine.components(), ("name", "strategy", "steps", "queued")),
            _table(
                "Operators",
                daemon.engine.operators(),
                ("name", "kind", "input_tuples", "output_tuples", "executions", "errors"),
            ),
        )
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Millrace</title>'
        f"<style>{STYLE}</style></head><body>{body}</body></html>"
    )


def _table(title: str, items: Sequence[object], columns: Iterable[str]) -> str:
    if not items:
        return f"<h2>{title}</h2><p>None yet.</p>"
    columns = tuple(columns)
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(str(getattr(item, name)))}</td>" for name in columns) + "</tr>" for item in items
    )
    return f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
