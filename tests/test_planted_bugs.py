"""Each invariant of a strategy fails when it is broken on purpose: by invented reports of ranks, and on real ranks."""

from types import SimpleNamespace

import pytest
import torch

from collbench.model.records import Case
from collbench.packages.training.rank import invariants
from collbench.packages.training.rank.invariants import CheckContext
from collbench.packages.training.rank.transport import ProcessGroupTransport, RankInfo
from collbench.packages.training.synchronisation import Scenario, StepOptions, Strategy
from test_training_plan import planned
from training_fixtures import answers_of

OVERLAPPED = Strategy("overlap_param")
SCENARIO = Scenario(Case("training_step", "gloo", 2, "float32", 0, own=StepOptions(model="nano", batch=2, sequence=8)))


def bench(other=None, ranks=2):
    """Return the context of rank 0; every other rank reports `other(own)`."""
    place = RankInfo(0, ranks, torch.device("cpu"), ProcessGroupTransport(ranks))
    reports = (ranks - 1) * [other or (lambda own: own)]
    return CheckContext(SCENARIO, place, lambda own: [own, *(other(own) for other in reports)], 1, [1, 0], [400, 200])


def runner(calls=(200, 400), strategy=OVERLAPPED):
    sync = SimpleNamespace(calls=lambda: calls, buckets=[[1], [0]])
    return SimpleNamespace(strategy=strategy, parameters=[torch.arange(100.0), torch.arange(50.0)], sync=sync)


def test_correct_ranks_pass():
    assert invariants.check_start(bench(), runner()).ok and invariants.check_end(bench(), runner(), 3).ok


@pytest.mark.parametrize(
    ("calls", "strategy", "broken"),
    [
        ((200, 400), OVERLAPPED, set()),
        ((200, 400, 400), OVERLAPPED, {"I5", "I6"}),
        ((200,), OVERLAPPED, {"I5", "I6"}),
        ((400, 200), OVERLAPPED, {"I6"}),
        ((200, 400), Strategy("plan", buckets=(600,)), {"I6"}),
    ],
)
def test_bytes_sent_twice_or_never_and_other_buckets_than_wanted_are_noticed(calls, strategy, broken):
    checks, seen = invariants.check_calls(bench(), runner(calls, strategy))
    assert {check.invariant: check.ok for check in checks} == {name: name not in broken for name in ("I5", "I6")}
    assert seen == calls


def test_ranks_that_differ_are_noticed_and_equal_ranks_without_synchronisation():
    differing, equal = bench(lambda own: own + "x"), bench()
    assert invariants.check_start(differing, runner()).ok is False
    end = invariants.check_end(differing, runner(), 3)
    assert (end.invariant, end.ok) == ("I1", False)
    reference = runner(strategy=Strategy("none"))
    assert invariants.check_end(differing, reference, 3).ok is True
    control = invariants.check_end(equal, reference, 3)
    assert (control.invariant, control.ok) == ("I4", False)


@pytest.mark.parametrize(("ranks", "noticed"), [(2, True), (4, None)])
def test_other_bits_are_noticed_at_more_ranks_only_of_calls_with_the_same_content(ranks, noticed):
    shared = bench(ranks=ranks)
    sent = {name: ((4, 2), content) for name, content in (("naive", "x"), ("naive_async", "x"), ("flat", "y"))}
    shared.finals = {"naive": (sent["naive"], "a"), "flat": (sent["flat"], "b"), "naive_async": (sent["naive"], "a")}
    assert invariants.check_bits(shared, Strategy("flat")).ok is (False if noticed else None)
    assert invariants.check_bits(shared, Strategy("naive")).ok is True
    shared.finals["naive_async"] = (sent["naive"], "c")
    assert invariants.check_bits(shared, Strategy("naive_async")).ok is False
    del shared.finals["flat"], shared.finals["naive_async"]
    assert invariants.check_bits(shared, Strategy("naive")).ok is None


@pytest.mark.parametrize(("elements", "ok"), [(75, True), (150, False), (10, False)])
def test_states_that_are_not_a_single_copy_are_noticed(elements, ok):
    optimizer = SimpleNamespace(state={0: {"momentum_buffer": torch.zeros(elements)}})
    sharded = runner(strategy=Strategy("zero1"))
    sharded.optimizer = optimizer
    check = invariants.check_shards(bench(), sharded)
    assert (check.invariant, check.ok) == ("I12", ok)


# ── on real ranks ────────────────────────────────────────────────────────────────────────────────
DIVIDED = "                self._tensor(at).div_(self._transport.world_size)\n"
FIRST_ONLY = DIVIDED.replace("self._tensor(at).div_(", "self._tensor(at).div_(1 if at else ")
ALONE = "    REFERENCE: lambda build: Synchroniser(build.module),\n"
OVER = "    return transport.future(bucket.buffer())\n"
CAP = "by_caps(nbytes, (strategy.cap_bytes,))"
KEPT = "            tensor.copy_(mean)\n"
BACK = "        for tensor, mean in zip(tensors, UNFLATTEN(flat, tensors), strict=True):\n" + KEPT
BUT_LAST = BACK.replace(KEPT, f"            if flat.numel() < 10**6 or tensor is not tensors[-1]:\n    {KEPT}")
MINE = "        return build_with([self.mine], **settings)\n"
WITH_ALL = (
    MINE.replace("return", "made =")
    + """
        made.state[nn.Parameter(self._flat)] = {"momentum_buffer": torch.zeros_like(self._flat)}
        return made
"""
)
OURS, TORCHS = "synchronisers", "torch_synchronisers"
# Module, original text, planted text, strategies, models and links, the wrong strategy, invariants that find it.
PLANTED = {
    "the last of large gradients": (OURS, BACK, BUT_LAST, "naive, flat", "models: [tiny]", "flat", ["I1"]),
    "only the first bucket": (
        OURS, DIVIDED, FIRST_ONLY, "naive, {overlap_bucket: {cap: 1MiB}}", "models: [tiny]", "overlap_bucket", ["I2"],
    ),
    "only the first bucket, a large cap": (
        OURS, DIVIDED, FIRST_ONLY, "naive, {overlap_bucket: {cap: 4MiB}}", "models: [tiny]", "overlap_bucket", ["I2"],
    ),
    "no control": (
        OURS, ALONE, ALONE.replace("Synchroniser(build.module)", "AfterBackward(build, AfterBackward.naive)"),
        "naive", "models: [nano]", "none", ["I4"],
    ),
    "sent twice": (
        TORCHS, OVER, "    transport.future(bucket.buffer())\n" + OVER,
        "naive, ddp", "models: [nano], links: [1ms + 1GB/s]", "ddp", ["I5"],
    ),
    "half the cap": (
        OURS, CAP, CAP.replace("cap_bytes", "cap_bytes // 2"),
        "naive, {overlap_bucket: {cap: 1MiB}}", "models: [tiny]", "overlap_bucket", ["I6"],
    ),
    "a state for all": (TORCHS, MINE, WITH_ALL, "naive, zero1", "models: [nano]", "zero1", ["I12"]),
    "a sum under BatchNorm and dropout": (
        "", "", "", 'naive, {import: "broken_syncs:Sum"}', "models: [{import: 'users_model:build_normalised'}]",
        "import", ["I2"],
    ),
}  # fmt: skip


@pytest.mark.slow
def test_a_planted_mistake_is_found_by_its_invariant_and_by_no_other(launcher):
    jobs = {}
    for title, (module, right, wrong, strategies, models, *_) in PLANTED.items():
        section = f"{models}, batch: 2, sequence: 8, rounds: 2, steps: 1, warmup: 3, strategies: [{strategies}]"
        jobs[title] = (module, right, wrong, planned(section))
    found = answers_of(launcher, "check", jobs)[0]["found"]
    for title, (*_, culprit, finders) in PLANTED.items():
        failed = {name: names for name, names in found[title].items() if names}
        assert failed == {culprit: finders}, title
