"""K ranks train the same model as one process where they must, and every mistake that breaks this is noticed.

The trainings are real: ranks are processes that join gloo. A mistake is a case whose ranks do it.
"""

from dataclasses import replace

import pytest
import torch

from bench.machine import host
from bench.training import equivalence
from bench.training.equivalence import (
    CASES,
    SAMPLER_TRIALS,
    EquivalenceResult,
    PairTrial,
    SamplerTrial,
    Training,
    TrialResult,
    fell,
    verdict,
)
from bench.training.launch.equivalence import prove
from bench.training.rank import small_model
from bench.training.rank.equivalence import difference
from bench.training.report import equivalence as shown

PLAIN = CASES[0]
FALLING = tuple(1 / (1 + step) for step in range(12))
# What ranks may do wrong where they must train what one process trains. At K = 2 each would pass unnoticed in a loss.
MISTAKES = {
    "sums gradients": Training(gradients="sum"),
    "synchronises nothing": Training(gradients="apart"),
    "skips the broadcast": Training(seeds=True, broadcast=False),
    "has no sampler": Training(sampler="none"),
    "reads in another order": Training(sampler="shuffled"),
    "scales the learning rate": Training(lr_power=1),
    "sums the loss without making up for it": Training(loss="sum", lr_power=-1),
    "does not divide by the micro-batches": Training(accumulate=2, divided=False),
    "has another optimizer": Training("momentum"),
    "divides by K twice": Training(gradients="mean", lr_power=-1),
}


def test_everything_holds_on_two_ranks(called_once, checkout):
    done = called_once("equivalence")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "HOLDS (2 ranks, 24 steps)" in done.stdout
    assert "`x1 x3 x5 | x2 x4 x6, then x7 x9 | x8 x1`" in done.stdout
    document = (checkout / "plots/equivalence/equivalence.md").read_text()
    for case in CASES:
        assert f"| {case.name}, {case.dtype} " in document
    if torch.cuda.device_count() < 2:
        assert "not tried: needs two GPUs" in document
    assert (checkout / "plots/equivalence/losses.png").stat().st_size > 10_000


def test_every_mistake_of_the_ranks_is_noticed(launcher):
    padded = PairTrial("padding in place of drop_last", "equal", Training(examples="odd"), Training(examples="dropped"))
    once = PairTrial("padding counted once", "equal", Training(examples="odd"), Training(examples="odd"))
    apart = PairTrial("apart", "equal", Training(seeds=True, broadcast=False), None)
    wrong = [replace(PLAIN, name=name, ranks=how) for name, how in MISTAKES.items()]
    normalised = Training(normalised=True)
    wrong += [replace(PLAIN, name="normalises its own share", ranks=normalised, alone=normalised)]
    wrong += [replace(one, dtype="float32") for one in wrong]
    readings = [replace(SAMPLER_TRIALS[1], drop_last=True), replace(SAMPLER_TRIALS[2], batch=2)]
    proof = prove([*wrong, padded, once, apart, *readings], 2, 24, launcher)
    assert proof.failure is None and not proof.holds
    assert {one.trial.name: verdict(one) for one in proof.found if verdict(one) != (False, "BROKEN")} == {}


def test_what_could_not_tell_a_mistake_from_none_is_no_proof(launcher):
    same = replace(PLAIN, name="a control without a mistake", must="differ")
    unstable = Training(lr_power=12)
    still = Training(lr_power=-12)
    trials = [same, replace(PLAIN, ranks=unstable, alone=unstable), replace(PLAIN, ranks=still, alone=still)]
    found = prove(trials, 2, 24, launcher).found
    assert verdict(found[0]) == (False, "DOES NOT DIFFER")
    assert found[2].difference <= PLAIN.allowed, "it is equal, and yet"
    for one in found[1:]:
        assert verdict(one)[0] is False and "PROVES NOTHING" in verdict(one)[1]


def test_three_ranks_train_the_same_too(launcher):
    chosen = [case for case in CASES if case.must != "shown" and case.dtype == "float64" and case.ranks != Training()]
    proof = prove([*chosen, *SAMPLER_TRIALS], 3, 8, launcher)
    assert proof.holds, shown.table(proof)


@pytest.mark.parametrize("mistake", ["sums gradients", "skips the broadcast", "has no sampler"])
def test_a_broken_equivalence_ends_with_1(warm, monkeypatch, mistake):
    monkeypatch.setattr(equivalence, "CASES", (PLAIN, replace(PLAIN, name=mistake, ranks=MISTAKES[mistake])))
    done = warm("equivalence")
    assert done.returncode == 1
    assert "BROKEN (2 ranks, 24 steps): 1 of 5 that must hold do not" in done.stdout
    assert f"\n{mistake}, float64  " in done.stdout


def test_a_wrong_sampler_ends_with_1(warm, monkeypatch):
    monkeypatch.setattr(equivalence, "CASES", ())
    monkeypatch.setattr(equivalence, "SAMPLER_TRIALS", (replace(SAMPLER_TRIALS[1], drop_last=True),))
    done = warm("equivalence")
    assert done.returncode == 1
    assert "x7 | x8`, expected `x1 x3 x5 | x2 x4 x6, then x7 x9 | x8 x1`" in done.stdout


def test_ranks_that_end_before_prove_nothing(warm, monkeypatch):
    monkeypatch.setattr(equivalence, "CASES", (PLAIN, replace(PLAIN, name="odd one", ranks=Training("no such"))))
    done = warm("equivalence")
    assert done.returncode == 1
    assert "NOT PROVEN" in done.stdout and "KeyError" in done.stdout
    assert done.stdout.count("NOT MEASURED: the ranks ended before") == 1 + len(SAMPLER_TRIALS)


def test_without_torch_nothing_is_measured(warm, monkeypatch):
    monkeypatch.setattr(host, "torch_build", lambda: None)
    done = warm("equivalence")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "error: equivalence: torch is not installed (make install)\n"


def test_a_folder_that_cannot_be_written_is_one_line(warm, monkeypatch):
    monkeypatch.setattr(equivalence, "CASES", ())
    (warm.folder / "plots").write_text("in the way")
    done = warm("equivalence")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: plots/equivalence: not a directory"


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("must", "dtype", "apart", "held"),
    [
        ("equal", "float64", 1e-9, True),
        ("equal", "float64", 1.1e-9, False),
        ("equal", "float32", 1e-5, True),
        ("equal", "float32", 1.1e-5, False),
        ("equal", "float64", float("nan"), False),
        ("differ", "float64", 1e-4, False),
        ("differ", "float64", 2e-4, True),
        ("differ", "float64", float("inf"), False),
        ("shown", "float64", 0.5, None),
    ],
)
def test_the_limit_of_each_verdict(must, dtype, apart, held):
    found = TrialResult(PairTrial("one", must, dtype=dtype), apart, FALLING, FALLING)
    assert verdict(found)[0] is held
    assert EquivalenceResult(2, 12, (found,)).holds is (held is not False)


def test_ranks_must_hold_the_same_bits():
    found = TrialResult(PairTrial("one", "equal", alone=None), 1e-16, FALLING)
    assert verdict(found) == (False, "BROKEN")


def test_what_is_not_tried_breaks_nothing_and_what_is_lost_does():
    assert EquivalenceResult(2, 12, (TrialResult(PLAIN, missing="needs two GPUs", tried=False),)).holds
    assert not EquivalenceResult(2, 12, (TrialResult(PLAIN, missing="the ranks ended before"),)).holds
    assert not EquivalenceResult(2, 12, (), "rank 1 was ended by SIGKILL").holds


def test_a_loss_falls_or_not():
    assert fell(FALLING)
    assert not fell(FALLING[::-1])
    assert not fell((1.0,) * 12)
    assert not fell((1.0, 1.5, 0.5)), "unstable"
    assert not fell((*FALLING, float("nan")))
    assert not fell((1.0,)) and not fell(())


def test_the_difference_is_relative_to_the_largest_element_of_a_tensor():
    reference = [torch.tensor([1e-30, 4.0]), torch.tensor([0.5])]
    assert difference([torch.tensor([2e-30, 4.0]), torch.tensor([0.5])], reference) < 1e-29
    assert difference([torch.tensor([1e-30, 5.0]), torch.tensor([0.5])], reference) == 0.25
    assert difference([torch.tensor([1e-30, 4.0]), torch.tensor([1.0])], reference) == 1.0
    assert torch.tensor(difference([torch.tensor([float("nan"), 4.0]), torch.tensor([0.5])], reference)).isnan()


# ── examples ─────────────────────────────────────────────────────────────────────────────────────
def test_ranks_read_every_example_once_unless_the_sampler_pads():
    for count, ranks, drop_last in ((8, 2, False), (9, 2, False), (9, 2, True), (12, 4, False), (10, 4, True)):
        read = [small_model.indices(count, rank, ranks, 3, drop_last) for rank in range(ranks)]
        seen = [index for own in read for batch in own for index in batch]
        padding = [] if drop_last else list(range(-count % ranks))
        kept = range(count - count % ranks if drop_last else count)
        assert sorted(seen) == sorted([*kept, *padding])


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_shares_are_equal_and_epochs_whole(ranks):
    assert small_model.BATCH % (2 * ranks) == 0
    assert small_model.EXAMPLES % (small_model.BATCH * ranks) == 0


def test_names_are_distinct_and_controls_exist():
    keys = [(case.name, case.dtype) for case in CASES] + [(reading.name, "") for reading in SAMPLER_TRIALS]
    assert len(set(keys)) == len(keys)
    assert {case.must for case in CASES} == {"equal", "differ", "shown"}
    assert all(case.topic for case in CASES)


def test_the_table_says_what_was_expected():
    wrong = TrialResult(SamplerTrial("r", 2, "x1 | x2"), read="x1 | x1")
    proof = EquivalenceResult(2, 4, (wrong, TrialResult(PLAIN, missing="not tried: needs two GPUs", tried=False)))
    assert "`x1 | x1`, expected `x1 | x2`" in shown.readings(proof)
    assert "BROKEN" in shown.headline(proof) and "not tried: needs two GPUs" in shown.table(proof)
