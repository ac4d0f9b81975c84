"""Bundles the libraries of the console into files that the server hands out: no user needs Node, or a network.

    python deploy/console/vendor.py            write server/millrace/console/vendor
    python deploy/console/vendor.py --check    fail if one byte of it differs from what would be written
    python deploy/console/vendor.py --axe DIR  put axe-core, which only the tests use, into DIR

package.json pins the versions, and package-lock.json the SHA-512 of each package. npm refuses a package with another
hash, so the same versions make the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
VENDORED: Final = HERE.parents[1] / "server" / "millrace" / "console" / "vendor"
BUNDLES: Final = ("console", "editor")
# dagre's file contains graphlib, so no bundle mentions it.
INSIDE: Final = {"@dagrejs/dagre": "@dagrejs/graphlib"}
NPM: Final = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
ESBUILD: Final = (
    "--bundle",
    "--format=esm",
    "--minify",
    "--target=es2022",
    "--legal-comments=none",
    "--metafile=used.json",
)


def main() -> int:
    """Write, compare, or copy axe-core; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--axe", type=Path, metavar="DIR", help="put axe-core into this folder instead")
    options = parser.parse_args()
    if shutil.which("npm") is None:
        print("vendor: npm is missing: install Node.js with npm (Debian: apt-get install npm)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="millrace-vendor-") as folder:
        try:
            return _vendor(Path(folder), options)
        except subprocess.CalledProcessError as error:
            print(f"vendor: `{error.cmd[0]}` failed:\n{error.stderr}", file=sys.stderr)
            return 1


def _vendor(work: Path, options: argparse.Namespace) -> int:
    for name in ("package.json", "package-lock.json", *(f"{bundle}.entry.js" for bundle in BUNDLES)):
        shutil.copy(HERE / name, work)
    _run(NPM, work)
    if options.axe:
        shutil.copy(work / "node_modules/axe-core/axe.min.js", options.axe)
        return 0
    files = dict(_bundled(work))
    if options.check:
        return _compared(files)
    VENDORED.mkdir(exist_ok=True)
    for name, content in files.items():
        VENDORED.joinpath(name).write_bytes(content)
        print(f"vendor: {name}, {len(content):,} bytes")
    return 0


def _bundled(work: Path) -> Iterator[tuple[str, bytes]]:
    """Each file's name and content. The licence of every package that is in a bundle is in LICENSES.txt."""
    packages: set[str] = set()
    for bundle in BUNDLES:
        _run((str(work / "node_modules/.bin/esbuild"), f"{bundle}.entry.js", f"--outfile={bundle}.js", *ESBUILD), work)
        packages.update(_packages(json.loads(work.joinpath("used.json").read_bytes())["inputs"]))
        head = b"// Bundled by deploy/console/vendor.py. See LICENSES.txt.\n"
        yield f"{bundle}.js", head + work.joinpath(f"{bundle}.js").read_bytes()
    yield "uplot.css", work.joinpath("node_modules/uplot/dist/uPlot.min.css").read_bytes()
    yield "LICENSES.txt", "\n".join(_licence(work / "node_modules" / name) for name in sorted(packages)).encode()


def _packages(inputs: Mapping[str, object]) -> Iterator[str]:
    """The packages of the files that a bundle is made of."""
    for path in inputs:
        _, inside, rest = path.rpartition("node_modules/")
        if inside:
            name = "/".join(rest.split("/")[: 2 if rest.startswith("@") else 1])
            yield from (name, INSIDE[name]) if name in INSIDE else (name,)


def _licence(package: Path) -> str:
    described = json.loads(package.joinpath("package.json").read_bytes())
    text = package.joinpath("LICENSE").read_text().strip()
    return f"{described['name']} {described['version']} ({described['license']})\n\n{text}\n"


def _compared(files: Mapping[str, bytes]) -> int:
    present = {path.name: path.read_bytes() for path in VENDORED.iterdir()}
    differing = sorted(name for name in {*files, *present} if files.get(name) != present.get(name))
    if differing:
        print(f"vendor: not what the pinned versions make: {', '.join(differing)}. Run deploy/console/vendor.py.")
        return 1
    print(f"vendor: {len(files)} files are byte for byte what the pinned versions make")
    return 0


def _run(command: tuple[str, ...], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
