"""The gate holds everyone until all have come, favours nobody, and finds an instant that all can keep."""

import multiprocessing as mp
import threading
import time

import pytest

from bench.protocol.barrier import gates


def meet_all(world_size, meetings, arrive, how="meet"):
    """Threads as ranks: what each saw, in the order of leaving."""
    left, lock = [], threading.Lock()
    entered = [0] * world_size
    seats = gates(mp.get_context("forkserver"), world_size)

    def rank(seat):
        for number in range(meetings):
            arrive(seat.rank, number)
            entered[seat.rank] += 1
            getattr(seat, how)()
            with lock:
                left.append((number, seat.rank, min(entered)))

    threads = [threading.Thread(target=rank, args=(seat,), daemon=True) for seat in seats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "the gate never opened"
    return left, seats


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("how", ["meet", "meet_at_deadline"])
def test_nobody_leaves_before_all_have_come(world_size, how):
    left, _ = meet_all(world_size, 12, lambda rank, number: time.sleep(0.002 * ((rank + number) % 3)), how)
    assert len(left) == 12 * world_size
    assert all(came > number for number, _, came in left)


def test_each_rank_lets_the_others_go_equally_often():
    _, seats = meet_all(3, 9, lambda rank, number: None)
    assert [seat.meetings for seat in seats] == [9, 9, 9]
    masters = [number % 3 for number in range(1, 10)]
    assert {rank: masters.count(rank) for rank in range(3)} == {0: 3, 1: 3, 2: 3}


def test_a_missed_instant_makes_the_slack_grow():
    _, seats = meet_all(2, 1, lambda rank, number: None)
    seats[0].shared[1] = 0  # no slack: every instant is in the past
    both = [threading.Thread(target=lambda s=seat: [s.meet_at_deadline() for _ in range(200)]) for seat in seats]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(20)
    assert sum(seat.misses for seat in seats) > 0
    assert seats[0].shared[1] >= 1000


def test_calibration_sets_a_slack():
    _, seats = meet_all(2, 1, lambda rank, number: None, "calibrate")
    assert seats[0].shared[1] > 0
