"""The barrier holds everyone until all have come, favours nobody, and finds an instant that all can keep."""

import multiprocessing as mp
import threading
import time

import pytest

from bench.protocol.barrier import barriers


def wait_all(world_size, rounds, arrive, how="wait"):
    """Threads as ranks: what each saw, in the order of leaving."""
    left, lock = [], threading.Lock()
    entered = [0] * world_size
    contexts = barriers(mp.get_context("forkserver"), world_size)

    def rank(context):
        for number in range(rounds):
            arrive(context.rank, number)
            entered[context.rank] += 1
            getattr(context, how)()
            with lock:
                left.append((number, context.rank, min(entered)))

    threads = [threading.Thread(target=rank, args=(context,), daemon=True) for context in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "the barrier never opened"
    return left, contexts


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("how", ["wait", "wait_for_deadline"])
def test_nobody_leaves_before_all_have_come(world_size, how):
    left, _ = wait_all(world_size, 12, lambda rank, number: time.sleep(0.002 * ((rank + number) % 3)), how)
    assert len(left) == 12 * world_size
    assert all(came > number for number, _, came in left)


def test_each_rank_lets_the_others_go_equally_often():
    _, contexts = wait_all(3, 9, lambda rank, number: None)
    assert [context.rounds for context in contexts] == [9, 9, 9]
    masters = [number % 3 for number in range(1, 10)]
    assert {rank: masters.count(rank) for rank in range(3)} == {0: 3, 1: 3, 2: 3}


def test_a_missed_instant_makes_the_slack_grow():
    _, contexts = wait_all(2, 1, lambda rank, number: None)
    contexts[0].shared[1] = 0  # no slack: every instant is in the past
    both = [
        threading.Thread(target=lambda s=context: [s.wait_for_deadline() for _ in range(200)]) for context in contexts
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(20)
    assert sum(context.misses for context in contexts) > 0
    assert contexts[0].shared[1] >= 1000


def test_calibration_sets_a_slack():
    _, contexts = wait_all(2, 1, lambda rank, number: None, "calibrate")
    assert contexts[0].shared[1] > 0
