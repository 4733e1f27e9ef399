"""Timed blocks are left out by the CPU time of other programs, never by their duration; other sides are no others."""

from types import SimpleNamespace

import pytest

from collbench.model.records import Case
from collbench.rank import rounds


def share(busy_s, own_s):
    return rounds._foreign_cpu([{"host": "a", "busy_s": busy_s, "own_s": own_s / 2, "cores": 2}] * 2, 0.2)


def test_two_ticks_count_as_none_and_only_time_beyond_them_counts():
    assert share(0.32, 0.3) == 0
    assert share(0.34, 0.3) == pytest.approx(0.02 / (0.2 * 2))
    assert share(None, 0.3) is None


@pytest.mark.parametrize("in_turns_s", [None, (0.1,)])
def test_with_turns_no_setup_counts_in_which_other_sides_start(monkeypatch, in_turns_s):
    monkeypatch.setattr(rounds, "_MeasuredCase", lambda *_: SimpleNamespace(spent={}))
    nothing = SimpleNamespace(clear=lambda: None, enters=lambda _: None, in_turns_s=in_turns_s)
    batch = rounds.Batch([Case("all_reduce", "gloo", 2, "float32", 1024)], 0, nothing, nothing, None, nothing)
    assert bool(batch._cases[0].spent) is (in_turns_s is None)
