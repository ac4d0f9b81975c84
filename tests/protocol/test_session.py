"""The rule tables: total, the same for both sides, and a refused message changes nothing."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol import CODES, FrameReader, PeerError, Refuse, Schema, Session, Side, decode
from millrace.protocol import messages as m
from millrace.protocol.messages import Kind, Limits, kind_of
from millrace.protocol.session import ABOUT_CHANNEL, CHANNEL, CONNECTION, Phase, Stage, Verdict
from tests.protocol.vectors import EXAMPLES

SCHEMA = Schema.of(a="bigint")
ABOUT_CONNECTION = {Kind.HELLO, Kind.WELCOME, Kind.PING, Kind.PONG, Kind.BYE, Kind.ERROR}


def test_the_tables_are_total():
    assert set(CONNECTION) == {(side, topic) for side in Side for topic in [*ABOUT_CONNECTION, ABOUT_CHANNEL]}
    assert all(set(row) == set(Stage) for row in CONNECTION.values())
    kinds = (set(Kind) - ABOUT_CONNECTION) | {Kind.ERROR}
    assert set(CHANNEL) == {(side, kind) for side in Side for kind in kinds}
    assert all(set(row) == set(Phase) for row in CHANNEL.values())
    assert {kind_of(example) for example in EXAMPLES} == kinds | ABOUT_CONNECTION
    refusals = set(Verdict) - {Verdict.DROP}
    assert {verdict.value for verdict in refusals} <= set(CODES)


def test_every_phase_can_be_reached_and_left():
    reached = {rule for row in CHANNEL.values() for rule in row.values() if isinstance(rule, Phase)}
    assert reached == set(Phase)
    for phase in set(Phase) - {Phase.GONE}:
        assert {row[phase] for row in CHANNEL.values()} - {phase} & set(Phase)


class Pair:
    """A session of a client and one of a server that receive each other's messages."""

    def __init__(self, **options):
        self.client, self.server = Session(Side.CLIENT), Session(Side.SERVER, **options)

    def client_says(self, message):
        return self.server.receive(over_the_wire(self.client.say(message)))

    def server_says(self, message):
        return self.client.receive(over_the_wire(self.server.say(message)))


def over_the_wire(data):
    reader = FrameReader()
    reader.feed(data)
    [body] = reader.bodies()
    return decode(body)


def greeted(**options):
    pair = Pair(**options)
    pair.client_says(m.Hello(1, "c", options.get("token")))
    pair.server_says(m.Welcome(1, "s", Limits(), 0))
    return pair


def feeding(credit=10, next_sequence=0, **options):
    pair = greeted(**options)
    pair.client_says(m.Open(0, "s", None, "p"))
    pair.server_says(m.Opened(0, next_sequence, credit, SCHEMA))
    return pair


def reading(credit=10):
    pair = greeted()
    pair.client_says(m.Subscribe(0, "q", None, credit))
    pair.server_says(m.Subscribed(0, SCHEMA, 0))
    return pair


def code_of(act, *arguments):
    """The code with which a call is refused."""
    with pytest.raises((PeerError, Refuse)) as caught:
        act(*arguments)
    assert caught.value.code in CODES
    return caught.value.code


def rows(count):
    return [(i,) for i in range(count)]


def test_a_feed_from_open_to_closed():
    pair = feeding(credit=3)
    assert pair.client_says(m.Data(0, 0, rows(3)))
    assert code_of(pair.client.say, m.Data(0, 3, rows(1))) == "no_credit"
    assert pair.server_says(m.Ack(0, 3))
    assert pair.server_says(m.Credit(0, 5))
    assert pair.client_says(m.Data(0, 3, rows(1)))
    assert pair.client_says(m.Punctuation(0, 5))
    assert pair.server_says(m.EtsRequest(0, 0, 9))
    assert pair.client_says(m.Ets(0, 0, None))
    assert pair.client_says(m.Close(0))
    assert pair.server_says(m.Ack(0, 4))
    assert pair.server_says(m.Closed(0))
    assert not pair.client.channels
    assert not pair.server.channels


def test_a_subscription_from_subscribe_to_closed():
    pair = reading(credit=2)
    assert pair.server_says(m.Result(0, 0, rows(2)))
    assert code_of(pair.server.say, m.Result(0, 2, rows(1))) == "no_credit"
    assert pair.client_says(m.Credit(0, 4))
    assert pair.server_says(m.Result(0, 7, rows(1)))  # 2 to 6 were lost to a slow reader
    assert pair.server_says(m.Progress(0, 3))
    late = pair.server.say(m.Result(0, 8, rows(1)))
    assert pair.client_says(m.Close(0))
    assert not pair.client.receive(over_the_wire(late))
    assert pair.server_says(m.Closed(0))


def test_resent_tuples_are_skipped_and_use_no_credit():
    server = feeding(credit=10).server
    assert server.take(0, 0, 4) == 0
    assert server.take(0, 0, 4) == 4
    assert server.take(0, 2, 5) == 2
    assert server.channels[0].credit == 3
    assert server.channels[0].next_sequence == 7


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (m.Data(0, 1, rows(1)), "out_of_order"),
        (m.Data(0, 0, rows(11)), "no_credit"),
        (m.DataArrow(0, 0, 11, b""), "no_credit"),
        (m.Data(1, 0, rows(1)), "not_open"),
        (m.Punctuation(1, 0), "not_open"),
        (m.Close(1), "not_open"),
        (m.Open(0, "t", None, "p"), "channel_used"),
        (m.Open(1, "s", None, "p"), "already_open"),
        (m.Subscribe(0, "q"), "channel_used"),
        (m.Credit(0, 1), "unexpected_message"),
        (m.Ets(0, 0, 5), "unexpected_message"),
        (m.Opened(0, 0, 0, SCHEMA), "unexpected_message"),
        (m.Result(0, 0, rows(1)), "unexpected_message"),
        (m.Error("refused", "", 0), "unexpected_message"),
        (m.Hello(1, "c"), "unexpected_message"),
        (m.Welcome(1, "s", Limits(), 0), "unexpected_message"),
    ],
)
def test_messages_that_a_client_may_not_send_on_a_feed(message, code):
    server = feeding().server
    before = numbers(server)
    assert code_of(server.receive, message) == code
    assert numbers(server) == before


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (m.Ack(0, 1), "out_of_order"),
        (m.Credit(0, 2**63 - 1), "bad_value"),
        (m.Opened(0, 0, 0, SCHEMA), "unexpected_message"),
        (m.Result(0, 0, rows(1)), "unexpected_message"),
        (m.Credit(5, 1), "unexpected_message"),
        (m.Data(0, 0, rows(1)), "unexpected_message"),
    ],
)
def test_messages_that_a_server_may_not_send_on_a_feed(message, code):
    client = feeding().client
    before = numbers(client)
    assert code_of(client.receive, message) == code
    assert numbers(client) == before


def test_a_server_may_not_exceed_a_readers_credit_or_go_back():
    client = reading(credit=5).client
    assert client.receive(m.Result(0, 3, rows(2)))
    assert code_of(client.receive, m.Result(0, 4, rows(1))) == "out_of_order"
    assert code_of(client.receive, m.Result(0, 5, rows(4))) == "no_credit"


def test_sequence_numbers_stay_within_64_bits():
    server = feeding(next_sequence=2**63 - 3).server
    assert code_of(server.take, 0, 2**63 - 3, 3) == "bad_value"
    assert server.take(0, 2**63 - 3, 2) == 0


def test_requests_are_numbered_upwards():
    pair = feeding()
    pair.server_says(m.EtsRequest(0, 4, 9))
    assert code_of(pair.client.receive, m.EtsRequest(0, 4, 9)) == "out_of_order"
    assert code_of(pair.server.receive, m.Ets(0, 5, 9)) == "unexpected_message"
    assert pair.client_says(m.Ets(0, 3, 9))


def test_hello_first_once_and_of_this_protocol():
    early: list[m.Message] = [m.Ping(1), m.Open(0, "s", None, "p"), m.Pong(1), m.Welcome(1, "", Limits(), 0)]
    for message in early:
        assert code_of(Session(Side.SERVER).receive, message) == "unexpected_message"
    assert code_of(Session(Side.SERVER).receive, m.Hello(2, "c")) == "unsupported_protocol"
    pair = Pair()
    pair.client_says(m.Hello(1, "c"))
    for message in [*early, m.Hello(1, "c")]:
        assert code_of(pair.server.receive, message) == "unexpected_message"


def test_messages_in_flight_for_an_ended_channel_are_dropped():
    pair = feeding()
    under_way = [m.Data(0, 0, rows(1)), m.DataArrow(0, 0, 1, b""), m.Punctuation(0, 1), m.Ets(0, 0, 1), m.Close(0)]
    pair.server_says(m.Closed(0, "dropped"))
    for message in under_way:
        assert not pair.server.receive(message)
    assert pair.server.take(0, 0, 7) == 7
    for message in (m.Ack(0, 0), m.Credit(0, 1), m.EtsRequest(0, 0, 1), m.Error("refused", "", 0), m.Closed(0)):
        assert pair.server.say(message) == b""
        assert not pair.client.receive(message)
    assert not pair.server.give(0, 0, 5)


def test_a_refused_request_uses_up_its_channel():
    pair = greeted()
    pair.client_says(m.Open(3, "nope", None, "p"))
    pair.server_says(m.Error("unknown_stream", "no", 3))
    assert not pair.client.channels
    assert not pair.server.channels
    assert code_of(pair.server.receive, m.Open(2, "s", None, "p")) == "channel_used"
    pair.client_says(m.Open(4, "s", None, "p"))


def test_no_more_channels_than_the_limit():
    pair = greeted(limits=Limits(channels=2))
    pair.client_says(m.Open(0, "s", None, "a"))
    pair.client_says(m.Subscribe(1, "q"))
    wish = m.Open(2, "s", None, "b")
    assert code_of(pair.client_says, wish) == "too_many_channels"
    pair.server_says(m.Error("too_many_channels", "", 2))
    pair.server_says(m.Error("unknown_query", "", 1))
    assert pair.client_says(m.Open(3, "s", None, "b"))


@pytest.mark.parametrize("last", [m.Bye("x"), m.Error("internal", "x")])
def test_after_the_last_message_everything_is_dropped(last):
    for sender in Side:
        pair = feeding()
        assert pair.client_says(last) if sender is Side.CLIENT else pair.server_says(last)
        assert pair.server.take(0, 0, 7) == 7
        assert not pair.client.channels
        for example in EXAMPLES:
            assert not pair.server.receive(example)
            assert pair.client.say(example) == b""


# Every cell of the table of channels, applied to a session in that phase.


def in_phase(phase):
    """Sessions of a server and a client with channel 5 in this phase."""
    pair = greeted()
    open_feed = [(Side.CLIENT, m.Open(5, "s", None, "p")), (Side.SERVER, m.Opened(5, 0, 10, SCHEMA))]
    open_reader = [(Side.CLIENT, m.Subscribe(5, "q", None, 10)), (Side.SERVER, m.Subscribed(5, SCHEMA, 0))]
    request, close = (Side.SERVER, m.EtsRequest(5, 0, 0)), (Side.CLIENT, m.Close(5))
    way = {
        Phase.FREE: [],
        Phase.OPENING: open_feed[:1],
        Phase.FEED: [*open_feed, request],
        Phase.ASKING: open_reader[:1],
        Phase.READING: open_reader,
        Phase.CLOSING_FEED: [*open_feed, request, close],
        Phase.CLOSING_READ: [*open_reader, close],
        Phase.GONE: [*open_feed, (Side.SERVER, m.Closed(5))],
    }
    for side, message in way[phase]:
        assert pair.client_says(message) if side is Side.CLIENT else pair.server_says(message)
    return pair


FITTING = {
    Kind.OPEN: m.Open(5, "s2", None, "p"),
    Kind.OPENED: m.Opened(5, 0, 1, SCHEMA),
    Kind.DATA: m.Data(5, 0, rows(1)),
    Kind.DATA_ARROW: m.DataArrow(5, 0, 1, b""),
    Kind.PUNCTUATION: m.Punctuation(5, 0),
    Kind.ETS_REQUEST: m.EtsRequest(5, 1, 0),
    Kind.ETS: m.Ets(5, 0, 0),
    Kind.ACK: m.Ack(5, 0),
    Kind.ERROR: m.Error("refused", "", 5),
    Kind.SUBSCRIBE: m.Subscribe(5, "q2"),
    Kind.SUBSCRIBED: m.Subscribed(5, SCHEMA, 0),
    Kind.RESULT: m.Result(5, 0, rows(1)),
    Kind.RESULT_ARROW: m.ResultArrow(5, 0, 1, b""),
    Kind.PROGRESS: m.Progress(5, 0),
    Kind.CREDIT: m.Credit(5, 1),
    Kind.CLOSE: m.Close(5),
    Kind.CLOSED: m.Closed(5),
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("side", "kind"), CHANNEL)
def test_a_session_follows_the_table(side, kind, phase):
    pair = in_phase(phase)
    receiver = pair.server if side is Side.CLIENT else pair.client
    rule = CHANNEL[side, kind][phase]
    before = numbers(receiver)
    if isinstance(rule, Phase):
        assert receiver.receive(FITTING[kind])
        assert phase_of(receiver) is rule
    elif rule is Verdict.DROP:
        assert not receiver.receive(FITTING[kind])
        assert numbers(receiver) == before
    else:
        assert code_of(receiver.receive, FITTING[kind]) == rule.value
        assert numbers(receiver) == before


def phase_of(session):
    if 5 in session.channels:
        return session.channels[5].phase
    return Phase.GONE if session.highest >= 5 else Phase.FREE


def test_sending_a_forbidden_message_is_an_internal_error():
    with pytest.raises(AssertionError, match="must not send"):
        Session(Side.SERVER).say(m.Ping(1))


# Any conversation: one side accepts all messages that the other may send, and both have the same state.


def numbers(session):
    return session.stage, session.highest, copy.deepcopy(session.channels)


CHANNEL_NUMBER = st.integers(0, 3)
SMALL = st.integers(0, 5)
ROWS = st.integers(0, 3).map(rows)
SENT = st.one_of(
    st.builds(m.Hello, st.just(1), st.just("c")),
    st.builds(m.Welcome, st.just(1), st.just("s"), st.just(Limits(channels=2)), st.just(0)),
    st.builds(m.Open, CHANNEL_NUMBER, st.sampled_from("ab"), st.none(), st.just("p"), st.none() | SMALL),
    st.builds(m.Opened, CHANNEL_NUMBER, SMALL, SMALL, st.just(SCHEMA)),
    st.builds(m.Data, CHANNEL_NUMBER, SMALL, ROWS),
    st.builds(m.DataArrow, CHANNEL_NUMBER, SMALL, SMALL, st.just(b"")),
    st.builds(m.Punctuation, CHANNEL_NUMBER, SMALL),
    st.builds(m.EtsRequest, CHANNEL_NUMBER, SMALL, SMALL),
    st.builds(m.Ets, CHANNEL_NUMBER, SMALL, SMALL),
    st.builds(m.Ack, CHANNEL_NUMBER, SMALL),
    st.builds(m.Error, st.just("refused"), st.just(""), CHANNEL_NUMBER),
    st.builds(m.Subscribe, CHANNEL_NUMBER, st.sampled_from("qr"), st.none(), SMALL),
    st.builds(m.Subscribed, CHANNEL_NUMBER, st.just(SCHEMA), SMALL),
    st.builds(m.Result, CHANNEL_NUMBER, SMALL, ROWS),
    st.builds(m.ResultArrow, CHANNEL_NUMBER, SMALL, SMALL, st.just(b"")),
    st.builds(m.Progress, CHANNEL_NUMBER, SMALL),
    st.builds(m.Credit, CHANNEL_NUMBER, SMALL),
    st.builds(m.Close, CHANNEL_NUMBER),
    st.builds(m.Closed, CHANNEL_NUMBER),
    st.builds(m.Ping, SMALL),
    st.builds(m.Bye),
)


def play(pair, conversation):
    """Each side sends allowed messages, which the other receives at once and must accept."""
    for side, message in conversation:
        sender, receiver = (pair.client, pair.server) if side is Side.CLIENT else (pair.server, pair.client)
        before = numbers(sender)
        try:
            data = sender.say(message)
        except (AssertionError, Refuse):
            assert numbers(sender) == before
            with pytest.raises((PeerError, Refuse)):
                receiver.receive(message)
            assert numbers(receiver) == numbers(sender)
            continue
        assert receiver.receive(message) == bool(data) or isinstance(message, m.Data | m.DataArrow)
        assert numbers(receiver) == numbers(sender)


@given(st.lists(st.tuples(st.sampled_from(Side), SENT), max_size=30))
def test_both_sides_agree_on_any_conversation(conversation):
    play(Pair(), conversation)


@given(st.lists(st.tuples(st.sampled_from(Side), SENT), max_size=40))
def test_both_sides_agree_once_a_feed_and_a_subscription_are_open(conversation):
    pair = feeding(credit=5)
    pair.client_says(m.Subscribe(1, "q", None, 5))
    pair.server_says(m.Subscribed(1, SCHEMA, 0))
    play(pair, conversation)
