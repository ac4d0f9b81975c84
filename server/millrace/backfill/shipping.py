"""Millrace as one archive for Spark's `--py-files`.

Rule: it imports from the archive alone. `millrace` is a namespace package, and Python finds a namespace in an archive
only where the folder itself has an entry, so every folder gets one. Compiled kernels cannot be loaded from an archive:
the archive has their Python, slower and with the same results. The libraries that Millrace needs must be there on the
executors (`pip install` what the `server` extra names, or Millrace itself, which then has its kernels compiled).
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# A time that every archive format can store: equal sources make equal bytes.
_DATE: Final = (1980, 1, 1, 0, 0, 0)
_SHIPPED: Final = frozenset({".py", ".lark", ".json", ".typed", ".bin", ".pickle", ".properties"})


def write_archive(path: Path) -> Path:
    """Write the archive, whole or not at all."""
    aside = path.with_name(path.name + ".part")
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        folders: set[str] = set()
        for name, source in sorted(_sources()):
            for folder in _folders(name):
                if folder not in folders:
                    folders.add(folder)
                    archive.writestr(zipfile.ZipInfo(folder, _DATE), b"")
            archive.writestr(zipfile.ZipInfo(name, _DATE), source.read_bytes(), zipfile.ZIP_DEFLATED)
    aside.rename(path)
    return path


def _sources() -> Iterator[tuple[str, Path]]:
    """Every file of every root of the namespace, by its name in the archive."""
    seen = set()
    for root in map(Path, sys.modules["millrace"].__path__):
        for path in root.rglob("*"):
            name = f"millrace/{path.relative_to(root).as_posix()}"
            if path.is_file() and path.suffix in _SHIPPED and "__pycache__" not in path.parts and name not in seen:
                seen.add(name)
                yield name, path


def _folders(name: str) -> Iterator[str]:
    """The folders above a name, outermost first."""
    parts = name.split("/")[:-1]
    for count in range(1, len(parts) + 1):
        yield "/".join(parts[:count]) + "/"


if __name__ == "__main__":
    write_archive(Path(sys.argv[1]))
