"""What `millrace late` prints: the disorders that matter, the cheapest that suffices, and the command that sets it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.late import ROWS, advised, chosen, share, table
from millrace.protocol.admin.streams import DisorderView, LateView

SECOND = 1_000_000


def answer(lates, present=1, **more):
    found = LateView(
        stream="door",
        since_us=1_767_225_600_000_000,
        until_us=1_767_225_660_000_000,
        disorder_us=present * SECOND,
        progress="tuples",
        tuples=10_000,
        disorders=[DisorderView(disorder_us=at * SECOND, late=late) for at, late in enumerate(lates)],
        queries=["a", "b"],
    )
    return replace(found, **more)


def test_the_cheapest_disorder_that_keeps_enough_is_suggested():
    lines, command = advised(answer([900, 280, 60, 8, 8, 3]), 99.9)
    assert lines == [
        "10000 tuples of door from 2026-01-01T00:00:00Z to 2026-01-01T00:01:00Z, 280 of them late",
        "disorder   on time  late  latency",
        "0 seconds  91 %     900   1 s less",
        "1 second   97.2 %   280   now",
        "2 seconds  99.4 %   60    1 s more",
        "3 seconds  99.92 %  8     2 s more",
        "5 seconds  99.97 %  3     4 s more",
        "3 tuples would have been late with any of these: below a promise, or older",
        "'3 seconds' would have kept 99.92 %, at 2 s more latency for 2 queries (a, b)",
    ]
    assert command == "millrace sql \"ALTER STREAM door SET (disorder = '3 seconds')\""


@pytest.mark.parametrize(
    ("keep", "present", "last"),
    [
        (99, 2, "disorder = '2 seconds' keeps 99.4 %"),
        (99, 5, "'2 seconds' would have kept 99.4 %, at 3 s less latency for 1 query (a)"),
        (100, 0, "'5 seconds' would have kept 99.97 %, at 5 s more latency for 1 query (a)"),
        (0, 1, "'0 seconds' would have kept 91 %, at 1 s less latency for 1 query (a)"),
    ],
)
def test_a_share_that_suffices(keep, present, last):
    lines, command = advised(answer([900, 280, 60, 8, 8, 3], present, queries=["a"]), keep)
    assert lines[-1] == last
    assert (command is None) == last.startswith("disorder")


def test_streams_without_tuples_and_without_a_choice():
    assert advised(answer([0, 0], tuples=0), 99.9) == (
        ["stream door has received no tuple from 2026-01-01T00:00:00Z to 2026-01-01T00:01:00Z"],
        None,
    )
    lines, command = advised(answer([1, 1], since_us=None, progress="punctuation"), 99.9)
    assert command is None
    (line,) = lines
    assert line.startswith("10000 tuples of door, 1 of them late: with progress = 'punctuation' the disorder makes no")


counts = st.lists(st.integers(0, 1_000), min_size=2, max_size=60).map(lambda lates: sorted(lates, reverse=True))


@given(counts, st.floats(0, 100), st.data())
def test_choices_and_tables_agree_with_looking_at_each(lates, keep, data):
    choices = [DisorderView(disorder_us=at, late=late) for at, late in enumerate(lates)]
    present = data.draw(st.sampled_from(choices))
    found = chosen(choices, 1_000, keep)
    enough = [one for one in choices if (1_000 - one.late) / 1_000 * 100 >= keep]
    expected = (
        min(enough, key=lambda one: one.disorder_us)
        if enough
        else next(one for one in choices if one.late == min(lates))
    )
    assert found.late == expected.late or abs((1_000 - found.late) / 10 - keep) < 1e-9
    shown = list(table(choices, present, 1_000))
    assert len(shown) <= ROWS + 2
    assert [line[3] for line in shown].count("now") == 1


@given(st.integers(1, 10**9), st.data())
def test_a_share_is_never_rounded_up_to_all(tuples, data):
    late = data.draw(st.integers(1, tuples))
    assert share(late, tuples) != "100 %"
    assert share(0, tuples) == "100 %"
