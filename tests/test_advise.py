"""`advise` answers for stated and measured links, and in one line what it lacks; its code makes torch do the plan."""

import ast
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import training_fixtures
from bench import intervals, store
from bench.conclusions import Summary
from bench.errors import ConfigError
from bench.records import Case
from bench.training import encoding, link_model, planner
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.encoding import CODEC as TRAINING_CODEC
from bench.training.ready_times import ReadyTimes, recorded
from bench.training.records import REFERENCE, Strategy
from bench.training.report import advice
from bench.units import format_seconds
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
    assert known.largest == 3000 and known.cpu is True and not known.notes
    with pytest.raises(ConfigError, match="--backend gloo --world-size 2; --backend gloo --world-size 4"):
        link_model.measured(found, "run", "float32")
    with pytest.raises(ConfigError, match="one size"):
        link_model.measured(found, "run", "float32", world_size=4)
    with pytest.raises(ConfigError, match="no such"):
        link_model.measured(found, "run", "float32", backend="nccl")
    with pytest.raises(ConfigError, match="no all_reduce"):
        link_model.measured(found[2:3], "run", "float32")


def test_of_variants_the_usual_one_and_another_dtype_only_if_need_be():
    usual = [summary(1000, 1e-3), summary(3000, 2e-3)]
    others = [summary(size, 5.0, metric="pipelined", depth=20) for size in (1000, 3000)]
    half = [summary(size, 7.0, dtype="float16") for size in (1000, 3000)]
    known = link_model.measured([*others, *half, *usual], "run", "float32")
    assert times(known, 1000) == pytest.approx([1e-3])
    assert times(link_model.measured([*half, *usual], "run", "float16"), 1000) == pytest.approx([7.0])
    other = link_model.measured([*others], "run", "bfloat16")
    assert other.notes[0].startswith("The link was measured with float32, not with bfloat16")
    assert "metric=pipelined" in other.notes[1]
    placed = [summary(s, t, placement=p) for p, t in (("out", 3.0), ("in", 2.0)) for s in (1000, 3000)]
    assert times(link_model.measured(placed, "run", "float32"), 1000) == pytest.approx([2.0])


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────
def test_the_answer_has_the_planners_numbers(warm):
    done = warm("advise", "--model", "tiny", "--backward", "60ms", "--link", "2ms+1GB/s")
    assert done.returncode == 0, done.stderr
    exposed = dict(
        re.findall(r"^\| (best plan|torch's default|lower bound|bucket_cap_mb=25).* ([\d.]+ ms) \|$", done.stdout, re.M)
    )
    # 27 MB in one call; the default's second bucket has 25.2 MB; the embedding alone takes 2 + 1.0 ms.
    assert exposed["bucket_cap_mb=25"] == "29.2 ms" and exposed["torch's default"] == "27.2 ms"
    assert float(exposed["best plan"].split()[0]) >= float(exposed["lower bound"].split()[0]) > 3.0
    assert "lower bounds" in done.stdout and "embedding.weight" in done.stdout


def test_a_measured_run_is_a_link(warm):
    done = warm("advise", "--model", "nano", "--curve", BEFORE, "--world-size", "2", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    assert "gloo, 2 ranks, 9 sizes from 1 KiB to 64 MiB" in done.stdout
    assert "measured with float32, not with bfloat16" in done.stdout


EMULATED = replace(training_fixtures.SCENARIO, link=training_fixtures.LINK)


def kept(folder, *facts):
    """A run of the training benchmark on disk, with these facts."""
    plan = training_fixtures.run().plan
    plan = replace(plan, order=(replace(plan.order[0], scenario=EMULATED),))
    path = store.create(folder / "results", TRAINING_CODEC, plan, b"", {"status": "complete"})
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
    assert re.search(rf"^\| best plan .* {format_seconds(least)} \|$", own.stdout, re.M)
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
        (("--model", "tiny"), "say what the link is"),
        (("--model", "tiny", "--from", "x", *LINK), "name a model"),
        (("--model", "tiny", *LINK, "--curve", "x"), "give the link once"),
        (("--model", "tiny", *LINK, "--backend", "gloo"), "--backend and --world-size choose"),
        (("--model", "tny", *LINK), "did you mean tiny?"),
        (("--model", "tiny", *LINK, "--backward", "60 lightyears"), "--backward: unknown unit"),
        (("--model", "tiny", "--link", "fast"), "write latency and rate"),
        (("--model", "tiny", "--curve", "nowhere"), "no such run"),
        (("--model", "tiny", "--curve", BEFORE), "choose with --backend"),
        (("--model", "tiny", "--scenario", "x", *LINK), "--scenario chooses"),
        (("--from", "nowhere"), "no such run"),
        (("--from", "x", "--backward", "60ms", *LINK), "--backward is for --model"),
    ],
)
def test_mistakes_are_one_line(warm, arguments, said):
    done = warm("advise", *arguments)
    assert done.returncode == 2 and not done.stdout
    assert said in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


# ── the code to paste ────────────────────────────────────────────────────────────────────────────
def pasted(text: str) -> dict[str, object]:
    """The arguments of the calls in the code block."""
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return {word.arg: ast.literal_eval(word.value) for call in calls for word in call.keywords}


@pytest.fixture
def alone():
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def rebuilt(model: torch.nn.Module, **arguments) -> list[int]:
    """Bytes of the buckets that torch has made anew in the second step and tells of after the third."""
    parallel = DistributedDataParallel(model, **arguments)
    for _ in range(3):
        parallel(torch.ones(1, 64)).sum().backward()
    return [int(size) for size in parallel._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]


def test_torch_makes_the_buckets_of_the_pasted_code(alone):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))
    parameters = list(model.parameters())
    ready = [1e-4 * (len(parameters) - number) for number in range(len(parameters))]
    profile = ReadyTimes.of([4 * parameter.numel() for parameter in parameters], ready)
    link = link_model.LinkModel(AllReduceCost.of_link(1e-4, 2e8), "a link")
    found = planner.advise(profile, link.cost)
    assert len(found.buckets) > 3 and len(set(found.buckets)) > 1
    names = [name for name, _ in model.named_parameters()]
    given = pasted(advice.document(planner.explain(profile, link.cost, found), link, "twelve", names))
    assert rebuilt(model, bucket_cap_mb_list=given["bucket_cap_mb_list"]) == list(found.buckets)
    uniform = planner.bucket_bytes(profile, planner.uniform(profile, found.best_cap))
    assert rebuilt(model, bucket_cap_mb=given["bucket_cap_mb"]) == list(uniform)
    assert rebuilt(model) == list(planner.bucket_bytes(profile, planner.torch_default(profile)))


def test_a_long_plan_is_cut_in_the_table_and_whole_in_the_code():
    profile = ReadyTimes.of([MIB] * 40, [float(40 - number) for number in range(40)])
    link = link_model.LinkModel(AllReduceCost.of_link(1e-4, 1e9), "a link", largest=MIB // 2)
    found = planner.advise(profile, AllReduceCost.of_link(0, 1e6))
    text = advice.document(
        planner.explain(profile, link.cost, found), link, "forty", [f"weight{number}" for number in range(40)]
    )
    assert len(found.buckets) > advice.MOST_BUCKETS
    assert f"{len(found.buckets) - advice.MOST_BUCKETS} more" in text
    assert [mib * MIB for mib in pasted(text)["bucket_cap_mb_list"]] == list(found.buckets)
    assert "so has a bucket of the best plan" in text
