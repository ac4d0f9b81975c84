"""Checks the English of pages, messages and code: flagged constructions, long sentences, commit subjects.

    python docs/prose.py             a table: words, flagged constructions per 1,000 words, sentence lengths
    python docs/prose.py FILE ...    every flagged place of these files, as file:line: text
    python docs/prose.py --check     print the limits that are exceeded, and fail

Rule: pages have at most 3 flagged constructions per 1,000 words and no sentence of more than 40 words. Code has a limit
per room that only goes down. Flagged text is a place to reread. Code in pages is not prose and is skipped.
"""

from __future__ import annotations

import argparse
import io
import re
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
CONSTRUCTIONS: Final = {
    "is told, tells (of a program)": r"\b(is|are|was|were|be|been) told\b|\btells?\b",
    "is asked, a wish": r"\b(is|are|was|be) asked\b|\bwish(es)?\b",
    "give, gave, given": r"\b(gives?|gave|given)\b(?! that)",
    "what came": r"\bwhat (came|comes|came in)\b",
    "free 'what ...'": r"\b(and|of|with|for|than|says|is|are|by|to|keeps|that) what \w+",
    "whoever, nobody, somebody": r"\b(whoever|nobody|somebody)\b",
    "begin, begun": r"\b(begins?|began|begun|beginning)\b",
    "goes on, anew, for ever, all the same": r"\b(goes on|go on|went on|anew|for ever|all the same)\b",
    "beside, behind (as logic)": r"\b(beside|behind)\b",
    "is no X": r"\b(is|are|was) no (?!longer|more|such)\w+",
    "of its own, that of": r"\b(of its own|of their own|that of|those of)\b",
    "cannot be had": r"\b(cannot|can|could) be had\b",
    "remember, forget (of a program)": r"\b(remembers?|remembered|forgets?|forgot|forgotten)\b",
    "mistake of": r"\bmistakes? of\b",
}
FLAGGED: Final = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in CONSTRUCTIONS.items()}
PAGE_LIMIT: Final = 3.0
LONGEST_SENTENCE: Final = 40
# Flagged constructions per 1,000 words of comments and string literals. A room that was rewritten gets a lower limit.
# Strings of the product that a person may see: help, messages, errors, log events.
MESSAGES: Final = ("server/*.py", "operators/*.py", "protocol/*.py", "examples/*.py")
MESSAGE_LIMIT: Final = 3.0
ROOM_LIMITS: Final = {
    "bench": 3.0,
    "deploy": 3.0,
    "docs": 3.0,
    "examples": 3.0,
    "operators/millrace/changes": 3.0,
    "operators/millrace/engine": 5.0,
    "operators/millrace/functions": 3.0,
    "operators/millrace/operators": 25.0,
    "operators/millrace/sql": 3.0,
    "protocol/millrace/client": 3.0,
    "protocol/millrace/protocol": 3.0,
    "server/millrace/backfill": 25.0,
    "server/millrace/cli": 3.0,
    "server/millrace/formats": 3.0,
    "server/millrace/history": 3.0,
    "server/millrace/http": 3.0,
    "server/millrace/journal": 3.0,
    "server/millrace/net": 3.0,
    "server/millrace/observe": 3.0,
    "server/millrace/offline": 3.0,
    "server/millrace/run": 3.0,
    "server/millrace/store": 3.0,
    "tests": 3.0,
}
# Words that start a subject in another mood: "added", "fixes", "fixing", "a", "the".
NOT_IMPERATIVE: Final = re.compile(
    r"^(?:(?!\w*(?:eed|need|feed|embed|shed)\b)\w+ed|\w+ing|an?|the|what|who|which)\b", re.IGNORECASE
)
SUBJECT_LENGTH: Final = 60
# Subjects before this commit follow no rule.
SUBJECTS_SINCE: Final = "260fca9"


# From Python 3.12 on, a formatted string is several tokens.
LITERALS: Final = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


class Place(NamedTuple):
    path: Path
    line: int
    problem: str
    text: str


class Report(NamedTuple):
    """What one file, or a group of files, amounts to."""

    words: int
    places: Sequence[Place]
    sentences: Sequence[int]

    @property
    def rate(self) -> float:
        return 1000 * len(self.places) / max(self.words, 1)


# -- reading -----------------------------------------------------------------------------------------------------------


def lines_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Lines of prose: no fenced or indented code, no inline code, no link targets."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "`code`", line))


def lines_of_code(text: str, *, messages: bool = False) -> Iterator[tuple[int, str]]:
    """Lines of comments and string literals; with `messages` only lines of literals that are not docstrings."""
    starts_statement = True
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            literal = token.type in LITERALS
            if (literal and not (messages and starts_statement)) or (token.type == tokenize.COMMENT and not messages):
                for offset, line in enumerate(token.string.splitlines()):
                    yield token.start[0] + offset, line
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                starts_statement = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    except (tokenize.TokenError, SyntaxError):
        return


def sentences_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Sentences with the line that they start on. Headings, tables and list items end sentences."""
    pending: list[str] = []
    start = 0
    for number, line in [*lines_of_page(text), (0, "")]:
        stripped = line.strip()
        boundary = not stripped or stripped.startswith(("#", "|", "<!--")) or re.match(r"([-*]|\d+\.) ", stripped)
        if boundary and pending:
            yield from _split(start, " ".join(pending))
            pending = []
        if not stripped or stripped.startswith(("#", "<!--")):
            continue
        if stripped.startswith("|"):
            for cell in stripped.strip("|").split("|"):
                yield from _split(number, cell.strip())
            continue
        if not pending:
            start = number
        pending.append(stripped)


def _split(line: int, text: str) -> Iterator[tuple[int, str]]:
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        if len(sentence.split()) > 2:
            yield line, sentence


def examine(path: Path, *, messages: bool = False) -> Report:
    text = path.read_text(encoding="utf-8", errors="replace")
    page = path.suffix == ".md"
    words, places = 0, []
    for number, line in lines_of_page(text) if page else lines_of_code(text, messages=messages):
        words += len(line.split())
        for name, pattern in FLAGGED.items():
            places += [Place(path, number, name, line.strip()) for _ in pattern.finditer(line)]
    sentences = list(sentences_of_page(text)) if page else []
    return Report(words, places, [len(sentence.split()) for _, sentence in sentences])


def long_sentences(path: Path) -> Iterator[Place]:
    for line, sentence in sentences_of_page(path.read_text(encoding="utf-8")):
        if (count := len(sentence.split())) > LONGEST_SENTENCE:
            yield Place(path, line, f"a sentence of {count} words", sentence)


def together(reports: Sequence[Report]) -> Report:
    return Report(
        sum(report.words for report in reports),
        [place for report in reports for place in report.places],
        [length for report in reports for length in report.sentences],
    )


# -- checking ----------------------------------------------------------------------------------------------------------


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def rooms() -> Mapping[str, Report]:
    """Every room except this file, which quotes the constructions."""
    return {
        room: together([examine(path) for path in tracked(f"{room}/*.py") if path != Path(__file__).resolve()])
        for room in ROOM_LIMITS
    }


def messages() -> Report:
    return together([examine(path, messages=True) for path in tracked(*MESSAGES)])


def problems() -> Iterator[str]:
    for path in tracked("*.md"):
        report = examine(path)
        name = path.relative_to(ROOT)
        if report.rate > PAGE_LIMIT and len(report.places) > 1:
            yield f"{name}: {report.rate:.1f} flagged constructions per 1,000 words (limit {PAGE_LIMIT:g})"
        for place in long_sentences(path):
            yield f"{name}:{place.line}: {place.problem} (limit {LONGEST_SENTENCE}): {place.text[:70]}..."
    if (rate := messages().rate) > MESSAGE_LIMIT:
        yield f"messages: {rate:.1f} flagged constructions per 1,000 words (limit {MESSAGE_LIMIT:g})"
    for room, report in rooms().items():
        if report.rate > ROOM_LIMITS[room]:
            yield f"{room}/: {report.rate:.1f} flagged constructions per 1,000 words (limit {ROOM_LIMITS[room]:g})"
    yield from subject_problems()


def subject_problems() -> Iterator[str]:
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{SUBJECTS_SINCE}..HEAD"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in log.stdout.splitlines() if log.returncode == 0 else ():
        commit, _, subject = line.partition(" ")
        if len(subject) >= SUBJECT_LENGTH:
            yield f"commit {commit}: a subject of {len(subject)} characters (below {SUBJECT_LENGTH}): {subject}"
        if NOT_IMPERATIVE.match(subject.partition(": ")[2] or subject):
            yield f"commit {commit}: start the subject with a verb in the imperative: {subject}"


# -- printing ----------------------------------------------------------------------------------------------------------


def table() -> Iterator[str]:
    yield f"{'file or room':<42} {'words':>7} {'flagged':>8} {'per 1,000':>10} {'sentence: mean':>15} {'longest':>8}"
    reports = {str(path.relative_to(ROOT)): examine(path) for path in tracked("*.md")}
    groups = {"all pages": together(list(reports.values())), "all messages": messages(), **rooms()}
    for name, report in {**reports, **groups}.items():
        mean = f"{statistics.mean(report.sentences):.1f}" if report.sentences else ""
        longest = str(max(report.sentences)) if report.sentences else ""
        yield f"{name:<42} {report.words:>7} {len(report.places):>8} {report.rate:>10.1f} {mean:>15} {longest:>8}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the English of pages, messages and code.")
    parser.add_argument("files", nargs="*", type=Path, help="list every flagged place of these files")
    parser.add_argument("--check", action="store_true", help="print what is over its limit, and fail")
    options = parser.parse_args()
    if options.files:
        for path in options.files:
            places = [*examine(path).places, *(long_sentences(path) if path.suffix == ".md" else ())]
            for place in sorted(places, key=lambda place: place.line):
                print(f"{path}:{place.line}: [{place.problem}] {place.text[:110]}")
        return
    if options.check:
        lines = list(problems())
        print("\n".join(lines) if lines else "prose: within its limits")
        sys.exit(bool(lines))
    print("\n".join(table()))


if __name__ == "__main__":
    main()
