"""The barrier holds every rank until all have come, and favours none of them."""

import threading
import time

import pytest

from collbench.protocol.rank_context import Board, barriers


def wait_all(world_size, rounds, arrive):
    """Run ranks as threads; return the record of each rank that left, in the order of leaving, and the contexts."""
    left, lock = [], threading.Lock()
    entered = [0] * world_size
    contexts = barriers(Board(world_size))

    def rank(context):
        for number in range(rounds):
            arrive(context.rank, number)
            entered[context.rank] += 1
            context.wait()
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
def test_nobody_leaves_before_all_have_come(world_size):
    left, _ = wait_all(world_size, 12, lambda rank, number: time.sleep(0.002 * ((rank + number) % 3)))
    assert len(left) == 12 * world_size
    assert all(came > number for number, _, came in left)


def test_each_rank_lets_the_others_go_equally_often():
    _, contexts = wait_all(3, 9, lambda rank, number: None)
    assert [context.rounds for context in contexts] == [9, 9, 9]
    masters = [number % 3 for number in range(1, 10)]
    assert {rank: masters.count(rank) for rank in range(3)} == {0: 3, 1: 3, 2: 3}
