"""Every command of the documents and the examples is typed here, and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import site_hooks
from tests.documents import FENCE, agrees, run_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("howto", "guides", "concepts")
PAGES = [
    *(DOCS / name for name in ("install.md", "first-ten-minutes.md", "tutorial.md", "guarantees.md", "performance.md")),
    DOCS / "papers" / "oop.md",
    *(page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))),
]
WITH_COMMANDS = [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")]
EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
# Languages of blocks that no test has to run. A line that looks like a command has to be in a `console` block.
SHOWN = {"sql", "json", "toml", "python", "text", "mermaid", "sh"}


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_a_page(page: Path, tmp_path: Path) -> None:
    # A page may show a file of examples/ by its path from the root.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert run_page(page, tmp_path)


def test_the_pages_with_commands() -> None:
    """Step-by-step pages have commands; so do the pages that show real output."""
    names = {page.name for page in WITH_COMMANDS}
    assert {page.name for page in (DOCS / "howto").glob("*.md") if page.name != "README.md"} <= names
    assert {"tutorial.md", "guarantees.md", "cookbook.md"} <= names


def test_the_readme(tmp_path: Path) -> None:
    shop = tmp_path / "examples" / "shop"
    shop.mkdir(parents=True)
    for file in (ROOT / "examples" / "shop").iterdir():
        (shop / file.name).write_text(file.read_text())
    assert run_page(ROOT / "README.md", tmp_path)


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.parent.name)
def test_an_example(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path, files=page.parent)


@pytest.mark.parametrize(
    "page", [*PAGES, *EXAMPLES, ROOT / "README.md"], ids=lambda page: f"{page.parent.name}-{page.stem}"
)
def test_no_command_hides_in_another_block(page: Path) -> None:
    for language, _, body in FENCE.findall(page.read_text(encoding="utf-8")):
        assert language in SHOWN | {"console"}, language
        assert language == "console" or not re.search(r"^\$ ", body, re.MULTILINE), body


def test_outputs_that_agree() -> None:
    assert agrees(["a ... c", "...", "z"], ["a b c", "1", "2", "z"])
    assert agrees(["a", "..."], ["a"])
    assert not agrees(["a"], ["a", "b"])
    assert not agrees(["a (b)"], ["a b"])
    assert not agrees([], ["a"])


def test_every_link_of_every_page_resolves() -> None:
    missing = []
    for page in [*(ROOT / name for name in site_hooks.site_pages()), ROOT / "README.md"]:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = re.findall(r"\]\(([^)#:\s]*)(#[\w-]+)?\)", text)
        for target, anchor in [*links, *((source, "") for source in re.findall(r'\ssrc="([^":]+)"', text))]:
            path = (page.parent / target).resolve() if target else page
            if not path.exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
            elif anchor and path.suffix == ".md" and anchor[1:] not in anchors(path):
                missing.append(f"{page.relative_to(ROOT)}: {target}{anchor}")
    assert missing == []


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them, and explicit anchors."""
    text = page.read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    explicit = re.findall(r'<a id="([^"]+)">', text)
    return {*explicit, *(re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads)}
