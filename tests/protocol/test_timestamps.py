"""Timestamps are exact over the whole int64 range. Within its range, datetime is the oracle."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.protocol import MAX_INT64, MIN_INT64, TimestampError, format_timestamp, parse_timestamp

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(MIN_INT64, MAX_INT64))
@example(MIN_INT64)
@example(MAX_INT64)
@example(-1)
@example(-62_135_596_800_000_001)
@example(253_402_300_800_000_000)
@example(-62_167_219_200_000_001)
def test_every_timestamp_survives_formatting(us):
    assert parse_timestamp(format_timestamp(us)) == us
    assert parse_timestamp(us) == us


@given(st.datetimes(timezones=st.timezones() | st.just(UTC)))
@example(datetime(1, 1, 1, tzinfo=UTC))
@example(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
def test_datetime_agrees(moment):
    us = (moment - EPOCH) // timedelta(microseconds=1)
    assert parse_timestamp(moment) == us
    if moment.utcoffset() % timedelta(minutes=1) == timedelta():
        assert parse_timestamp(moment.isoformat()) == us
    if moment.tzinfo is UTC:
        assert format_timestamp(us) == moment.replace(tzinfo=None).isoformat() + "Z"


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00", 0),
        ("1970-01-01 00:00:01", 1_000_000),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01t00:00:00,5z", 500_000),
        ("1970-01-01T00:00:00.123456000Z", 123_456),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1970-01-01T02:00:00 +0200", 0),
        ("1969-12-31T22:30-01:30", 0),
        ("1970-01-01T05+05", None),
        (" 2026-01-01 ", 1_767_225_600_000_000),
        ("2024-02-29", 1_709_164_800_000_000),
        ("0000-02-29", -62_162_121_600_000_000),
        ("+010000-01-01T00:00:00Z", 253_402_300_800_000_000),
        ("-000001-12-31T23:59:59.999999Z", -62_167_219_200_000_001),
    ],
)
def test_forms(text, us):
    if us is None:
        with pytest.raises(TimestampError):
            parse_timestamp(text)
    else:
        assert parse_timestamp(text) == us


def test_a_datetime_without_a_zone_is_utc():
    assert parse_timestamp(datetime(1970, 1, 1, 0, 0, 1)) == 1_000_000  # noqa: DTZ001
    east = datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert parse_timestamp(east) == 0


@pytest.mark.parametrize(
    "value",
    [
        "",
        "now",
        "2026",
        "2026-13-01",
        "2026-02-29",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:60:00Z",
        "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:00.0000001Z",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00Zx",
        "20260101",
        "\u0662026-01-01",
        "+294248-01-01T00:00:00Z",
        "-290309-01-01T00:00:00Z",
        MAX_INT64 + 1,
        MIN_INT64 - 1,
        1.0,
        True,
        None,
        [],
        "9" * 10_000,
    ],
)
def test_invalid_timestamps(value):
    with pytest.raises(TimestampError) as caught:
        parse_timestamp(value)
    assert caught.value.code == "bad_value"
    assert len(str(caught.value)) < 300


@given(st.text(alphabet="0123456789-+:.TZ ", max_size=35))
def test_any_text_is_a_timestamp_or_an_error(text):
    try:
        us = parse_timestamp(text)
    except TimestampError:
        return
    assert parse_timestamp(format_timestamp(us)) == us
