"""The documentation's website: its navigation names every page, and its pages fetch nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import site_hooks

ROOT = Path(__file__).parents[2]
# Tags that only MkDocs can resolve are ignored here.
SETTINGS: dict[str, Any] = yaml.load(
    re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")), Loader=yaml.SafeLoader
)
NOT_IN_NAVIGATION = {"decisions/template.md"}


def test_the_navigation_has_every_page_once() -> None:
    pages = sorted(site_hooks.site_pages().values())
    listed = sorted(site_hooks.entries(site_hooks.expand(SETTINGS["nav"], pages)))
    assert listed == sorted(set(pages) - NOT_IN_NAVIGATION)


def test_the_navigation_has_the_sections_that_readers_look_for() -> None:
    titles = [title for section in SETTINGS["nav"] for title in section]
    assert titles == ["Start", "Concepts", "Guides", "Reference", "Guarantees", "Performance", "Inside"]


def test_a_glob_takes_the_pages_that_no_entry_names() -> None:
    nav = [{"A": ["a/first.md", "a/*.md", "missing.md"]}, {"B": ["b/*.md"]}]
    assert site_hooks.expand(nav, ["a/z.md", "a/first.md", "a/deep/x.md"]) == [{"A": ["a/first.md", "a/z.md"]}]


@pytest.mark.parametrize(
    ("source", "text", "shown"),
    [
        ("docs/tutorial.md", "[SQL](sql.md#joins)", "[SQL](sql.md#joins)"),
        ("docs/tutorial.md", "[ticks](../examples/ticks/README.md)", "[ticks](examples/ticks.md)"),
        ("docs/howto/deploy.md", "[how](../../CONTRIBUTING.md#a-kernel)", "[how](../contributing.md#a-kernel)"),
        ("examples/ticks/README.md", "[lines](../../docs/protocol.md)", "[lines](../protocol.md)"),
        ("examples/ticks/README.md", "[ticks.sql](ticks.sql)", "ticks.sql"),
        ("docs/tutorial.md", "![a](figures/ets-7.png)", "![a](figures/ets-7.png)"),
        ("docs/tutorial.md", "[papers](papers/)", "[papers](papers/README.md)"),
        (
            "docs/tutorial.md",
            "[here](#there) <https://a.b> [a](mailto:a@b)",
            "[here](#there) <https://a.b> [a](mailto:a@b)",
        ),
        ("docs/tutorial.md", "```sql file=a.sql\n[x](y)\n```\n", '```sql title="a.sql"\n[x](y)\n```\n'),
    ],
)
def test_links_and_file_blocks_are_rewritten_for_the_site(source: str, text: str, shown: str) -> None:
    assert site_hooks.rewrite(text, source, site_hooks.site_pages()) == shown


def test_pages_and_theme_fetch_nothing_from_another_host() -> None:
    assert SETTINGS["theme"]["font"] is False
    assert not any("://" in str(SETTINGS.get(name, "")) for name in ("extra_css", "extra_javascript", "extra"))
    for source in site_hooks.site_pages():
        text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / source).read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"!\[[^\]]*\]\(https?:", text), source
        assert not site_hooks.ELSEWHERE.search(text), source


@pytest.mark.parametrize(
    ("html", "refused"),
    [
        ('<script src="https://a.b/c.js"></script>', True),
        ('<img alt="" src="//a.b/c.png">', True),
        ('<link rel="stylesheet" href="https://a.b/c.css">', True),
        ('<link rel="canonical" href="https://a.b/c.html">', False),
        ('<a href="https://a.b/">text</a> <img src="figures/a.png">', False),
    ],
)
def test_a_resource_on_another_host_fails_the_build(html: str, refused: bool) -> None:
    assert bool(site_hooks.ELSEWHERE.search(html)) is refused


def test_vendored_files_of_the_site_exist() -> None:
    for name in (site_hooks.DIAGRAMS, site_hooks.WORKER):
        assert (ROOT / "docs" / name).stat().st_size > 1000


def test_the_build_is_strict_and_reads_its_warnings() -> None:
    """MkDocs counts only the warnings that it prints: with `--quiet`, `--strict` has no effect."""
    (command,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert command == "mkdocs build --strict"
