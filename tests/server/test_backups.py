"""Backups: of a server that works, restored exactly; and every way in which one is not a backup."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from millrace.journal.checkpoints import Checkpoints
from millrace.store import backups
from millrace.store.backups import DATA, MANIFEST, BackupError, make_backup, restore_backup
from tests.cli.conftest import Server, millrace
from tests.patience import HANG_SECONDS
from tests.server.directories import SQL, contents, feed, killed, restarted, rows, state
from tests.server.harness import running


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory that a killed server left, with history and a sink; a backup of it; and how the server was."""
    folder = tmp_path_factory.mktemp("made")
    sql = (
        SQL.replace("(k BIGINT);", "(k BIGINT) WITH (history = 'true');")
        + "CREATE SINK f FROM q WITH (type = 'file', path = 'out.jsonl');"
    )

    async def more(daemon):
        await daemon.durability.make()
        await feed(daemon, 20, 5)

    before = killed(folder / "one", folder / "image", more=more, sql=sql)
    make_backup(folder / "image", folder / "backup", 1_000_000)
    return folder / "image", folder / "backup", before


def test_a_restored_directory_continues(made, tmp_path):
    image, backup, before = made
    done = restore_backup(backup, tmp_path / "data")
    assert done.checkpoint == Checkpoints(image).complete()[-1]
    names = contents(tmp_path / "data").keys()
    assert {name.partition("/")[0] for name in names} >= {"journal", "checkpoints", "results", "sinks"}
    assert not {"addresses.json", "running.json", "catalog.sqlite", "backup.json"} & names

    async def look(daemon):
        assert [k for (k,) in await rows(daemon, "q", 13)] == list(range(0, 25, 2))
        assert (tmp_path / "data" / "sinks" / "out.jsonl").exists()

    assert restarted(tmp_path / "data", look) == before
    assert restarted(tmp_path / "data") == before


def test_a_backup_changes_nothing_and_neither_does_restoring_it(made, tmp_path):
    image, backup, _ = made
    before = contents(image)
    make_backup(image, tmp_path / "again", 1_000_000)
    assert contents(image) == before
    assert contents(tmp_path / "again") == contents(backup)
    restore_backup(backup, tmp_path / "data")
    assert contents(tmp_path / "again") == contents(backup)


def test_a_saved_state_that_is_not_complete_is_left_out(made, tmp_path):
    """The follower has saved the engine, and the server has not completed the checkpoint yet, or never will."""
    image, _, before = made
    data = tmp_path / "data"
    shutil.copytree(image, data)
    checkpoints = Checkpoints(data)
    newest = checkpoints.complete()[-1]
    checkpoints.write_state(newest + 1, lambda _: b"saved by the follower")
    (checkpoints.folder / f"{newest + 2:020}.state.part1").write_bytes(b"being saved")
    made_of_it = make_backup(data, tmp_path / "backup", 1_000_000)
    assert made_of_it.checkpoint == newest
    assert {path.name for path in (tmp_path / "backup" / DATA / "checkpoints").iterdir()} == {
        path.name for path in checkpoints.files(newest)
    }
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert restarted(tmp_path / "restored") == before


def test_backups_of_a_server_that_works_are_moments_of_it(tmp_path):
    """Fed rows are numbers in order, so a backup is right if it has a beginning of them, and what it says fits."""
    data = tmp_path / "data"
    data.mkdir()

    async def play():
        async with running(SQL, server={"data_dir": str(data)}) as daemon:
            loop, number = asyncio.get_running_loop(), 0
            for turn in range(4):
                copying = loop.run_in_executor(None, make_backup, data, tmp_path / f"backup{turn}", turn)
                while not copying.done() or number % 20:
                    await feed(daemon, number, 1)
                    number += 1
                    if number % 7 == 0:
                        await daemon.durability.make()
                await copying
            return number

    total = asyncio.run(play())
    counts = []
    for turn in range(4):
        folder = tmp_path / f"data{turn}"
        restore_backup(tmp_path / f"backup{turn}", folder)

        async def look(daemon):
            fed = daemon.engine.streams_by_name["s"].producers.positions().get("p", 0)
            found = state(daemon)["sequences"]
            assert found == {"q": (fed + 1) // 2, "totals": fed}
            assert [k for (k,) in await rows(daemon, "q", found["q"])] == list(range(0, fed, 2)) if fed else True
            counts.append(fed)

        restarted(folder, look)
    assert counts == sorted(counts)
    assert counts[-1] <= total


def test_a_list_of_a_sinks_files_has_no_file_that_was_not_copied(made, tmp_path):
    """A sink completes a file, and lists it, whenever a file is copied."""
    image, target = tmp_path / "image", tmp_path / "copy"
    shutil.copytree(made[0], image)
    folder = image / "sinks" / "files"
    folder.mkdir()
    copy, pieces, count = backups.Copy(target), backups.pieces_of(image, 1), 0
    with contextlib.suppress(StopIteration):
        while True:
            piece = next(pieces)
            if isinstance(piece, backups.Began) and count < 30:
                count += 1
                (folder / f"files-{count:02}.parquet").write_bytes(b"rows")
                with (folder / "_files.manifest.jsonl").open("a") as manifest:
                    manifest.write(json.dumps({"file": f"files-{count:02}.parquet"}) + "\n")
            copy.take(piece)
    found = target / "sinks" / "files"
    listed = [json.loads(line)["file"] for line in (found / "_files.manifest.jsonl").read_text().splitlines()]
    assert 0 < len(listed) < count
    assert {path.name for path in found.glob("*.parquet")} >= set(listed)


# -- what is refused ---------------------------------------------------------------------------------------------------


def damage(backup, name, change):
    path = backup / name
    path.write_bytes(change(path.read_bytes()))


def edit(backup, **more):
    path = backup / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


def segment(backup):
    return next((backup / DATA / "journal").iterdir())


REFUSED = {
    "no manifest": (lambda backup: (backup / MANIFEST).unlink(), "is not a complete backup: it has no backup.json"),
    "an empty manifest": (lambda backup: (backup / MANIFEST).write_text(""), "is not the manifest of a backup"),
    "another file": (lambda backup: (backup / MANIFEST).write_text("[1]"), "is not the manifest of a backup"),
    "a newer version": (lambda backup: edit(backup, form=2), "was written by a newer Millrace (backup form 2"),
    "a path outside": (
        lambda backup: edit(backup, files={"../../evil": {"bytes": 1, "sha256": ""}}),
        "is not a path in a data directory",
    ),
    "an absolute path": (
        lambda backup: edit(backup, files={"/evil": {"bytes": 1, "sha256": ""}}),
        "is not a path in a data directory",
    ),
    "half a segment": (lambda backup: os.truncate(segment(backup), 1_000), "is damaged: it has 1000 bytes"),
    "a flipped bit": (
        lambda backup: damage(
            backup, segment(backup).relative_to(backup), lambda data: data[:90] + bytes([data[90] ^ 1]) + data[91:]
        ),
        "is damaged: it has 4194304 bytes with another checksum",
    ),
    "a missing file": (lambda backup: segment(backup).unlink(), "no such file or directory"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_backup_that_is_not_whole_is_refused_and_leaves_nothing(made, tmp_path, case):
    backup = tmp_path / "backup"
    shutil.copytree(made[1], backup)
    spoil, text = REFUSED[case]
    spoil(backup)
    before = contents(tmp_path)
    with pytest.raises(BackupError) as caught:
        restore_backup(backup, tmp_path / "data")
    assert text in caught.value.text
    assert "\n" not in caught.value.text
    assert contents(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"backup"}


def test_full_folders_are_left_alone(made, tmp_path):
    image, backup, _ = made
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("precious")
    for call in (
        lambda: make_backup(image, full, 1),
        lambda: restore_backup(backup, full),
        lambda: restore_backup(backup, full / "mine"),
    ):
        with pytest.raises(BackupError, match=r"is not empty|is not a directory"):
            call()
    with pytest.raises(BackupError, match="is in the data directory"):
        make_backup(image, image / "sinks" / "backup", 1)
    with pytest.raises(BackupError, match="has no checkpoint"):
        make_backup(full, tmp_path / "other", 1)
    with pytest.raises(BackupError, match="is not a directory"):
        make_backup(tmp_path / "none", tmp_path / "other", 1)
    assert contents(tmp_path) == {"full/mine": b"precious"}


def test_an_empty_directory_is_replaced(made, tmp_path):
    target = tmp_path / "data"
    target.mkdir(mode=0o750)
    target.chmod(0o750)
    restore_backup(made[1], target)
    assert target.stat().st_mode & 0o777 == 0o750
    assert (target / "journal").is_dir()


def test_a_full_disk_is_one_line(made, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", str(tmp_path / "x"))

    monkeypatch.setattr(backups.Copy, "_begin", full)
    with pytest.raises(BackupError, match=r"is not complete: .*no space left on device"):
        make_backup(made[0], tmp_path / "backup", 1)
    with pytest.raises(BackupError, match=r"nothing was restored: .*no space left on device"):
        restore_backup(made[1], tmp_path / "data")
    with pytest.raises(BackupError, match="is not a complete backup"):
        restore_backup(tmp_path / "backup", tmp_path / "data")
    assert not (tmp_path / "data").exists()


# -- the commands ------------------------------------------------------------------------------------------------------


def test_the_commands_with_a_running_server(tmp_path):
    data, backup, again = (tmp_path / name for name in ("data", "backup", "again"))
    data.mkdir()
    with Server(data) as server:
        assert server.millrace("sql", "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s").returncode == 0
        assert server.millrace("feed", "s", stdin='{"k": 1}\n{"k": 2}\n').returncode == 0
        done = millrace("backup", str(backup), "--data-dir", str(data))
        assert (done.returncode, done.stdout) == (0, "")
        assert f"{backup} is a complete backup" in done.stderr
        assert server.json("query", "show", "q")["next_sequence"] == 2
        assert server.end()[0] == 0
    done = millrace("restore", str(backup), "--data-dir", str(again), "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["files"] >= 3
    with Server(again) as server:
        assert server.json("query", "show", "q")["next_sequence"] == 2
        done = millrace("restore", str(backup), "--data-dir", str(again))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"millrace: {again} is not empty: name a new data directory\n"
        assert server.end()[0] == 0


SLOW = """
import os, sys, time
from pathlib import Path
from millrace.store import backups
left, copy = int(sys.argv[3]), backups.Copy._begin
def slowly(*arguments):
    global left
    left -= 1
    if left < 0:
        print("here", flush=True)
        time.sleep(1_000)
    return copy(*arguments)
backups.Copy._begin = slowly
{call}
"""


@pytest.mark.parametrize("files", [0, 1, 3, 5])
@pytest.mark.parametrize("call", ["make_backup", "restore_backup"])
def test_a_kill_leaves_the_server_intact_and_nothing_that_looks_whole(made, tmp_path, call, files):
    image, backup, _ = made
    source, target = (image, tmp_path / "backup") if call == "make_backup" else (backup, tmp_path / "data")
    before = contents(source)
    last = ", 1" if call == "make_backup" else ""
    code = SLOW.format(call=f"backups.{call}(Path(sys.argv[1]), Path(sys.argv[2]){last})")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(source), str(target), str(files)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=HANG_SECONDS)
    assert contents(source) == before
    if call == "make_backup":
        with pytest.raises(BackupError, match="is not a complete backup"):
            restore_backup(target, tmp_path / "data")
    else:
        restore_backup(backup, target)
