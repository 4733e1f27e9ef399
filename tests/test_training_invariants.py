"""Each invariant of a strategy fails when it is broken on purpose; the reports of ranks are invented."""

from types import SimpleNamespace

import pytest
import torch

from collbench.model.records import Case
from collbench.packages.training.rank import invariants
from collbench.packages.training.rank.invariants import CheckContext
from collbench.packages.training.rank.transport import ProcessGroupTransport, RankInfo
from collbench.packages.training.synchronisation import Scenario, StepOptions, Strategy

OVERLAPPED = Strategy("overlap_param")
SCENARIO = Scenario(Case("training_step", "gloo", 2, "float32", 0, own=StepOptions(model="nano", batch=2, sequence=8)))


def bench(other=None, sizes=(400, 200)):
    """Return the context of rank 0 of two; the other rank reports `other(own)`."""
    place = RankInfo(0, 2, torch.device("cpu"), ProcessGroupTransport(2))
    return CheckContext(SCENARIO, place, lambda own: [own, other(own) if other else own], 1, [1, 0], list(sizes))


def runner(calls=(200, 400), strategy=OVERLAPPED, buckets=([1], [0])):
    sync = SimpleNamespace(calls=lambda: tuple(calls), buckets=[list(bucket) for bucket in buckets])
    return SimpleNamespace(strategy=strategy, parameters=[torch.arange(100.0), torch.arange(50.0)], sync=sync)


def verdicts(checks):
    return {check.invariant: check.ok for check in checks}


def test_correct_calls_pass():
    checks, calls = invariants.check_calls(bench(), runner())
    assert verdicts(checks) == {"I5": True, "I6": True} and calls == (200, 400)
    assert invariants.check_start(bench(), runner()).ok and invariants.check_end(bench(), runner(), 3).ok


@pytest.mark.parametrize(
    ("calls", "broken"), [((200, 400, 400), {"I5", "I6"}), ((200,), {"I5", "I6"}), ((400, 200), {"I6"})]
)
def test_bytes_sent_twice_or_never_and_other_buckets_are_noticed(calls, broken):
    checks, _ = invariants.check_calls(bench(), runner(calls))
    assert {name for name, ok in verdicts(checks).items() if not ok} == broken


def test_a_plan_that_was_not_realised_is_noticed():
    planned = Strategy("plan", buckets=(600,))
    checks, _ = invariants.check_calls(bench(), runner(strategy=planned))
    assert verdicts(checks)["I6"] is False


def test_ranks_that_differ_are_noticed_and_equal_ranks_without_synchronisation():
    differing, equal = bench(lambda own: own + "x"), bench()
    assert invariants.check_start(differing, runner()).ok is False
    end = invariants.check_end(differing, runner(), 3)
    assert (end.invariant, end.ok) == ("I1", False)
    reference = runner(strategy=Strategy("none"))
    assert invariants.check_end(differing, reference, 3).ok is True
    control = invariants.check_end(equal, reference, 3)
    assert (control.invariant, control.ok) == ("I4", False)


def test_other_bits_are_noticed():
    shared = bench()
    shared.finals = {"naive": ((1,), "a"), "flat": ((2,), "b"), "overlap_param": ((1,), "a")}
    assert invariants.check_bits(shared, Strategy("flat")).ok is False
    assert invariants.check_bits(shared, Strategy("naive")).ok is True
    del shared.finals["flat"]
    assert invariants.check_bits(shared, Strategy("naive")).ok is True


@pytest.mark.parametrize(("elements", "ok"), [(75, True), (150, False), (10, False)])
def test_states_that_are_not_a_single_copy_are_noticed(elements, ok):
    optimizer = SimpleNamespace(state={0: {"momentum_buffer": torch.zeros(elements)}})
    sharded = runner(strategy=Strategy("zero1"))
    sharded.optimizer = optimizer
    check = invariants.check_shards(bench(), sharded)
    assert (check.invariant, check.ok) == ("I12", ok)
