"""`advise` answers for stated and measured links, and in one line what it lacks; its code makes torch do the plan."""

import ast
import inspect
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from bench.training import encoding
from torch.nn.parallel import DistributedDataParallel

import training_fixtures
from bench.advise import advisor, planner
from bench.model.conclusions import Summary
from bench.model.errors import ConfigError
from bench.model.records import Case
from bench.model.training import REFERENCE, Strategy
from bench.model.units import format_seconds
from bench.planning import link_model
from bench.planning.link_model import AllReduceCost
from bench.planning.ready_times import ReadyTimes, recorded
from bench.report import advice
from bench.stats import intervals
from bench.store import folders
from conftest import ROOT

BEFORE = str(ROOT / "docs/example/before")
MIB = 2**20


def summary(
    size: int, time_s: float, op: str = "all_reduce", ranks: int = 2, dtype: str = "float32", **more
) -> Summary:
    return Summary(Case(op, "gloo", ranks, dtype, size, **more), 1, 10, intervals.without_interval(time_s))


def times(known: link_model.LinkModel, *sizes: float) -> list[float]:
    return known.cost(np.array(sizes)).tolist()


# ── the link ─────────────────────────────────────────────────────────────────────────────────────
def test_a_stated_link():
    known = link_model.stated(" 2ms + 8 Gbit/s ")
    assert known.cost == AllReduceCost.of_link(2e-3, 1e9) and known.cpu is None


@pytest.mark.parametrize("text", ["2ms", "2ms+1GB", "1GB/s+2ms", "2ms+0GB/s", "+"])
def test_a_link_that_is_none(text):
    with pytest.raises(ConfigError, match=re.escape(f"--link {text}: ")):
        link_model.stated(text)


def test_a_measured_link_is_its_all_reduces():
    found = [summary(1000, 1e-3), summary(3000, 2e-3), summary(1000, 9.0, op="broadcast"), summary(3000, 9.0, ranks=4)]
    known = link_model.measured(found, "run", "float32", world_size=2)
    assert times(known, 1000, 2000, 3000) == pytest.approx([1e-3, 1.5e-3, 2e-3])
    assert known.largest == 3000 and known.cpu is True and known.notes == (link_model.ISOLATED,)
    with pytest.raises(ConfigError, match="--backend gloo --world-size 2; --backend gloo --world-size 4"):
        link_model.measured(found, "run", "float32")
    with pytest.raises(ConfigError, match="one size"):
        link_model.measured(found, "run", "float32", world_size=4)
    with pytest.raises(ConfigError, match="no such"):
        link_model.measured(found, "run", "float32", backend="nccl")
    with pytest.raises(ConfigError, match="no all_reduce"):
        link_model.measured(found[2:3], "run", "float32")


def test_of_variants_a_pipelined_one_and_another_dtype_only_if_need_be():
    usual = [summary(1000, 1e-3), summary(3000, 2e-3)]
    pipelined = [summary(size, 5.0, metric="pipelined", depth=20) for size in (1000, 3000)]
    half = [summary(size, 7.0, dtype="float16") for size in (1000, 3000)]
    known = link_model.measured([*half, *usual, *pipelined], "run", "float32")
    assert times(known, 1000) == pytest.approx([5.0]) and not known.notes
    alone = link_model.measured([*half, *usual], "run", "float16")
    assert times(alone, 1000) == pytest.approx([7.0]) and alone.notes == (link_model.ISOLATED,)
    other = link_model.measured([*pipelined], "run", "bfloat16")
    assert other.notes == ("The link was measured with float32, not with bfloat16.",)
    placed = [summary(s, t, placement=p) for p, t in (("out", 3.0), ("in", 2.0)) for s in (1000, 3000)]
    assert times(link_model.measured(placed, "run", "float32"), 1000) == pytest.approx([2.0])


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────
TINY = ("--model", "tiny", "--backward", "60ms")


def cells(text: str, start: str) -> list[str]:
    """The cells of the first row of a table that begins with `start`."""
    return next(re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.startswith(start))


def test_the_answer_has_the_planners_numbers(warm):
    done = warm("advise", *TINY, "--link", "2ms+1GB/s")
    assert done.returncode == 0, done.stderr
    # 27 MB in one call; the default's second bucket has 25.2 MB; the embedding alone takes 2 + 1.0 ms.
    assert cells(done.stdout, "bucket_cap_mb=25")[3] == "29.2 ms"
    assert cells(done.stdout, "torch's default")[3] == "27.2 ms"
    best = float(cells(done.stdout, "best if all is as assumed")[3].split()[0])
    bound = float(cells(done.stdout, "lower bound")[1].split()[0])  # it has no buckets
    assert best >= bound > 3.0
    assert "the last gradient is ready after 60.0 ms" in done.stdout
    assert "lower bounds" in done.stdout and "embedding.weight" in done.stdout
    regrets = [cells(done.stdout, name)[4] for name in ("plan with the least", "torch's default")]
    assert regrets[0].endswith("ms") and regrets[0] != regrets[1]


def test_what_is_not_worth_a_setting_is_not_advised(warm):
    done = warm("advise", *TINY, "--link", "1us+1000GB/s")
    assert "Leave torch's default" in done.stdout and "model = DistributedDataParallel(model)\n" in done.stdout
    assert "Not communication-bound" in done.stdout
    slow = warm("advise", *TINY, "--link", "2ms+0.1GB/s")
    assert "Communication-bound: the bytes alone take" in slow.stdout


def test_a_list_of_gradients_is_a_model(warm):
    (warm.folder / "sizes.csv").write_text("name,elements\nlayers.0.weight,1000000\nlayers.1.weight,3000000\n")
    done = warm(
        "advise", "--gradients", "sizes.csv", "--backward", "40ms", "--link", "1ms+1GB/s", "--dtype", "bfloat16"
    )
    assert done.returncode == 0, done.stderr
    assert "2 gradients, 7.63 MiB" in done.stdout and "layers.1.weight" in done.stdout
    (warm.folder / "ready.csv").write_text("name,elements,ready_ms\na,10,40\nb,20,15.5\n")
    assert "ready after 40.0 ms" in warm("advise", "--gradients", "ready.csv", "--link", "1ms+1GB/s").stdout


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("size\n3\n", (), "the first line must be name,elements"),
        ("", (), "it is empty"),
        ("name,elements\n", (), "no gradient is listed"),
        ("name,elements\na,1\nb,x\n", (), "sizes.csv:3: elements: x is no number"),
        ("name,elements\na,1.5\n", (), "sizes.csv:2: elements: 1.5 is no whole number"),
        ("name,elements\na,1\n", (), "say how long backward takes"),
        ("name,elements,ready_ms\na,1,3\n", ("--backward", "3ms"), "leave out --backward"),
        ("name,elements,ready_ms\na,1,-3\n", (), "must not be negative"),
        (None, (), "No such file"),
    ],
)
def test_a_list_that_is_none_is_one_line(warm, text, arguments, said):
    if text is not None:
        (warm.folder / "sizes.csv").write_text(text)
    done = warm("advise", "--gradients", "sizes.csv", *LINK, *arguments)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_measured_run_is_a_link(warm):
    done = warm(
        "advise", "--model", "nano", "--backward", "60ms", "--curve", BEFORE, "--world-size", "2", "--dtype", "bfloat16"
    )
    assert done.returncode == 0, done.stderr
    assert "gloo, 2 ranks, 9 sizes from 1 KiB to 64 MiB" in done.stdout
    assert "measured with float32, not with bfloat16" in done.stdout and "isolated calls" in done.stdout


EMULATED = replace(training_fixtures.SCENARIO, link=training_fixtures.LINK)


def kept(folder, *facts):
    """A run of the training benchmark on disk, with these facts."""
    plan = training_fixtures.run().plan
    plan = replace(plan, order=(replace(plan.order[0], scenario=EMULATED),))
    path = folders.create(folder / "results", plan, b"", {"status": "complete"})
    (path / "samples.jsonl").write_bytes(b"".join(encoding.fact_to_line(fact) + b"\n" for fact in facts))
    return path.name


def test_a_run_of_the_gradient_benchmark_has_both(warm):
    """The step without synchronisation has the ready times, the scenario has the link; another link may be stated."""
    step = training_fixtures.timeline(Strategy(REFERENCE), scenario=EMULATED)
    name = kept(warm.folder, training_fixtures.timeline(Strategy("flat"), scenario=EMULATED), step)
    own = warm("advise", "--from", name)
    assert own.returncode == 0, own.stderr
    link, profile = training_fixtures.LINK, ReadyTimes.of_shape(recorded(step))
    cost = AllReduceCost.of_link(link.latency_s, link.bytes_per_s)
    least = planner.exposed(profile, planner.optimal(profile, cost), cost)
    assert cells(own.stdout, "best if all is as assumed")[3] == format_seconds(least)
    assert "as emulated" in own.stdout and step.gradients[0].name in own.stdout
    other = warm("advise", "--from", name, *LINK)
    assert "a link of 2.00 ms and 1.00 GB/s" in other.stdout
    absent = warm("advise", "--from", name, "--scenario", "nothing")
    assert absent.returncode == 2 and step.scenario in absent.stderr and absent.stderr.count("\n") == 1


LINK = ("--link", "2ms+1GB/s")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (LINK, "name a model"),
        (TINY, "say what the link is"),
        (("--model", "tiny", *LINK), "say how long backward takes"),
        ((*TINY, "--from", "x", *LINK), "name a model"),
        ((*TINY, "--gradients", "x.csv", *LINK), "name a model"),
        ((*TINY, *LINK, "--curve", "x"), "give the link once"),
        ((*TINY, *LINK, "--backend", "gloo"), "--backend and --world-size choose"),
        ((*TINY, *LINK, "--world-size", "4"), "--backend and --world-size choose"),
        (("--model", "tny", "--backward", "60ms", *LINK), "did you mean tiny?"),
        (("--model", "tiny", *LINK, "--backward", "60 lightyears"), "--backward: unknown unit"),
        (("--model", "tiny", *LINK, "--backward", "0ms"), "not more than 0"),
        ((*TINY, *LINK, "--uncertainty", "2"), "--uncertainty"),
        ((*TINY, "--link", "fast"), "write latency and rate"),
        ((*TINY, "--curve", "nowhere"), "no such run"),
        ((*TINY, "--curve", BEFORE), "choose with --backend"),
        ((*TINY, "--scenario", "x", *LINK), "--scenario chooses"),
        (("--from", "nowhere"), "no such run"),
        (("--from", "x", "--backward", "60ms", *LINK), "--backward is for --model"),
    ],
)
def test_mistakes_are_one_line(warm, arguments, said):
    done = warm("advise", *arguments)
    assert done.returncode == 2 and not done.stdout
    assert said in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


# ── the code to paste ────────────────────────────────────────────────────────────────────────────
HEAD = """
import sys
import torch, torch.distributed as dist
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
"""
ADVISED = """
torch.manual_seed(1)
widths = [64, 96, 32, 128, 64, 160, 48, 64, 200, 64, 32, 64, 64]
model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:])))
{code}
for _ in range(3):
    model(torch.ones(1, 64)).sum().backward()
assert_advised(model)
print("as advised")
"""
LISTS = "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel).parameters


def twelve() -> tuple[ReadyTimes, list[str]]:
    """Of the model in ADVISED."""
    widths = [64, 96, 32, 128, 64, 160, 48, 64, 200, 64, 32, 64, 64]
    model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(widths)))
    parameters = list(model.parameters())
    ready = [1e-4 * (len(parameters) - number) for number in range(len(parameters))]
    return ReadyTimes.of([4 * one.numel() for one in parameters], ready), [name for name, _ in model.named_parameters()]


def test_two_ranks_make_the_buckets_of_the_pasted_code(tmp_path):
    """Of a cap, of torch's default, and of a list of buckets, which torch takes from 2.13 on."""
    profile, _ = twelve()
    cost = AllReduceCost.of_link(1e-4, 2e8)
    found = advisor.advise(profile, cost)
    assert len(found.plan.buckets) > 3 and len(set(found.plan.buckets)) > 1
    ways = ["cap", "default", "plan"] if LISTS else ["cap", "default"]
    codes = [advice.ddp_code(advisor.explain(profile, cost, replace(found, advised=way), 4)) for way in ways]
    script = HEAD + "".join(ADVISED.format(code=code) for code in codes) + "dist.destroy_process_group()\n"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in ranks:
            out, err = process.communicate(timeout=300)
            assert (process.returncode, out) == (0, "as advised\n" * len(ways)), err
    finally:
        for process in ranks:
            process.kill()


def test_every_framework_is_told():
    profile, names = twelve()
    cost = AllReduceCost.of_link(1e-4, 2e8)
    explained = advisor.explain(profile, cost, replace(advisor.advise(profile, cost), advised="cap"), 4)
    text = advice.what_to_type(explained, [f"layers.{name}" for name in names])
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        ast.parse(block)
    (settings,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    elements = json.loads(settings)["zero_optimization"]["reduce_bucket_size"]
    assert elements == max(explained.advice.cap.buckets) / 4 and f"--ddp-bucket-size {elements}" in text
    assert "fully_shard(blocks[i : i + " in text and "DistributedDataParallelKwargs(bucket_cap_mb=1)" in text


def test_a_long_plan_is_cut_in_the_table_and_whole_in_the_code():
    profile = ReadyTimes.of([MIB] * 40, [float(40 - number) for number in range(40)])
    cost = AllReduceCost.of_link(0, 1e6)
    link = link_model.LinkModel(cost, "a link", largest=MIB // 2)
    found = replace(advisor.advise(profile, cost), advised="plan")
    explained = advisor.explain(profile, cost, found, 4)
    text = advice.document(explained, link, "forty", [f"weight{number}" for number in range(40)])
    assert len(found.plan.buckets) > advice.MOST_BUCKETS
    assert f"{len(found.plan.buckets) - advice.MOST_BUCKETS} more" in text
    (caps,) = re.findall(r"bucket_cap_mb_list=(\[.*?\])", text, re.DOTALL)
    assert [mib * MIB for mib in ast.literal_eval(caps)] == list(found.plan.buckets)
    assert "so has a bucket of the plan" in text
