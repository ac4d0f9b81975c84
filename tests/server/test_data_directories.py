"""Data directories that a server cannot continue from: one clear line, and nothing on the disk has changed."""

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from millrace.journal.checkpoints import _MAGIC, Checkpoints, _write
from millrace.journal.layout import HEADER_BYTES, VERSION, segment_name
from millrace.journal.steps import FORM, pack
from millrace.protocol import MillraceError
from millrace.run.clock import Clock, wall_clock_us
from tests.cli.conftest import Server, millrace
from tests.server.directories import contents, feed, killed, restarted, rows, state
from tests.server.harness import running

SEGMENT = 4 * 2**20
YEAR_US = 365 * 86_400_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory with a checkpoint, records after it, and rows; and how its server was."""
    folder = tmp_path_factory.mktemp("made")
    return folder / "image", killed(folder / "one", folder / "image", more=checkpoint)


async def checkpoint(daemon):
    await daemon.durability.make()
    await feed(daemon, 20, 5)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    killed(folder / "one", folder / "image", count=1)
    return folder / "image"


@pytest.fixture
def data(made, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(made[0], folder)
    (folder / "addresses.json").unlink()
    return folder


def newest(folder, kind):
    return Checkpoints(folder).files(Checkpoints(folder).complete()[-1])[kind == "control"]


def segment(folder):
    return folder / "journal" / segment_name(1)


def flip(path, offset, value=0xFF):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ value]))


def remove_control_files(folder, _):
    for path in (folder / "checkpoints").glob("*.control"):
        path.unlink()


def replace_checkpoints(folder, other):
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(other / "checkpoints", folder / "checkpoints")


def damage_checkpoints(folder, _):
    for path in (folder / "checkpoints").glob("*.state"):
        flip(path, path.stat().st_size // 2)


def make_newer_checkpoint(folder, _):
    path = newest(folder, "control")
    path.write_bytes(_MAGIC[:-1] + b"3" + path.read_bytes()[len(_MAGIC) :])


def make_newer_records(folder, _):
    found = Checkpoints(folder)
    lsn = found.complete()[-1]
    _write(newest(folder, "control"), [pack({**found.read(lsn).control, "form": FORM + 1})])


def make_control_of_unknown_things(folder, _):
    _write(newest(folder, "control"), [b"\xc7\x01\x7f\x00" * 3])


def make_unknown_state(folder, _):
    for lsn in Checkpoints(folder).complete():
        Checkpoints(folder).write_state(lsn, lambda _: pack({"format": 10_000}))


def make_newer_segment(folder, _):
    data = bytearray(segment(folder).read_bytes())
    data[8:12] = (VERSION + 1).to_bytes(4, "little")
    segment(folder).write_bytes(data)


def cut_segment(folder, _):
    os.truncate(segment(folder), SEGMENT // 2)


def remove_first_segment(folder, _):
    segment(folder).rename(folder / "journal" / segment_name(99))


def remove_segments(folder, _):
    segment(folder).unlink()


def lose_synced_records(folder, _):
    with segment(folder).open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(bytes(SEGMENT - HEADER_BYTES))


def lose_a_record(folder, _):
    flip(segment(folder), HEADER_BYTES + 40)


class Bad(NamedTuple):
    spoil: Callable[[Path, Path], None]
    text: str


BAD = {
    "checkpoints of another server": Bad(
        replace_checkpoints,
        "{data}/checkpoints belongs to another server than {data}/journal: restore both from the same backup",
    ),
    "no complete checkpoint": Bad(
        remove_control_files,
        "{data}/journal has records, but {data}/checkpoints has no checkpoint to start them from: restore the data "
        "directory from a backup",
    ),
    "checkpoints without a journal": Bad(
        remove_segments,
        "{data}/checkpoints has a checkpoint, but {data}/journal has no segments: restore the data directory from a "
        "backup",
    ),
    "damaged checkpoints": Bad(
        damage_checkpoints,
        r"{data}/checkpoints/\d+.state is damaged: its checksum does not match its \d+ bytes; no other checkpoint can "
        "be read: restore the data directory from a backup",
    ),
    "a checkpoint of a newer version": Bad(
        make_newer_checkpoint,
        r"{data}/checkpoints/\d+.control was written by a newer Millrace \(checkpoint form 3, this one reads 2\): "
        "start that version, or use another data directory",
    ),
    "records of a newer version": Bad(
        make_newer_records,
        r"{data}/checkpoints/\d+.control was written by a newer Millrace \(form 2, this one reads 1\): start that "
        "version, or use another data directory",
    ),
    "a checkpoint of unknown things": Bad(
        make_control_of_unknown_things, r"{data}/checkpoints/\d+.control was written by a newer Millrace \(.*"
    ),
    "a state that cannot be restored": Bad(
        make_unknown_state,
        r"the checkpoint after step \d+ cannot be restored: .*; Millrace .* wrote it: start that version, or restore "
        "the data directory from a backup",
    ),
    "a journal of a newer version": Bad(
        make_newer_segment,
        r"{data}/journal/0+1.segment was written by a newer Millrace \(journal format 2, this one reads 1\): start "
        "that version, or another data directory",
    ),
    "half a segment": Bad(
        cut_segment,
        r"{data}/journal/0+1.segment has 2097152 bytes, not 4194304, so it is an incomplete copy: copy the whole "
        "file again",
    ),
    "a segment with another name": Bad(
        remove_first_segment,
        r"{data}/journal/0+99.segment has records from LSN 1 on, so it had the name 0+1.segment: rename it back",
    ),
    "lost records": Bad(
        lose_synced_records,
        r"{data}/journal/0+1.segment: the journal ends at offset \d+ \(LSN 0\), but LSN \d+ was synced: restore the "
        "file from a backup",
    ),
    "a damaged record": Bad(lose_a_record, r"{data}/journal/0+1.segment: .*"),
}


def refusal(folder):
    """How a start in this directory is refused."""

    async def play():
        async with running(server={"data_dir": str(folder)}):
            pass

    with pytest.raises(MillraceError) as caught:
        asyncio.run(play())
    return caught.value.text


@pytest.mark.parametrize("case", BAD)
def test_a_directory_that_cannot_be_used_is_refused_and_stays_as_it_is(data, other, case):
    bad = BAD[case]
    bad.spoil(data, other)
    before = contents(data)
    text = refusal(data)
    assert "\n" not in text
    assert re.fullmatch(bad.text.replace("{data}", re.escape(str(data))), text), text
    assert contents(data) == before


@pytest.mark.parametrize("case", ["no complete checkpoint", "a journal of a newer version", "half a segment"])
def test_the_command_prints_one_line(data, other, case):
    BAD[case].spoil(data, other)
    before = contents(data)
    done = millrace("serve", "--data-dir", str(data), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
                    MILLRACE_LOG__LEVEL="error")  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("millrace: ")
    assert len(done.stderr.splitlines()) == 1
    assert contents(data) == before


def test_a_directory_in_use_is_refused(data):
    with Server(data) as server:
        before = (data / "addresses.json").read_bytes()
        text = refusal(data)
        assert "is another server using the folder?" in text
        assert (data / "addresses.json").read_bytes() == before
        assert server.end()[0] == 0


def test_the_older_checkpoint_replaces_a_damaged_one(data, made):
    flip(newest(data, "state"), 500)
    assert len(Checkpoints(data).complete()) == 2
    assert restarted(data) == made[1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize("closed", ["journal", "checkpoints", "."])
def test_files_of_another_user_are_refused(data, closed):
    before = contents(data)
    (data / closed).chmod(0)
    try:
        text = refusal(data)
    finally:
        (data / closed).chmod(0o700)
    assert "ermission" in text
    assert contents(data) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize("closed", ["journal", "checkpoints/{control}", "journal/{segment}"])
def test_another_user_is_refused(data, closed):
    """The directory was restored by root, and the server's user may not read or write parts of it."""
    name = closed.format(control=newest(data, "control").name, segment=segment(data).name)
    for path in [data, *data.rglob("*")]:
        os.chown(path, 65534, 65534)
    os.chown(data / name, 0, 0)
    (data / name).chmod(0o700 if (data / name).is_dir() else 0o600)
    for parent in data.parents:
        if str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    before = contents(data)
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            text = refusal(data)
            status = 0 if "ermission denied" in text and "\n" not in text else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert contents(data) == before


def set_back(by_us):
    """The clock of a server whose system's clock was set back."""
    return Clock(wall=lambda: wall_clock_us() - by_us)


def test_a_clock_that_went_back_between_runs_disturbs_nothing(data, made):
    before = made[1]

    async def play():
        async with running(server={"data_dir": str(data)}) as daemon:
            at = daemon.engine.clock.now_us
        async with running(clock=set_back(YEAR_US), server={"data_dir": str(data)}) as daemon:
            assert state(daemon) == before
            assert daemon.engine.clock.now_us >= at, "the engine's clock never goes back"
            assert "\nmillrace_journal_checkpoint_age_seconds 0.0\n" in (await daemon.metrics.scrape(None)).decode()
            await feed(daemon, 25, 5)
            await daemon.durability.make()
            after = state(daemon)
        async with running(clock=set_back(2 * YEAR_US), server={"data_dir": str(data)}) as daemon:
            assert state(daemon) == after
            assert [k for (k,) in await rows(daemon, "q", 15)] == list(range(0, 30, 2))

    asyncio.run(play())


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"sync": "sometimes"}, "journal.sync"),
        ({"sync": 10}, "journal.sync"),
        ({"checkpoint_bytes": 0}, "journal.checkpoint_bytes"),
        ({"checkpoint_bytes": "much"}, "journal.checkpoint_bytes"),
        ({"checkpoint_seconds": -1}, "journal.checkpoint_seconds"),
        ({"keep": "1 hour", "size": 3}, "journal.size"),
    ],
)
def test_nonsense_in_the_section_is_named(tmp_path, section, text):
    path = tmp_path / "millrace.toml"
    data = tmp_path / "data"
    lines = "".join(f"{name} = {value!r}\n" for name, value in section.items())
    path.write_text(f"[server]\ndata_dir = '{data}'\n[journal]\n{lines}")
    done = millrace("serve", "--config", str(path))
    assert done.returncode == 78
    assert all(line.startswith("millrace: ") for line in done.stderr.splitlines())
    assert text in done.stderr
    assert not data.exists()


def test_trim_leaves_what_a_start_needs(data, made):
    older, newer = Checkpoints(data).complete()
    before = contents(data)
    for lsn in (older + 2, newer + 1, 10**9):
        done = millrace("journal", "trim", "--before", str(lsn), "--data-dir", str(data))
        assert done.returncode == 1
        assert done.stderr == (
            f"millrace: a start may need the records after {older}, the older of the newest two checkpoints: use "
            f"--before {older + 1} at the most\n"
        )
    assert contents(data) == before
    assert millrace("journal", "trim", "--before", str(older + 1), "--data-dir", str(data)).returncode == 0
    assert restarted(data) == made[1]
