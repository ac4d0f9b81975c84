"""A server says its epoch, stops for a higher one, and tells readers which rows a promotion has lost."""

import errno
import json
from typing import Any

import pytest

from millrace.journal.steps import Start, described, encode_start
from millrace.protocol.messages import CAPABILITIES, PROTOCOL, Ack, Error, Hello, Result, Subscribed, Welcome
from millrace.run.daemon import Daemon
from millrace.standby.epoch import Epoch, Epochs
from millrace.standby.superseded import SUPERSEDED, Superseded
from tests.server.harness import SCHEMA_SQL, lines, peer, played, running, settings, settle

ROWS = [[1, 1.5, "a"], [2, 2.5, "b"]]


async def greet(one, epoch=None):
    one.say(Hello(PROTOCOL, "test", None, tuple(CAPABILITIES), epoch))
    return await one.hear()


def proof(daemon, number):
    return Epoch(number).proof(daemon.durability._journal.server_id)


class Promoted(Daemon):
    """As a standby that takes over: it has replayed what it has, and records now."""

    def __init__(self, *args):
        super().__init__(*args)
        durability: Any = self.durability
        record = durability._record

        def recorded(journal):
            durability.raise_epoch()
            record(journal)

        durability._record = recorded


async def started(folder, kind=Daemon, **sections):
    daemon = kind(settings(server={"data_dir": folder}, **sections))
    await daemon.start()
    return daemon


async def ended(daemon):
    daemon.stop()
    await daemon.wait_ended()


@played
async def test_a_server_with_a_data_directory_says_its_epoch(tmp_path):
    async with running(server={"data_dir": tmp_path}) as daemon:
        async with peer(daemon, greet=False) as one:
            assert (await greet(one)).epoch == proof(daemon, 1)
        async with peer(daemon) as earlier, lines(daemon) as someone:
            assert earlier.heard[0].epoch is None, "a client of an earlier version"
            someone.say('{"epoch": null}')
            assert await someone.hear() == {"epoch": proof(daemon, 1)}
        assert daemon.describe().epoch == 1


@played
async def test_a_server_without_one_has_none():
    async with running() as daemon, peer(daemon, greet=False) as one, lines(daemon) as someone:
        assert (await greet(one, "7-0123456789abcdef")).epoch is None
        someone.say('{"epoch": null}')
        assert await someone.hear() == {"epoch": None}
        assert daemon.describe().epoch is None


@played
async def test_each_promotion_raises_the_epoch_and_restarts_keep_it(tmp_path):
    await ended(await started(tmp_path))
    for number in (2, 3):
        promoted = await started(tmp_path, Promoted)
        assert promoted.epoch == number
        promoted.durability.make_last = settle  # without a checkpoint, as if it was killed
        await ended(promoted)
        again = await started(tmp_path)
        assert again.epoch == number, "from the journal"
        await ended(again)
        again = await started(tmp_path)
        assert again.epoch == number, "from the checkpoint"
        await ended(again)


@pytest.mark.parametrize("dialect", ["frames", "lines"])
@played
async def test_a_server_that_is_shown_a_higher_epoch_stops_for_good(tmp_path, dialect):
    daemon = await started(tmp_path)
    await daemon.catalog.execute(SCHEMA_SQL)
    higher = proof(daemon, 2)
    async with peer(daemon) as feeder, peer(daemon, greet=False) as messenger, lines(daemon) as someone:
        await feeder.open()
        if dialect == "frames":
            assert await greet(messenger, higher) is None, "no WELCOME"
        else:
            someone.say(json.dumps({"epoch": higher}))
            assert await someone.hear() is None
        feeder.data(0, ROWS)
        assert await feeder.hear() is None, "no acknowledgement"
    with pytest.raises(Superseded, match="epoch 2 has taken over from this server, which has epoch 1"):
        await daemon.wait_ended()
    assert json.loads((tmp_path / SUPERSEDED).read_text()) == {"epoch": 2}
    again = Daemon(settings(server={"data_dir": tmp_path}))
    with pytest.raises(Superseded, match=r"superseded by epoch 2 .*--follow"):
        await again.start()


@played
async def test_a_full_disk_does_not_keep_a_replaced_server_alive(tmp_path, monkeypatch):
    daemon = await started(tmp_path)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(daemon.durability, "superseded", full)
    assert daemon.shown_epoch(proof(daemon, 2))
    with pytest.raises(Superseded):
        await daemon.wait_ended()


@pytest.mark.parametrize("shown", [1, "forged", "another server's"])
@played
async def test_other_epochs_change_nothing(tmp_path, shown):
    async with running(server={"data_dir": tmp_path}) as daemon, peer(daemon, greet=False) as one:
        text = {"forged": "9-0123456789abcdef", "another server's": Epoch(9).proof(b"x" * 16)}.get(shown)
        assert isinstance(await greet(one, text or proof(daemon, shown)), Welcome)
        assert not (tmp_path / SUPERSEDED).exists()


@played
async def test_the_token_is_needed_to_stop_a_server(tmp_path):
    (tmp_path / "token").write_text("secret")
    folder = tmp_path / "data"
    folder.mkdir()
    guarded = {"data_dir": folder, "token_file": tmp_path / "token"}
    async with running(server=guarded) as daemon, peer(daemon, greet=False) as one, lines(daemon) as someone:
        one.say_body(Hello(PROTOCOL, "test", None, ("epoch",), proof(daemon, 2)))
        someone.say(json.dumps({"epoch": proof(daemon, 2)}))
        assert (await someone.hear())["error"]["code"] == "unauthorised"
        assert not daemon.stopping


@played
async def test_a_greeting_with_nonsense_is_refused(tmp_path):
    async with running(server={"data_dir": tmp_path}) as daemon:
        for capabilities, text in ((("epoch",), "soon"), ((), "2-0123456789abcdef"), (None, "2-0123456789abcdef")):
            async with peer(daemon, greet=False) as one:
                one.say_body(Hello(PROTOCOL, "test", None, capabilities, text))
                one.session.say(Hello(PROTOCOL, "test"))
                refused = await one.hear()
                assert isinstance(refused, Error)
                assert refused.code == ("bad_value" if text == "soon" else "bad_message")
        async with lines(daemon) as someone:
            someone.say('{"epoch": "soon"}')
            assert (await someone.hear())["error"]["code"] == "bad_value"


@played
async def test_a_reader_learns_which_rows_a_promotion_has_lost(tmp_path):
    daemon = await started(tmp_path)
    await daemon.catalog.execute(SCHEMA_SQL)
    async with peer(daemon) as feeder:
        await feeder.open()
        feeder.data(0, ROWS)
        await feeder.hear(Ack)
    await ended(daemon)
    daemon = await started(tmp_path, Promoted)  # its primary had emitted more than these two rows
    async with peer(daemon) as feeder:
        await feeder.open()
        feeder.data(2, [*ROWS, *ROWS])
        await feeder.hear(Ack)
    for seen, first, lost in ((1, 5, True), (1, 3, True), (1, 2, False), (2, 5, False), (None, 5, False)):
        async with peer(daemon, greet=False) as reader:
            await greet(reader)
            answer = await reader.subscribe(from_sequence=first, epoch=seen)
            if lost:
                assert (answer.code, answer.sequence) == ("lost", 2)
                rows = "row 2" if first == 3 else f"rows 2 to {first - 1}"
                text = f"{rows} of query q, read in epoch 1, were lost when epoch 2 took over: drop what you made of"
                assert answer.text.startswith(text)
            else:
                assert isinstance(answer, Subscribed)
        async with lines(daemon) as someone:
            someone.say(json.dumps({"subscribe": "q", "from": first, **({} if seen is None else {"epoch": seen})}))
            heard = await someone.hear()
            assert heard["error"]["code"] == "lost" if lost else heard["seq"] == first
    async with peer(daemon, greet=False) as reader:
        await greet(reader)
        await reader.subscribe(from_sequence=2, epoch=1)
        assert (await reader.hear(Result)).sequence == 2
    await ended(daemon)


def test_the_first_row_of_several_promotions_counts():
    epochs = Epochs().raised({"h": 10}).raised({"h": 30, "i": 5})
    assert [epochs.lost_from(seen, "h") for seen in (1, 2, 3)] == [10, 30, None]
    assert [epochs.lost_from(seen, "i") for seen in (1, 2, 3)] == [5, 5, None]
    assert Epochs.from_data(epochs.to_data()) == epochs
    assert epochs.without({"i"}).lost_from(1, "h") is None
    assert Epochs().to_data() is None


def test_a_start_of_the_first_epoch_is_recorded_as_before():
    assert described(encode_start(Start("1.0", {}))) == "start of Millrace 1.0"
    later = Start("1.0", {}, Epochs().raised({}).to_data())
    assert described(encode_start(later)) == "start of Millrace 1.0, epoch 2"
    assert len(encode_start(Start("1.0", {}))) < len(encode_start(later))


@played
async def test_a_producer_learns_which_tuples_a_promotion_has_lost(tmp_path):
    daemon = await started(tmp_path)
    await daemon.catalog.execute(SCHEMA_SQL)
    async with peer(daemon) as feeder:
        await feeder.open()
        feeder.data(0, ROWS)
        await feeder.hear(Ack)
    await ended(daemon)
    daemon = await started(tmp_path, Promoted)  # its primary had acknowledged more than these two tuples
    for seen, sequence, lost in ((1, 5, True), (1, 2, False), (2, 5, False), (None, 5, False)):
        async with peer(daemon, greet=False) as feeder:
            await greet(feeder)
            answer = await feeder.open(sequence=sequence, epoch=seen)
            if lost:
                assert (answer.code, answer.sequence) == ("lost", 2)
                text = "tuples 2 to 4 of producer p, acknowledged in epoch 1, were lost when epoch 2 took over: open"
                assert answer.text.startswith(text)
            else:
                assert answer.next_sequence == sequence
        async with lines(daemon) as someone:
            opening = {"stream": "s", "producer": f"n{seen}", "open": True, "seq": sequence}
            someone.say(json.dumps({**opening, **({} if seen is None else {"epoch": seen})}))
            heard = await someone.hear()
            assert heard["error"]["code"] == "lost" if seen == 1 else heard["ack"]["next"] == sequence
    await ended(daemon)
