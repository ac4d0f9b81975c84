"""Bytes of others break nothing: those that once did or that reach much of a target, and fresh ones."""

from __future__ import annotations

import importlib.util
import zipfile

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz.targets import TARGETS

SECONDS = 10


def test_every_target_is_explored() -> None:
    assert TARGETS.keys() == fuzz.GUIDES.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_known_inputs(name: str) -> None:
    """With compiled kernels, which the search goes without."""
    target = TARGETS[name]
    crashes = [path.read_bytes() for path in sorted((fuzz.HERE / "crashes" / name).glob("*"))]
    with zipfile.ZipFile(fuzz.HERE / "corpus" / f"{name}.zip") as corpus:
        kept = [corpus.read(one) for one in corpus.namelist()]
    assert kept
    for data in [*target.seeds(), *crashes, *kept]:
        target.run(data)


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this Python")
@pytest.mark.parametrize("name", TARGETS)
def test_fresh_inputs(name, tmp_path, capsys):
    found = fuzz.explore(name, SECONDS, tmp_path)
    assert found, capsys.readouterr().out
