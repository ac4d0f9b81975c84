"""The installed version."""

from __future__ import annotations


def number() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("millrace")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
