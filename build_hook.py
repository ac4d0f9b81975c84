"""Compile the kernels when the package is built; without a compiler they run as plain Python. Write the tables of the
SQL parser too (operators/millrace/sql/tables.py), because building them takes longer than most runs.

Kernels (KERNELS) are Python that Cython also accepts. The modules of SCHEDULER, which every tuple passes, are compiled
too: plain Python, whose classes the `.pxd` file next to a module declares in C. Hatchling calls `KernelsHook` for
wheels and editable installs. `python build_hook.py` does the same work in place; the Makefile uses it to update changed
modules. A compiled module is in the folder of its source, and Python prefers it.

Rule: a compiled module is never older than its source, nor than any declaration: all modules share the layout of the
declared classes. An outdated compiled file is replaced, or removed when it
cannot be compiled. Without a compiler, or with MILLRACE_NO_KERNELS=1, the installation still works: slower, with the
same results, and one line says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path("operators")
# Kernels that several operators share, and the kernel of one operator in its folder.
KERNELS = ("operators/millrace/values/kernels/[!_]*.py", "operators/millrace/operators/*/kernel.py")
SCHEDULER = [
    Path("operators/millrace/engine/scheduler/component.py"),
    Path("operators/millrace/engine/scheduler/turns.py"),
    Path("operators/millrace/engine/engine.py"),
    Path("operators/millrace/engine/streams.py"),
    Path("operators/millrace/engine/scheduler/rules.py"),
    Path("operators/millrace/engine/scheduler/table.py"),
    Path("operators/millrace/operators/frame/buffer.py"),
    Path("operators/millrace/operators/frame/inlet.py"),
    Path("operators/millrace/operators/frame/operator.py"),
    Path("operators/millrace/operators/filter/routing.py"),
    Path("operators/millrace/operators/sink/sink.py"),
    Path("operators/millrace/values/batch.py"),
]
SQL = Path("operators/millrace/sql")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

# Integers wrap in kernels, as they do in numpy; the papers' loops are worth the optimiser's full attention.
FLAGS = [] if os.name == "nt" else ["-O3", "-fwrapv", "-g0"]
# Plain Python calls gain nothing from -O3, which takes a third longer.
PLAIN_FLAGS = [] if os.name == "nt" else ["-O2", "-fwrapv", "-g0"]
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
}
# Plain Python keeps its meaning when compiled: annotations are not types, numbers stay Python's unless a `.pxd` file
# declares them, indexes are checked.
PLAIN = {"language_level": 3, "annotation_typing": False, "infer_types": False}


Report = Callable[[str], None]


class Outcome(NamedTuple):
    """The compiled files, and one line about them for the terminal."""

    compiled: list[Path]
    line: str


def compile_kernels(root: Path, report: Report = lambda line: None) -> Outcome:
    """Compile the kernels and the scheduler under `root`, next to their sources; on any failure leave none compiled.

    `report` receives a line for each module that is done.
    """
    kernels = [path for pattern in KERNELS for path in sorted(root.glob(pattern))]
    sources = [*kernels, *(root / path for path in SCHEDULER if (root / path).exists())]
    targets = [source.with_name(source.stem + SUFFIX) for source in sources]
    for orphan in set((root / ROOT).rglob(f"*{SUFFIX}")) - set(targets):
        orphan.unlink()
    if os.environ.get("MILLRACE_NO_KERNELS", "") not in ("", "0"):
        return _uncompiled(targets, "MILLRACE_NO_KERNELS is set")
    with _only_builder(report):
        declarations = sorted((root / ROOT).rglob("*.pxd"))
        stale = [
            source
            for source, target in zip(sources, targets, strict=True)
            if _outdated(target, [source, *(declarations if source not in kernels else ())])
        ]
        try:
            if stale:
                _build(root, stale, report)
        except Exception as failure:
            return _uncompiled(targets, _first_line(failure))
    return Outcome(targets, f"kernels: {len(targets)} compiled" + ("" if stale else ", up to date"))


@contextlib.contextmanager
def _only_builder(report: Report) -> Iterator[None]:
    """Wait while another process compiles in this checkout (`make demo` lets one run in the background)."""
    with Path(__file__).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("kernels: waiting for another build of this checkout")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _uncompiled(targets: list[Path], reason: str) -> Outcome:
    for target in targets:
        target.unlink(missing_ok=True)
    return Outcome([], f"kernels: not compiled, running as Python: slower, same results ({reason})")


def _outdated(target: Path, sources: Sequence[Path]) -> bool:
    """A module is rebuilt when one of its sources or this file, which holds the compiler's flags, is newer."""
    newest = max(path.stat().st_mtime_ns for path in (*sources, Path(__file__)))
    return not target.exists() or target.stat().st_mtime_ns < newest


def _first_line(failure: BaseException) -> str:
    cause = failure.__cause__ or failure.__context__
    if isinstance(cause, FileNotFoundError):  # setuptools wraps it in another error
        return f"no C compiler: {cause.filename} not found"
    text = str(failure).strip() or type(failure).__name__
    return text.splitlines()[0][:200]


def _build(root: Path, sources: list[Path], report: Report) -> None:
    """Compile every source in a separate process, one per core at a time; keep all results or none."""
    sources = sorted(sources, key=lambda source: source.stat().st_size, reverse=True)  # the longest first
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        pending = {
            pool.submit(_compile_in_process, root, source, Path(folder) / str(number)): source
            for number, source in enumerate(sources)
        }
        built = {}
        for number, finished in enumerate(as_completed(pending), start=1):
            source = pending[finished]
            try:
                built[source] = finished.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
            report(f"kernels: compiled {number}/{len(sources)} ({_name(source)})")
        for source, result in built.items():
            _replace(result, source)


def _compile_in_process(root: Path, source: Path, folder: Path) -> Path:
    """The compiled file, or the last line that the compiler printed as a RuntimeError."""
    command = [sys.executable, str(Path(__file__).resolve()), "--compile", str(source.relative_to(root)), str(folder)]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if log := os.environ.get("MILLRACE_BUILD_LOG"):
        with Path(log).open("a") as file:
            file.write(done.stdout)
    lines = done.stdout.strip().splitlines() or ["the compiler printed nothing"]
    if done.returncode != 0:
        raise RuntimeError(lines[-1])
    return Path(lines[-1])


def _compile_one(source: Path, folder: Path) -> None:
    """Run Cython and the C compiler on one module, below the working directory; print the path of the result.

    A failure is also one line, printed last.
    """
    try:
        from Cython.Build import cythonize
        from setuptools import Distribution, Extension
        from setuptools.command.build_ext import build_ext

        is_kernel = any(source.match(pattern) for pattern in KERNELS)
        directives, flags = (DIRECTIVES, FLAGS) if is_kernel else (PLAIN, PLAIN_FLAGS)
        extension = Extension(_module(source), [str(source)], extra_compile_args=flags)
        modules = cythonize(
            [extension], include_path=[str(ROOT)], build_dir=str(folder), compiler_directives=directives, quiet=True
        )
        command = build_ext(Distribution({"name": "millrace", "ext_modules": modules}))
        command.build_lib = f"{folder}/lib"
        command.build_temp = f"{folder}/temp"
        command.ensure_finalized()
        command.run()
        line = command.get_ext_fullpath(_module(source))
    except (Exception, SystemExit) as failure:  # setuptools ends the process on some errors
        print(_first_line(failure), flush=True)
        sys.exit(1)
    print(line, flush=True)


def _name(source: Path) -> str:
    return f"{source.parent.name}/{source.stem}" if source.stem == "kernel" else source.stem


def _module(source: Path) -> str:
    return ".".join(source.relative_to(ROOT).with_suffix("").parts)


def _replace(built: Path, source: Path) -> None:
    """Replace the file atomically: a running server may have the old one mapped."""
    target = source.with_name(source.stem + SUFFIX)
    waiting = target.with_name(target.name + ".new")
    shutil.copyfile(built, waiting)
    waiting.replace(target)


def keep_tables(root: Path) -> str:
    """Write the parser's tables next to its grammar; return a line for the terminal, or nothing.

    The module is loaded by its path, because its package may not be installed yet.
    """
    module = root / SQL / "tables.py"
    if not module.exists():
        return ""
    spec = importlib.util.spec_from_file_location("millrace_sql_tables", module)
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(tables)
        return "parser: tables written" if tables.keep_tables(root / SQL) else ""
    except (ImportError, OSError) as failure:
        return f"parser: tables not kept, the first statement takes half a second longer ({_first_line(failure)})"


def _hook_class() -> type[Any]:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
        """Adds the compiled modules to wheels and writes them next to their sources for editable installs."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if self.target_name != "wheel":
                return
            if version == "editable" and os.environ.get("MILLRACE_KERNELS") == "later":
                return  # bootstrap.py compiles them
            outcome = compile_kernels(Path(self.root), self.app.display_info)
            for line in (outcome.line, keep_tables(Path(self.root))):
                if line:
                    self.app.display_info(line)
            tables = Path(self.root) / SQL / "grammar.tables.json"
            if version == "standard" and tables.exists():
                build_data["force_include"][str(tables)] = f"millrace/sql/{tables.name}"
            if not outcome.compiled:
                return
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            if version == "standard":
                for path in outcome.compiled:
                    build_data["force_include"][str(path)] = str(path.relative_to(Path(self.root) / ROOT))

    return KernelsHook


def get_build_hook() -> type[Any]:
    """The class that hatchling uses; `python build_hook.py` must work without hatchling."""
    return _hook_class()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"]:
        _compile_one(Path(sys.argv[2]), Path(sys.argv[3]))
        sys.exit()
    here = Path(__file__).resolve().parent
    for line in (compile_kernels(here, lambda line: print(line, flush=True)).line, keep_tables(here)):
        if line:
            print(line)
