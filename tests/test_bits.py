"""Results with the same bits are called identical, and one flipped bit is found, in every variation."""

import json
import re

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


def test_distances_are_numbers_of_representable_floats():
    values = np.array([1.0, 1.0, -1e-45, 0.0], np.float32)
    others = np.array([np.nextafter(np.float32(1), np.float32(2)), 1.0, 1e-45, -0.0], np.float32)
    assert analysis.distance_ulp(values.view("u4"), others.view("u4")).tolist() == [1, 0, 2, 0]
