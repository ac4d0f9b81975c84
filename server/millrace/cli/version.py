"""`millrace version`."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli import show


def number() -> str:
    """The installed version."""
    import importlib.metadata

    try:
        return importlib.metadata.version("millrace")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version."""
    if as_json:
        show.as_json({"version": number()})
    else:
        show.out(f"millrace {number()}")
