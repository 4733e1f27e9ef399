"""Timed blocks of training are left out by the CPU time of other programs, and never by their own duration."""

import numpy as np
import pytest

from collbench.rank.rounds import _foreign_cpu

CORES, TICK_S, LIMIT = 2, 0.01, 0.06


def share(busy_s, own_s, wall_s=0.2, hosts=("a",)):
    return _foreign_cpu(
        [{"host": host, "busy_s": busy_s, "own_s": own_s / 2, "cores": CORES} for host in hosts for _ in range(2)],
        wall_s,
    )


def test_two_ticks_count_as_none_and_only_time_beyond_them_counts():
    assert share(0.32, 0.3) == 0
    assert share(0.34, 0.3) == pytest.approx(0.02 / (0.2 * CORES))
    assert share(None, 0.3) is None


@pytest.mark.parametrize("load", [0.03, 0.055, 0.07])
@pytest.mark.parametrize("block_s", [0.08, 0.16, 0.25])
def test_a_steady_load_leaves_the_mean_of_the_blocks_that_stay(load, block_s):
    """Forgiving two ticks only to blocks of at most two lost slow blocks: 0.96 of the mean at 160 ms and 7 %."""
    rng = np.random.default_rng(3)
    walls = block_s * np.exp(0.2 * rng.normal(size=4000))
    ticks = rng.poisson(load * walls * CORES / TICK_S)
    kept = [wall for wall, count in zip(walls, ticks, strict=True) if share(count * TICK_S, 0.0, wall) <= LIMIT]
    assert len(kept) > len(walls) / 2
    assert np.mean(kept) / np.mean(walls) == pytest.approx(1, abs=0.015)
