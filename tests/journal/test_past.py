"""The past in a data directory: a restored moment is what the server was, and reading changes nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from millrace.engine.events import Deliver
from millrace.journal.past import Past, PastError
from millrace.journal.steps import Start, encode_start
from millrace.protocol import Refuse, format_timestamp
from millrace.values.intervals import parse_moment
from tests.depth import examples
from tests.journal.recording import SECOND, play
from tests.server.directories import contents


@pytest.mark.parametrize("seed", range(examples(12)))
def test_a_moment_is_what_the_server_was(tmp_path: Path, seed: int) -> None:
    recording, moments = play(tmp_path / "data", Random(seed))
    past = Past(recording.folder)
    before = contents(recording.folder)
    for at_us, saved in moments:  # while it is open for writing
        playback = past.at(at_us)
        assert playback.engine.save() == saved
        assert playback.at_us == at_us
        assert playback.checkpoint <= playback.lsn
        playback.close()
    recording.close()
    span = past.span()
    assert (span.from_us, span.to_us) == (SECOND, recording.now_us)
    assert past.at(span.to_us).engine.save() == recording.engine.save()
    assert contents(recording.folder) == before


def test_steps_can_be_taken_one_by_one(tmp_path: Path) -> None:
    recording, _ = play(tmp_path / "data", Random(1))
    recording.close()
    playback = Past(recording.folder).open(SECOND)
    assert playback.checkpoint == 0
    rows = 0
    for step, effects in playback.steps(recording.now_us):
        assert step.now_us == playback.at_us
        rows += sum(len(order.batch) for order in effects.orders if isinstance(order, Deliver))
    assert rows == sum(map(len, recording.rows.values()))
    assert not playback.restarts
    assert list(playback.steps(2 * recording.now_us)) == []


def test_a_restart_after_a_moment_is_known(tmp_path: Path) -> None:
    recording, _ = play(tmp_path / "data", Random(2), steps=3)
    at_us = recording.now_us
    recording._append(encode_start(Start("test", {"credit": 7})))
    recording.now_us += SECOND
    recording.step()
    recording.close()
    playback = Past(recording.folder).at(at_us)
    assert playback.restarts
    assert playback.engine.credit != 7
    assert len(list(playback.steps(recording.now_us))) == 1
    assert playback.engine.credit == 7


def test_the_span_ends_where_records_begin_or_the_clock_is(tmp_path: Path) -> None:
    recording, _ = play(tmp_path / "data", Random(3), steps=80)
    recording.now_us += SECOND
    lsn, first_us = recording.checkpoint(), recording.now_us
    recording.now_us += SECOND
    recording.step()
    recording.journal.trim(lsn + 1)
    recording.close()
    past = Past(recording.folder)
    kept = [moment for moment in past.moments() if moment.lsn + 1 >= recording.journal.first_lsn]
    assert past.moments() == kept
    assert past.span(alive_us=first_us + 9 * SECOND).to_us == first_us + 9 * SECOND
    span = past.span()
    for at_us in (span.from_us - 1, span.to_us + 1):
        with pytest.raises(PastError) as raised:
            past.refuse_outside(at_us, span)
        assert raised.value.code == "not_retained"
        assert f"{format_timestamp(at_us)} is not in the recorded past" in raised.value.text
        assert span.text in raised.value.text
    with pytest.raises(PastError, match="is not in the recorded past"):
        past.at(span.from_us - 1)


def test_a_damaged_checkpoint_has_an_older_one(tmp_path: Path) -> None:
    recording, moments = play(tmp_path / "data", Random(4), steps=80)
    recording.close()
    at_us, saved = moments[-1]
    newest = max(moment.lsn for moment in Past(recording.folder).moments() if moment.at_us <= at_us)
    path = recording.checkpoints.files(newest)[0]
    path.write_bytes(path.read_bytes()[:-1])
    playback = Past(recording.folder).at(at_us)
    assert playback.checkpoint < newest
    assert playback.engine.save() == saved


def test_nonsense_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PastError, match="has no past: name the data directory of a server"):
        Past(tmp_path).span()
    recording, _ = play(tmp_path / "data", Random(5), steps=3)
    recording.journal.append(b"\x93\x00nonsense")
    recording.journal.write()
    recording.now_us += SECOND
    recording.close()
    with pytest.raises(PastError, match=r"record .* cannot be replayed: .*; `millrace journal show --from"):
        Past(recording.folder).at(recording.now_us)


# -- how people name a moment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "at_us"),
    [
        ("1970-01-01T00:01:00Z", 60 * SECOND),
        ("1970-01-01", 0),
        ("60000000", 60 * SECOND),
        ("-60000000", -60 * SECOND),
        ("-10 seconds", 90 * SECOND),
        (" -1 min 30 s ", 10 * SECOND),
        ("-00:00:01.5", 98_500_000),
    ],
)
def test_a_moment_is_a_time_or_a_time_ago(text: str, at_us: int) -> None:
    assert parse_moment(text, 100 * SECOND) == at_us


NO_MOMENTS = ("", "soon", "10 minutes", "-", "-1 month", "1.5", "-99999999999999999999", "-1 x", "--1 s")


@pytest.mark.parametrize("text", NO_MOMENTS)
def test_no_moment(text: str) -> None:
    with pytest.raises(Refuse, match=r"expected a time .*got"):
        parse_moment(text, 0)
