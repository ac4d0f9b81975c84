"""Records terminal sessions as pictures: types real commands into real servers, and draws the text as SVG.

    python -m docs.record       docs/assets/session.svg and docs/assets/top.svg (`make record`)

Rule: a picture shows only what was typed and printed. Times, rates and ports differ between recordings.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from tests.documents import Command, File, Shell

ROOT: Final = Path(__file__).resolve().parents[1]
ASSETS: Final = ROOT / "docs" / "assets"

# The README's shop, with a till that has not reported yet.
SESSION: Final[Sequence[File | str]] = (
    File(
        "shop.sql",
        """\
CREATE STREAM door (at TIMESTAMP, visitor TEXT)               WITH (time = 'at');
CREATE STREAM till (at TIMESTAMP, visitor TEXT, cents BIGINT) WITH (time = 'at');

CREATE QUERY diary WITH (order = 'event') AS
  SELECT at, visitor, 'came in' AS what FROM door
  UNION ALL
  SELECT at, visitor, 'paid ' || (cents / 100) || ' euros' FROM till;
""",
    ),
    File(
        "door.jsonl",
        '{"at": "2026-03-01T09:00:05Z", "visitor": "ada"}\n{"at": "2026-03-01T09:00:41Z", "visitor": "grace"}\n',
    ),
    File("till.jsonl", '{"at": "2026-03-01T09:00:50Z", "visitor": "ada", "cents": 1250}\n'),
    "millrace serve --data-dir data 2> server.log &",
    "cat shop.sql",
    "millrace apply shop.sql",
    "millrace feed door door.jsonl",
    "timeout 2 millrace tail diary --from 0  # no rows: why?",
    "millrace why diary",
    "millrace feed till till.jsonl",
    "millrace tail diary --from 0 --limit 2",
    "millrace strategy set door bfs  # while tuples flow",
)
WIDTH: Final = 110
FONT: Final = 13
LINE: Final = 19
CHARACTER: Final = 7.83
# Seconds: before a command lights up, and between lines of output.
BEFORE_COMMAND: Final = 0.9
BETWEEN_LINES: Final = 0.08

STYLE: Final = f"""\
text {{ font: {FONT}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }}
text {{ fill: #c9d1d9 }} .prompt {{ fill: #7ee787 }} .head {{ fill: #8b949e }}
.command {{ fill: #ffffff; font-weight: bold }}"""
ANIMATION: Final = """
.line { animation: light 0.01s backwards }
@keyframes light { from { opacity: 0.3 } }
@media (prefers-reduced-motion) { .line { animation: none } }"""
LIGHTS: Final = ("#ff5f56", "#ffbd2e", "#27c93f")


def record_session() -> str:
    """The commands and their output, as a person would see them."""
    with tempfile.TemporaryDirectory() as folder, Shell(Path(folder)) as shell:
        transcripts = []
        for step in SESSION:
            if isinstance(step, File):
                shell.write(step)
            else:
                transcripts.append(shell.transcript(Command(step, [])))
    return re.sub(r"^\(exit code 124\)\n", "", "".join(transcripts), flags=re.MULTILINE)


def record_top(seconds: float = 30.0) -> str:
    """`millrace top` while `make demo` runs."""
    command = [sys.executable, "-u", "examples/demo.py", "--free-ports", "--seconds", str(seconds)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout
        output = ""
        while not (admin := re.search(r"HTTP API at http://(\S+)", output)) or "time  " not in output:
            output += demo.stdout.readline()
        time.sleep(12)  # the rates are over ten seconds
        top = [sys.executable, "-m", "millrace.cli.main", "top", "--once", "--admin", admin[1]]
        printed = subprocess.run(top, capture_output=True, text=True, check=True).stdout
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=30)
    return f"$ millrace top\n{printed}"


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw(transcript: str, title: str, *, animated: bool = True) -> str:
    """An SVG of a terminal; if animated, its lines light up one after the other, once."""
    lines = list(_wrap(transcript))
    height = LINE * (len(lines) + 2) + 14
    width = round(max(80, *(len(line) for line in lines)) * CHARACTER) + 32
    body = []
    seconds = 0.0
    for number, line in enumerate(lines):
        seconds += BEFORE_COMMAND if line.startswith("$ ") and number else BETWEEN_LINES
        delay = f' style="animation-delay:{seconds:.2f}s"' if animated else ""
        body.append(f'<text class="line" x="16" y="{LINE * (number + 2) + 18}"{delay}>{_colour(line)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}{ANIMATION if animated else ''}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *(f'<circle cx="{20 + 18 * i}" cy="17" r="5" fill="{colour}"/>' for i, colour in enumerate(LIGHTS)),
            *body,
            "</svg>\n",
        ]
    )


def _colour(line: str) -> str:
    if line.startswith("$ "):
        command, mark, comment = line[2:].partition("  # ")
        note = f'<tspan class="head">{escape(mark + comment)}</tspan>' if mark else ""
        return f'<tspan class="prompt">$</tspan> <tspan class="command">{escape(command)}</tspan>{note}'
    kind = ' class="head"' if re.match(r"(component|operator|name|state) {2,}\S", line) else ""
    return f"<tspan{kind}>{escape(line)}</tspan>"


def _wrap(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(line, WIDTH, subsequent_indent="  ") or [line] if len(line) > WIDTH else [line]


def main() -> None:
    ASSETS.mkdir(exist_ok=True)
    session = draw(record_session(), "A terminal session with Millrace")
    (ASSETS / "session.svg").write_text(session, encoding="utf-8")
    top = draw(record_top(), "millrace top while make demo runs", animated=False)
    (ASSETS / "top.svg").write_text(top, encoding="utf-8")
    print("recorded docs/assets/session.svg and docs/assets/top.svg")


if __name__ == "__main__":
    main()
