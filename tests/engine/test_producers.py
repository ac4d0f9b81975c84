"""Which producers a stream keeps."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import AddStream, FeedClosed, FeedOpened, ProducerForgotten, Sequenced
from millrace.engine.plan import StreamDefinition
from millrace.engine.producers import LOOKS, Producers
from tests.engine.graphs import V

DAY_US = 86_400_000_000


def forgotten(effects):
    return [(order.feed, order.next_sequence) for order in effects.orders if isinstance(order, ProducerForgotten)]


def engine(**limits):
    made = Engine(**limits)
    made.obey(AddStream(StreamDefinition("s", V)))
    return made


def test_the_oldest_are_forgotten_beyond_the_number():
    made = engine(producers_kept=2)
    assert [forgotten(made.step(at, [Sequenced("s", name, at)])) for at, name in enumerate("abac", 1)] == [
        [],
        [],
        [],
        [("b", 2)],
    ]
    assert made.stream("s").producers.positions() == {"a": 3, "c": 4}


def test_those_that_are_silent_for_long_are_forgotten():
    made = engine(producers_kept_us=DAY_US)
    made.step(1, [Sequenced("s", "a", 5), Sequenced("s", "b", 6)])
    assert forgotten(made.step(DAY_US, [Sequenced("s", "b", 7)])) == []
    assert forgotten(made.step(DAY_US + 2, [Sequenced("s", "c", 1)])) == [("a", 5)]
    assert forgotten(made.step(2 * DAY_US + 1, [Sequenced("s", "b", 8)])) == []


def test_an_open_feed_is_not_forgotten():
    made = engine(producers_kept=1, producers_kept_us=DAY_US)
    made.step(1, [FeedOpened("s", "a"), Sequenced("s", "a", 5)])
    assert forgotten(made.step(3 * DAY_US, [Sequenced("s", "b", 1)])) == [("b", 1)]
    made.step(3 * DAY_US + 1, [FeedClosed("s", "a")])
    assert forgotten(made.step(3 * DAY_US + 2, [Sequenced("s", "c", 1)])) == [("a", 5)]


def test_a_saved_engine_keeps_its_producers():
    made = engine(producers_kept=3, producers_kept_us=DAY_US)
    for at, name in enumerate("abca"):
        made.step(at, [Sequenced("s", name, at)])
    again = Engine.restore(made.save())
    assert again.stream("s").producers.positions() == made.stream("s").producers.positions()
    for world in (made, again):
        assert forgotten(world.step(DAY_US + 2, [Sequenced("s", "d", 9)])) == [("b", 1)]


names = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(names, st.integers(0, 5))), st.sets(names, max_size=LOOKS - 1), st.integers(1, 4))
def test_positions_agree_with_a_list(script, is_open, most):
    """The oracle: a list by last use, from which the first closed ones go while it is too long or they are too old."""
    kept_us, now_us = 8, 0
    found = Producers()
    expected: list[tuple[str, int, int]] = []
    for at, (name, waited) in enumerate(script):
        now_us += waited
        found.took(name, at, now_us)
        expected = [one for one in expected if one[0] != name] + [(name, at, now_us)]
        gone = list(found.forget(now_us, most, kept_us, is_open))
        for _ in range(min(LOOKS, len(expected))):
            first = expected[0]
            if len(expected) <= most and first[2] >= now_us - kept_us:
                break
            expected.pop(0)
            if first[0] in is_open:
                expected.append((first[0], first[1], now_us))
            else:
                assert gone.pop(0) == first[:2]
        assert gone == []
        assert list(found.positions().items()) == [one[:2] for one in expected]
        assert Producers(found.save()).positions() == found.positions()
