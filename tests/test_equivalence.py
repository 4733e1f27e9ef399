"""K ranks train the same model as one process where they must, and every mistake that breaks this is noticed.

The trainings are real: ranks are processes that join gloo. Each mistake is a trial whose ranks make it.
"""

from dataclasses import replace

import pytest
import torch

from collbench.machine import host
from collbench.packages.training.catalog.equivalence import TRIALS, Proof, Training, Trial, TrialResult, verdict
from collbench.packages.training.cli import equivalence
from collbench.packages.training.cli.equivalence import prove
from collbench.packages.training.rank.equivalence import difference

PLAIN = TRIALS[0]
AVERAGED = next(trial for trial in TRIALS if trial.ranks.average and trial.ranks.optimizer == "momentum")
FALLING = tuple(1 / (1 + step) for step in range(12))


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


def test_the_difference_is_relative_to_the_largest_element_of_a_tensor():
    reference = [torch.tensor([1e-30, 4.0]), torch.tensor([0.5])]
    assert difference([torch.tensor([2e-30, 4.0]), torch.tensor([0.5])], reference) < 1e-29
    assert difference([torch.tensor([1e-30, 5.0]), torch.tensor([0.5])], reference) == 0.25
    assert difference([torch.tensor([1e-30, 4.0]), torch.tensor([1.0])], reference) == 1.0
    assert torch.tensor(difference([torch.tensor([float("nan"), 4.0]), torch.tensor([0.5])], reference)).isnan()


# ── what a sampler gives each rank ───────────────────────────────────────────────────────────────
def test_the_table_of_a_sampler_says_what_is_read_twice_or_not_at_all(warm):
    padded = warm("equivalence", "--examples", "9")
    assert "x7 x9" in padded.stdout and "x8 x1" in padded.stdout and "read twice: x1" in padded.stdout
    assert "not read: x9" in warm("equivalence", "--examples", "9", "--drop-last").stdout
    few = warm("equivalence", "--examples", "1")
    assert (few.returncode, few.stderr.strip()) == (2, "error: --examples 1: fewer than 2 ranks")
