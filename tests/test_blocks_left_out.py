"""Timed blocks of training are left out by the CPU time of other programs, and never by their own duration."""

import pytest

from collbench.rank.rounds import _foreign_cpu

CORES = 2


def share(busy_s, own_s, wall_s=0.2, hosts=("a",)):
    return _foreign_cpu(
        [{"host": host, "busy_s": busy_s, "own_s": own_s / 2, "cores": CORES} for host in hosts for _ in range(2)],
        wall_s,
    )


def test_two_ticks_count_as_none_and_only_time_beyond_them_counts():
    assert share(0.32, 0.3) == 0
    assert share(0.34, 0.3) == pytest.approx(0.02 / (0.2 * CORES))
    assert share(None, 0.3) is None
