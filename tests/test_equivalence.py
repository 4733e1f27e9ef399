"""K ranks train the same model as one process where they must, and every mistake that breaks this is noticed.

The trainings are real: ranks are processes that join gloo. Each mistake is a trial whose ranks make it.
"""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from collbench.machine import host
from collbench.packages.training.catalog.equivalence import TRIALS, Proof, Training, Trial, TrialResult, fell, verdict
from collbench.packages.training.cli import equivalence
from collbench.packages.training.cli.equivalence import prove
from collbench.packages.training.rank.equivalence import difference
from collbench.packages.training.report import equivalence as report
from collbench.report.markdown import written

PLAIN = TRIALS[0]
AVERAGED = next(trial for trial in TRIALS if trial.ranks.average and trial.ranks.optimizer == "momentum")
FALLING = tuple(1 / (1 + step) for step in range(12))
# Mistakes of ranks that must train the model of one process. At K = 2 a loss would show none of them.
MISTAKES = {
    "sums gradients": Training(gradients="sum"),
    "synchronises nothing": Training(gradients="apart"),
    "skips the broadcast": Training(start="own"),
    "has no sampler": Training(sampler="none"),
    "reads in another order": Training(sampler="shuffled"),
    "scales the learning rate": Training(lr_power=1),
    "sums the loss without making up for it": Training(loss="sum", lr_power=-1),
    "does not divide by the micro-batches": Training(accumulate=2, micro="undivided"),
    "has another optimizer": Training("momentum"),
    "divides by K twice": Training(gradients="mean", lr_power=-1),
}


@pytest.mark.slow
def test_everything_holds_on_two_ranks(warm):
    done = warm("equivalence", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "HOLDS (2 ranks, 24 steps)" in done.stdout
    document = (warm.folder / "plots/equivalence/equivalence.md").read_text()
    for trial in TRIALS:
        assert f"| {trial.name}, {trial.dtype} " in document
    if torch.cuda.device_count() < 2:
        assert "not tried: needs two GPUs" in document
    assert (warm.folder / "plots/equivalence/losses.png").stat().st_size > 10_000


def test_every_mistake_of_the_ranks_is_noticed(launcher):
    wrong = [replace(PLAIN, name=name, ranks=ranks) for name, ranks in MISTAKES.items()]
    wrong += [
        replace(PLAIN, name="float32", dtype="float32", ranks=MISTAKES["sums gradients"]),
        Trial("padding in place of drop_last", "equal", Training(odd=True), Training(odd=True, sampler="drop_last")),
        Trial("padding counted once", "equal", Training(odd=True), Training(odd=True, sampler="none")),
        Trial("apart", "equal", Training(start="own"), None),
        Trial("its own share", "equal", Training(normalised=True), Training(normalised=True)),
        replace(AVERAGED, name="averages too rarely", ranks=replace(AVERAGED.ranks, average=2)),
        replace(AVERAGED, name="never averages", ranks=replace(AVERAGED.ranks, average=0, gradients="apart")),
        replace(AVERAGED, name="another momentum", alone=Training("nesterov")),
    ]
    # Trials that prove nothing: equal trainings as a control, an unstable training, and a training that does not move.
    useless = [replace(PLAIN, must="differ")]
    useless += [replace(PLAIN, ranks=ranks, alone=ranks) for ranks in (Training(lr_power=12), Training(lr_power=-12))]
    proof = prove([*wrong, *useless], 2, 12, launcher)
    assert proof.failure is None
    judged = {result.trial.name: verdict(result) for result in proof.results[: len(wrong)]}
    assert {name: found for name, found in judged.items() if found != (False, "BROKEN")} == {}
    same, unstable, still = proof.results[len(wrong) :]
    assert verdict(same) == (False, "DOES NOT DIFFER")
    assert still.difference <= 1e-9, "it is equal, and yet"
    for result in (unstable, still):
        assert verdict(result)[0] is False and "PROVES NOTHING" in verdict(result)[1]


@pytest.mark.slow
def test_three_ranks_train_the_same_too(launcher):
    """Some ranks average parameters; their momentum never leaves the rank."""
    chosen = [t for t in TRIALS if t.must != "shown" and t.dtype == "float64" and t.ranks != Training()]
    proof = prove(chosen, 3, 8, launcher)
    assert proof.failure is None
    assert [result for result in proof.results if verdict(result)[0] is False] == []


def test_a_broken_equivalence_ends_with_1(warm, monkeypatch):
    mistake = replace(AVERAGED, name="averages too rarely", ranks=replace(AVERAGED.ranks, average=2))
    monkeypatch.setattr(equivalence, "TRIALS", (PLAIN, mistake))
    done = warm("equivalence")
    assert done.returncode == 1
    assert "BROKEN (2 ranks, 24 steps): 1 of 2 that must hold do not" in done.stdout
    assert "\naverages too rarely, float64  " in done.stdout


def test_a_trial_that_raises_ends_the_proof(warm, monkeypatch):
    odd = replace(PLAIN, name="odd one", ranks=Training("no such"))
    monkeypatch.setattr(equivalence, "TRIALS", (PLAIN, odd, replace(PLAIN, name="after it")))
    done = warm("equivalence")
    assert done.returncode == 1
    output = " ".join(done.stdout.split())
    assert "NOT PROVEN (2 ranks, 24 steps): " in output and "KeyError" in output
    assert output.count(" holds ") == 1 and output.count("NOT MEASURED") == 2


def test_an_obstacle_is_reported_in_one_line(warm, monkeypatch):
    monkeypatch.setattr(equivalence, "TRIALS", ())
    (warm.folder / "plots").write_text("in the way")
    done = warm("equivalence")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: plots/equivalence: not a directory"
    monkeypatch.setattr(host, "torch_build", lambda: None)
    done = warm("equivalence")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: equivalence: torch is not installed: pip install torch, or make install")


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
    result = TrialResult(Trial("trial", must, dtype=dtype), apart, FALLING, FALLING)
    assert verdict(result)[0] is held
    assert Proof(2, 12, (result,)).holds is (held is not False)


def test_ranks_must_hold_the_same_bits_and_an_untried_trial_breaks_nothing_and_a_lost_trial_does():
    result = TrialResult(Trial("trial", "equal", alone=None), 1e-16, FALLING)
    assert verdict(result) == (False, "BROKEN")
    assert "0 (same bits)" in written(report.tables(Proof(2, 12, (result,))))
    assert Proof(2, 12, (TrialResult(PLAIN, untried="not tried: needs two GPUs"),)).holds
    for trial in (PLAIN, replace(PLAIN, must="shown")):
        assert verdict(TrialResult(trial))[1].startswith("NOT MEASURED")
        assert not Proof(2, 12, (TrialResult(trial),)).holds
    assert not Proof(2, 12, (), "rank 1 was ended by SIGKILL").holds


def test_a_loss_falls_or_not():
    assert fell(FALLING)
    for other in (FALLING[::-1], (1.0,) * 12, (1.0, 1.5, 0.5), (*FALLING, float("nan")), (1.0,)):
        assert not fell(other)


def test_the_difference_is_relative_to_the_largest_element_of_a_tensor():
    reference = [torch.tensor([1e-30, 4.0]), torch.tensor([0.5])]
    assert difference([torch.tensor([2e-30, 4.0]), torch.tensor([0.5])], reference) < 1e-29
    assert difference([torch.tensor([1e-30, 5.0]), torch.tensor([0.5])], reference) == 0.25
    assert difference([torch.tensor([1e-30, 4.0]), torch.tensor([1.0])], reference) == 1.0
    assert torch.tensor(difference([torch.tensor([float("nan"), 4.0]), torch.tensor([0.5])], reference)).isnan()


# ── what a sampler gives each rank ───────────────────────────────────────────────────────────────
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("examples", "ranks", "batch"), [(9, 2, 3), (8, 2, 2), (7, 3, 2), (4, 4, 5), (13, 4, 1)])
def test_the_examples_of_each_rank_are_those_of_torchs_sampler(examples, ranks, batch, drop_last):
    theirs = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(examples), ranks, rank, shuffle=False, drop_last=drop_last)
        theirs.append([part.tolist() for part in DataLoader(range(examples), batch, sampler=sampler)])
    cells = [" ".join(f"x{number + 1}" for number in part) for step in zip(*theirs, strict=True) for part in step]
    (given, _) = report.sampler(examples, ranks, batch, drop_last)
    assert [cell for row in given.rows for cell in row[1:]] == cells


def test_the_table_of_a_sampler_says_what_is_read_twice_or_not_at_all(warm):
    padded = warm("equivalence", "--examples", "9")
    assert "x7 x9" in padded.stdout and "x8 x1" in padded.stdout and "read twice: x1" in padded.stdout
    assert "not read: x9" in warm("equivalence", "--examples", "9", "--drop-last").stdout
    few = warm("equivalence", "--examples", "1")
    assert (few.returncode, few.stderr.strip()) == (2, "error: --examples 1: fewer than 2 ranks")
