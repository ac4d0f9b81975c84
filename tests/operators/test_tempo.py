"""What a join's tempo tells of its switches."""

from __future__ import annotations

from millrace.operators.tempo import Tempo


def test_each_switch_is_told_once() -> None:
    tempo = Tempo(2, 1_000_000, 1.0)
    tempo.took(0, 1, 5, 5)
    assert tempo.tell() == []
    tempo.switched("filter")
    assert [switch.mode for switch in tempo.tell()] == ["filter"]
    assert tempo.tell() == []
    tempo.switched("sync")
    assert [switch.mode for switch in tempo.tell()] == ["sync"]
