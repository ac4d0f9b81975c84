"""What `make docs-site` does in addition to MkDocs: pages outside docs/, globs in the navigation, local diagrams.

Rule: a page of the site fetches nothing from another host. The build fails if a page names a script, a style sheet, an
image or a frame elsewhere. Functions called `on_...` are MkDocs' events; the others need no MkDocs, so that
tests/docs can use them without it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
# The script that makes the search work in pages opened as files (MIT licence), and its address in the theme.
WORKER: Final = "assets/iframe-worker.js"
THEME_WORKER: Final = "https://unpkg.com/iframe-worker/shim"
# Mermaid with its flowcharts, sequence charts, state charts and the like (MIT licence), for pages with a diagram.
DIAGRAMS: Final = "assets/mermaid.tiny.js"
# Pages elsewhere in the repository, with their place in the site.
OTHER_PAGES: Final = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "deploy/spark/README.md": "spark.md",
    "tests/conformance/README.md": "conformance.md",
}
# Links to these lead to a page that says the same.
ALIASES: Final = {"README.md": "README.md", "examples": "README.md"}
LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE: Final = re.compile(r"(^```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)
ELSEWHERE: Final = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|<link(?![^>]*canonical)[^>]*\shref=["']?(?:https?:)?//"""
)


def site_pages() -> Mapping[str, str]:
    """Every page of the site: its path in the repository, and in the site."""
    pages = {f"docs/{path.relative_to(DOCS).as_posix()}": path.relative_to(DOCS).as_posix() for path in pages_of_docs()}
    examples = {
        f"examples/{path.parent.name}/README.md": f"examples/{path.parent.name}.md" for path in examples_pages()
    }
    return {**pages, **examples, **OTHER_PAGES}


def pages_of_docs() -> Iterator[Path]:
    yield from sorted(DOCS.rglob("*.md"))


def examples_pages() -> Iterator[Path]:
    yield from sorted((ROOT / "examples").glob("*/README.md"))


# -- navigation --------------------------------------------------------------------------------------------------------


def expand(nav: list[Any], pages: Iterable[str]) -> list[Any]:
    """The navigation with files for globs. Entries without a page, and sections that are left empty, are dropped."""
    pages = sorted(pages)
    explicit = {entry for entry in entries(nav) if "*" not in entry}
    return list(_expand(nav, pages, explicit))


def entries(nav: Iterable[Any]) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for content in entry.values():
                yield from entries([content] if isinstance(content, str) else content)


def _expand(nav: list[Any], pages: list[str], explicit: set[str]) -> Iterator[Any]:
    for entry in nav:
        if isinstance(entry, str):
            yield from _matches(entry, pages, explicit)
            continue
        for title, content in entry.items():
            if inner := list(_expand(content, pages, explicit)):
                yield {title: inner}


def _matches(entry: str, pages: list[str], explicit: set[str]) -> list[str]:
    if "*" not in entry:
        return [entry] if entry in pages else []
    folder = PurePosixPath(entry).parent
    return [
        page
        for page in pages
        if PurePosixPath(page).parent == folder and fnmatch(page, entry) and page not in explicit
        if page != "decisions/template.md"
    ]


# -- pages -------------------------------------------------------------------------------------------------------------


def rewrite(markdown: str, source: str, pages: Mapping[str, str]) -> str:
    """A page as the site shows it: links lead to the site's pages, and blocks that are files show their names.

    `source` is the page's path in the repository. A link to a file that is not in the site becomes its text.
    """
    parts = FENCE.split(markdown)
    return "".join(
        re.sub(r"^(```\w+) file=(\S+)", r'\1 title="\2"', part)
        if part.startswith("```")
        else LINK.sub(lambda match: _link(match, source, pages), part)
        for part in parts
    )


def _link(match: re.Match[str], source: str, pages: Mapping[str, str]) -> str:
    image, text, target = match.groups()
    path, mark, anchor = target.partition("#")
    if not path or ":" in target:
        return match[0]
    folder = PurePosixPath(source).parent
    repository_path = os.path.normpath(folder / path)
    if page := ALIASES.get(repository_path) or pages.get(repository_path) or pages.get(f"{repository_path}/README.md"):
        return f"{image}[{text}]({_relative(page, pages[source])}{mark}{anchor})"
    if repository_path.startswith("docs/") and (ROOT / repository_path).is_file():
        return f"{image}[{text}]({_relative(repository_path.removeprefix('docs/'), pages[source])})"
    return text if (ROOT / repository_path).exists() else match[0]


def _relative(target: str, page: str) -> str:
    return os.path.relpath(target, PurePosixPath(page).parent)


# -- events of MkDocs --------------------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    config["nav"] = expand(config["nav"], site_pages().values())
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, page in site_pages().items():
        if not source.startswith("docs/"):
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    pages = site_pages()
    source = next(source for source, in_site in pages.items() if in_site == page.file.src_uri)
    return rewrite(markdown, source, pages)


def on_post_template(output: str, template_name: str, **_: Any) -> str:
    """Pages that are made from no file, such as 404.html; the server names their addresses from its root."""
    return output.replace(THEME_WORKER, f"/{WORKER}") if template_name.endswith(".html") else output


def on_post_page(output: str, page: Any, **_: Any) -> str:
    output = output.replace(THEME_WORKER, _relative(WORKER, page.file.dest_uri))
    if 'class="mermaid"' in output:
        script = _relative(DIAGRAMS, page.file.dest_uri)
        output = output.replace("</head>", f'<script src="{script}"></script></head>', 1)
    if elsewhere := ELSEWHERE.search(output):
        raise ValueError(f"{page.file.src_uri} would fetch something from another host: {elsewhere[0]}")
    return output


def on_post_build(config: Any) -> None:
    """Remove the addresses of fallbacks from the theme's script: the pages include these files."""
    site = Path(config["site_dir"])
    for script in (site / "assets" / "javascripts").glob("bundle.*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(re.sub(r"https://unpkg\.com/[\w./@-]+", "about:blank", text), encoding="utf-8")
    for leftover in site.rglob("*.map"):
        leftover.unlink()
    shutil.rmtree(site / "decisions" / "template", ignore_errors=True)
