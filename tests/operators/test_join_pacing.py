"""What the pacing of a join reports about its switches."""

from __future__ import annotations

from millrace.operators.join.pacing import JoinPacing


def test_each_switch_is_told_once() -> None:
    pacing = JoinPacing(2, 1_000_000, 1.0)
    pacing.took(0, 1, 5, 5)
    assert pacing.tell() == []
    pacing.switched("filter")
    assert [switch.mode for switch in pacing.tell()] == ["filter"]
    assert pacing.tell() == []
    pacing.switched("sync")
    assert [switch.mode for switch in pacing.tell()] == ["sync"]
