"""`millrace journal`: what it prints, what it refuses, and that reading changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.cli.journal import print_records
from millrace.journal.disk import RealDisk
from millrace.journal.layout import segment_name
from millrace.journal.reader import JournalReader
from millrace.journal.segments import Journal
from tests.cli.conftest import millrace

TIME = "2026-11-18T09:41:00Z"
TIME_US = 1_794_994_860_000_000
# What `show` says about records that no server has written.
UNKNOWN = "not a step of this version"
PAYLOADS = [bytes(30 * number) for number in range(10)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    journal = opened(tmp_path)
    for payload in PAYLOADS:
        journal.append(payload)
        journal.write()
        journal.sync()
    journal.close()
    return tmp_path


def opened(data: Path) -> Journal:
    return Journal.open(RealDisk(data / "journal"), segment_bytes=700, now_us=lambda: TIME_US)


@pytest.fixture
def unchanged(data: Path) -> Iterator[None]:
    before = contents(data)
    yield
    assert contents(data) == before


def contents(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data / "journal").iterdir()}


def run(data: Path, *arguments: str) -> str:
    done = millrace("journal", *arguments, "--data-dir", str(data))
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def refused(data: Path, *arguments: str) -> str:
    done = millrace("journal", *arguments, "--data-dir", str(data))
    assert (done.returncode, done.stdout) == (1, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("millrace: ")
    return line


@pytest.mark.usefixtures("unchanged")
def test_check_counts_the_records(data: Path) -> None:
    segments = len(contents(data)) - 2  # the lock, and the segment made ahead
    facts: dict[str, object] = {"segments": segments, "bytes": 700 * segments, "records": 10}
    facts |= {"first_lsn": 1, "next_lsn": 11, "torn": None, "past_from": None}  # no server has left a checkpoint
    assert json.loads(run(data, "check", "--json")) == facts
    assert "records    10\n" in run(data, "check")


@pytest.mark.usefixtures("unchanged")
def test_show_prints_a_line_per_record(data: Path) -> None:
    lines = run(data, "show").splitlines()
    assert [line.split() for line in lines] == [
        [str(lsn), str(len(payload)), TIME, *UNKNOWN.split()] for lsn, payload in enumerate(PAYLOADS, 1)
    ]
    assert run(data, "show", "--from", "4", "--limit", "2").splitlines() == lines[3:5]
    assert [json.loads(line) for line in run(data, "show", "--from", "10", "--json").splitlines()] == [
        {"lsn": 10, "bytes": 270, "time": TIME, "text": UNKNOWN}
    ]
    done = millrace("journal", "show", "--from", "99", "--data-dir", str(data))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no records: the journal ends before LSN 11\n")


def test_show_describes_records(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = JournalReader(RealDisk(data / "journal"))
    for as_json in (False, True):
        assert print_records(reader, 3, 1, as_json, lambda payload: f"{len(payload)} zeros") == 1
    plain, line = capsys.readouterr().out.splitlines()
    assert plain.split(maxsplit=3) == ["3", "60", TIME, "60 zeros"]
    assert json.loads(line)["text"] == "60 zeros"


def test_trim_removes_whole_segments(data: Path) -> None:
    done = millrace("journal", "trim", "--before", "8", "--data-dir", str(data))
    first = json.loads(run(data, "check", "--json"))["first_lsn"]
    assert 1 < first <= 8
    assert done.stderr.endswith(f"the journal starts at LSN {first}\n")
    assert f"LSN {first} and later ones: LSN 1 has been removed" in refused(data, "show", "--from", "1")
    done = millrace("journal", "trim", "--before", "8", "--data-dir", str(data))
    assert (done.returncode, done.stderr.startswith(f"removed nothing: the journal starts at LSN {first}")) == (0, True)
    answer = json.loads(run(data, "trim", "--before", "9999", "--json"))
    assert answer["segments"] >= 1
    assert answer["next_lsn"] == 11
    assert len(run(data, "show").splitlines()) == 11 - answer["first_lsn"]


def test_reading_works_while_a_server_writes(data: Path) -> None:
    journal = opened(data)
    journal.append(b"live")
    journal.write()
    assert len(run(data, "show").splitlines()) == 11
    assert json.loads(run(data, "check", "--json"))["records"] == 11
    assert "is in use by another server: stop that one first" in refused(data, "trim", "--before", "3")
    journal.close()


@pytest.mark.usefixtures("unchanged")
def test_damage_is_named(data: Path) -> None:
    path = data / "journal" / segment_name(1)
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff")
    for command in ("check", "show"):
        done = millrace("journal", command, "--data-dir", str(data))
        assert done.returncode == 1
        assert f"{path}: the record at offset " in done.stderr
        assert "is damaged, but it was synced" in done.stderr
    path.write_bytes(whole)


@pytest.mark.usefixtures("unchanged")
def test_a_newer_version_is_named(data: Path) -> None:
    path = data / "journal" / segment_name(1)
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + b"\x07" + whole[9:])
    for command in (["check"], ["show"], ["trim", "--before", "3"]):
        assert "was written by a newer Millrace (journal format 7, this one reads 1)" in refused(data, *command)
    path.write_bytes(whole)


def test_a_torn_write_is_reported_and_cut_off_by_trim(data: Path) -> None:
    last = max(name for name in contents(data) if name.endswith(".segment"))
    path = data / "journal" / last
    content = path.read_bytes()
    end = len(content.rstrip(b"\0")) + 300
    path.write_bytes((content[:end] + b"torn").ljust(len(content), b"\0")[: len(content)])
    done = millrace("journal", "check", "--json", "--data-dir", str(data))
    torn = json.loads(done.stdout)["torn"]
    assert torn["file"] == str(path)
    assert f"an unfinished write of {torn['bytes']} bytes at offset {torn['offset']} of {path}" in done.stderr
    done = millrace("journal", "trim", "--before", "1", "--data-dir", str(data))
    assert done.stderr.startswith("cut off an unfinished write of")
    assert json.loads(run(data, "check", "--json"))["torn"] is None


@pytest.mark.parametrize("command", [["check"], ["show"], ["trim", "--before", "3"]])
def test_a_folder_without_a_journal(tmp_path: Path, command: list[str]) -> None:
    assert f"{tmp_path}/journal has no journal" in refused(tmp_path, *command)
    assert os.listdir(tmp_path) == []


def test_no_data_directory() -> None:
    done = millrace("journal", "check")
    assert done.returncode == 1
    assert done.stderr.startswith("millrace: this needs a data directory: name it with --data-dir")


def test_the_configuration_names_the_data_directory(data: Path) -> None:
    (data / "millrace.toml").write_text(f"[server]\ndata_dir = '{data}'\n")
    done = millrace("journal", "check", "--json", "--config", str(data / "millrace.toml"))
    assert json.loads(done.stdout)["records"] == 10


def test_a_journal_that_may_not_be_read(data: Path) -> None:
    """A file in the folder's place: the tests' user may read everything."""
    for path in (data / "journal").iterdir():
        path.unlink()
    (data / "journal").rmdir()
    (data / "journal").write_text("")
    for command in (["check"], ["show"], ["trim", "--before", "3"]):
        assert f"{data}/journal cannot be read (Not a directory): check its permissions" in refused(data, *command)
