"""Results with the same bits are called identical, and one flipped bit is found, in every variation."""

import copy
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from collbench.config import models
from collbench.model.records import Machine
from collbench.packages.bits import analyze as analysis
from collbench.packages.bits import cli, planning, report
from collbench.packages.bits.conclusions import Variation
from collbench.planning import plan as plans
from collbench.report.markdown import written

CONFIG = """
backends: [gloo]
world_sizes: [2]
launches: 2
operations: [all_reduce, reduce_scatter, all_gather]
dtypes: [float32]
sizes: [4KiB, 64KiB]
alignments: [aligned, unaligned]
seed: 7
"""
# A message that is cut differently has another sum on three ranks: its first and its last segment are added in other
# orders.
CUT = CONFIG.replace("[2]", "[3]").replace("[all_reduce, reduce_scatter, all_gather]", "[all_reduce]")


def made(launcher, folder, text):
    """Return the plan of a configuration and the facts of real ranks, which write raw results into a folder."""
    machine = Machine("h", 4, 2**34, 2**25, 0, {"nccl": "no GPU", "mpi": "not here"})
    plan = plans.expand(models.parse(text.encode(), "x.yaml", [], "x"), machine, 7)
    return plan, cli.called(plan, launcher, folder, print)


@pytest.fixture(scope="module")
def kept(launcher, tmp_path_factory):
    return made(launcher, tmp_path_factory.mktemp("bits"), CONFIG)


def test_equal_results_are_identical_in_every_variation(kept):
    plan, facts = kept
    rows = analysis.compared(plan, [facts, facts])
    assert {row.variation for row in rows} == {*Variation, "alignment unaligned"}
    assert all(row.identical and not row.wrong for row in rows)
    assert sum(comparison.elements for row in rows for comparison in row.comparisons) > 100_000
    assert "all of" in report.headline(rows)


def flipped(facts, file, launch, number, rank, call, dice):
    """Return the facts with another file for one result, in which one bit is flipped."""
    facts = copy.deepcopy(facts)
    files = facts[launch][number][rank]["files"]
    data = bytearray(Path(files[call]).read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    file.write_bytes(data)
    files[call] = str(file)
    return facts


@pytest.mark.parametrize("wanted", [*Variation, "alignment unaligned"])
def test_one_flipped_bit_is_found_in_every_variation(kept, tmp_path, wanted):
    """In eight trials per variation, the bit, its element, its rank and its case are drawn at random."""
    plan, facts = kept
    dice = random.Random(3)
    for _ in range(8):
        number = dice.choice(_numbers(plan, wanted))
        launch = 1 if wanted == Variation.LAUNCH else 0
        if launch:  # each launch has its own order of cases
            number = plan.order[1].cases.index(plan.order[0].cases[number])
        spoilt = flipped(facts, tmp_path / "spoilt", launch, number, dice.randrange(2), wanted == Variation.AGAIN, dice)
        rows = analysis.compared(plan, [facts, spoilt] if wanted == Variation.SIDE else [spoilt])
        (changed,) = [row for row in rows if row.variation == wanted and not row.identical]
        assert sum(comparison.differing for comparison in changed.comparisons) == 1


def _numbers(plan, wanted):
    """Return the numbers of the first launch's cases in which a flipped bit concerns a variation."""
    cases = list(enumerate(plan.order[0].cases))
    if wanted == Variation.RANKS:
        cases = [(number, case) for number, case in cases if case.op != "reduce_scatter"]
    if wanted == Variation.LARGER:  # the larger message contains the smaller message
        cases = [(n, case) for n, case in cases if case.size_bytes == 4096 and case.alignment == "aligned"]
    if wanted == "alignment unaligned":
        cases = [(number, case) for number, case in cases if case.alignment == "unaligned"]
    return [number for number, _ in cases]


def test_messages_that_are_cut_differently_have_other_sums(launcher, tmp_path):
    plan, facts = made(launcher, tmp_path, CUT)
    rows = analysis.compared(plan, [facts])
    (larger,) = [row for row in rows if row.variation == Variation.LARGER]
    (comparison,) = larger.comparisons
    assert 0 < comparison.share < 1 and comparison.furthest_ulp >= 1 and sum(comparison.nearer) > 0
    assert all(row.identical for row in rows if row.variation != Variation.LARGER)
    assert "ULP" in written(report.results(rows)) and report.sentences(rows)


def test_a_planted_bit_on_a_real_rank_is_found(warm):
    text = CONFIG + "faults: [{do: corrupt, rank: 1, iteration: 77, launch: 2, size: 64KiB}]\n"
    done = warm("bits", warm.config(text), "--require", "fresh launch")
    assert done.returncode == 1 and "not identical: all_reduce float32, 2 ranks, fresh launch" in done.stderr, (
        done.stderr
    )


def test_the_verb_prints_a_table_and_writes_what_it_found(warm):
    text = CUT.replace("[4KiB, 64KiB]", "[4KiB, 16KiB]").replace("alignments: [aligned, unaligned]\n", "")
    done = warm("bits", warm.config(text), "--require", "all")
    assert done.returncode == 1 and "larger message" in done.stdout, done.stderr
    (folder,) = (warm.folder / "plots").iterdir()
    assert {path.name for path in folder.iterdir()} == {"bits.md", "bits.json"}
    assert json.loads((folder / "bits.json").read_text())["rows"]


def test_another_environment_is_another_side(warm):
    text = CONFIG.replace("[4KiB, 64KiB]", "[4KiB]").replace("alignments: [aligned, unaligned]\n", "")
    done = warm("bits", warm.config(text), "--b", "OMP_NUM_THREADS=2", "--require", "side B")
    assert done.returncode == 0 and "side B" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.yaml", "--require", "nothing"], "not a variation of this run; allowed: call again"),
        (["x.yaml", "--b", "1"], "=VALUE"),
        (["x.yaml", "--b", "sizes=[4KiB]"], "the same settings"),
        (["x.yaml", "--set", "operations=[barrier]", "--set", "sizes=[4KiB]"], "no case has bits"),
        (["x.yaml", "--set", "sizes=[4GiB]"], "GiB of (disk|memory)"),  # of memory if less than 10 GiB are free
    ],
)
def test_mistakes_are_one_line(warm, arguments, message):
    warm.config(CONFIG.replace("[4KiB, 64KiB]", "[4KiB]"), "x.yaml")
    done = warm("bits", *arguments)
    assert done.returncode in {2, 3} and re.search(message, done.stderr), done.stderr


# ── the data ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_the_reference_rounds_inputs_as_ranks_do(dtype):
    case = analysis.Case("all_reduce", "gloo", 2, dtype, 4096)
    drawn = [np.random.default_rng([5, rank, 0]).standard_normal(10_000) for rank in (0, 1)]
    wide = [torch.from_numpy(data).to(torch.float64 if dtype == "float64" else torch.float32) for data in drawn]
    first, second = (data.to(getattr(torch, dtype)).to(torch.float64).numpy() for data in wide)
    assert np.array_equal(planning.sent(case, 5, 1, 10_000), second)
    assert np.array_equal(planning.reference(case, 5, 0, 10_000), first.astype(np.longdouble) + second)


def test_a_smaller_message_is_the_beginning_of_a_larger_one():
    smaller, larger = (planning.values("float32", 3, 1, 0, count) for count in (1000, 4000))
    assert np.array_equal(smaller, larger[:1000]) and len(np.unique(larger)) > 3900


def test_distances_are_numbers_of_representable_floats():
    values = np.array([1.0, 1.0, -1e-45, 0.0], np.float32)
    others = np.array([np.nextafter(np.float32(1), np.float32(2)), 1.0, 1e-45, -0.0], np.float32)
    assert analysis.distance_ulp(values.view("u4"), others.view("u4")).tolist() == [1, 0, 2, 0]
