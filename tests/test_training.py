"""The training benchmark on real gloo ranks: who trains rightly gets a time, who does not is refused one."""

import json
import resource
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from bench.advise import of_run
from bench.advise.of_run import ddp_setting
from bench.analyze.training import analyze
from bench.catalog.presets import find, gradients
from bench.catalog.strategies import STRATEGIES
from bench.model.records import Scenario
from bench.model.training import Advised, CommunicationOnly, Round, Strategy, StrategyChecks, Timeline
from bench.rank.training import models
from bench.rank.training import runner as runners
from bench.rank.training.runner import SYNCHRONISERS, RankInfo
from bench.rank.training.transport import ProcessGroupTransport, SharedTensors
from bench.store import folders
from bench.training.encoding import CODEC as TRAINING_CODEC
from conftest import CommandLine
from users_model import WIDTH

BASE = """
benchmark: training
models: [nano]
batch: 2
sequence: 8
launches: 1
rounds: 2
steps: 1
warmup: 3
strategies: [STRATEGIES]
"""


def measured(warm, strategies, more=""):
    done = warm("run", warm.config(BASE.replace("STRATEGIES", strategies) + more), "--no-plots")
    (path,) = warm.runs()
    return done, folders.read(path, TRAINING_CODEC)


def failures(run):
    return {
        fact.strategy: {check.invariant for check in fact.failed}
        for fact in run.facts
        if isinstance(fact, StrategyChecks) and fact.failed
    }


ALL = """naive, naive_async, flat, overlap_param, {overlap_bucket: {cap: [64KiB, 256KiB]}},
{overlap_bucket: {cap: 64KiB, bucket_boundary: before}}, {ddp: {cap: 64KiB}}, {ddp: {options: [noop]}}, {ddp: {options:
[fp16]}}, zero1, zero_redundancy, fsdp2, {ddp: {accumulate: 2}}, {import: "broken_syncs:Right"}"""


OWN_GROUP = "{fsdp2: {options: [separate_reduce_scatter_group]}}"  # of newer versions of torch


def test_every_strategy_is_checked_and_measured(warm):
    with_group = hasattr(FSDPModule, "set_separate_reduce_scatter_group")
    done, run = measured(warm, ", ".join([ALL, OWN_GROUP] if with_group else [ALL]))
    assert done.returncode == 0 and failures(run) == {}
    results = {result.label: result for result in analyze(run).scenarios[0].results}
    assert all(result.step is not None for result in results.values())
    checked = {f.strategy: {c.invariant for c in f.checks if c.ok} for f in run.facts if isinstance(f, StrategyChecks)}
    assert {"I1", "I2", "I3", "I5", "I6", "I7", "I9"} <= checked["overlap_bucket 64 KiB"]
    assert "I4" in checked["none"] and "I4" in checked["ddp noop"]
    assert "I12" in checked["zero1"] and "I12" in checked["fsdp2"] and checked[None] == {"I10", "I11"}
    calls = {f.strategy: f.calls for f in run.facts if isinstance(f, StrategyChecks)}
    assert len(calls["naive"]) == 21 and len(calls["flat"]) == 1 and calls["none"] == ()
    assert sum(calls["overlap_bucket 64 KiB"]) == sum(calls["naive"]) == sum(calls["ddp 64 KiB"])
    assert {f.strategy for f in run.facts if isinstance(f, CommunicationOnly)} >= {"naive", "flat", "ddp 64 KiB"}
    blocks = {block.strategy: block for f in run.facts if isinstance(f, Round) for block in f.blocks}
    gathered = {name: min(block.parts_ns["gather"]) for name, block in blocks.items()}
    assert all(gathered[name] > 5 * gathered["flat"] for name in ("zero1", "zero_redundancy", "fsdp2"))
    assert all(
        sum(part[rank] for part in block.parts_ns.values()) <= block.wall_ns[rank]
        for block in blocks.values()
        for rank in (0, 1)
    )
    line = next(f for f in run.facts if isinstance(f, Timeline) and f.strategy == "overlap_param").ranks[0]
    assert all(call.ready_s <= call.launched_s <= call.done_s for call in line.calls)
    assert json.loads((run.path / "trace.json").read_text())["traceEvents"]


def test_gradients_are_clipped_by_the_norm_of_all_of_them(warm):
    """I2 holds what each strategy trained against ranks that clip the gathered mean; a shard's norm is smaller."""
    done, run = measured(warm, "flat, zero1, zero_redundancy, fsdp2", "clip: 0.01\n")
    assert done.returncode == 0, done.stderr
    assert run.plan.order[0].scenario.key.endswith("/clip=0.01")
    blocks = [block for fact in run.facts if isinstance(fact, Round) for block in fact.blocks]
    assert blocks and all(min(block.parts_ns["clip"]) > 0 for block in blocks)


def test_a_run_measures_what_its_first_launch_advised(warm, monkeypatch):
    """The advice itself is a matter of this machine, so it is given; the run must follow it, and remember it."""
    asked = []

    def advised(run, scenario, lists):
        asked.append([type(fact).__name__ for fact in run.facts])
        return (2**16, ()) if ddp_setting(run, scenario, lists) is not None else None

    monkeypatch.setattr(of_run, "ddp_setting", advised)
    more = "call_sizes: {parameters: 10000, calls: [1, 4, 16]}\n"
    text = BASE.replace("launches: 1", "launches: 3").replace("STRATEGIES", "ddp, {ddp: {buckets: advised}}") + more
    done = warm("run", warm.config(text), "--no-plots")
    assert done.returncode == 0, done.stderr
    assert [bool(facts) for facts in asked] == [False, True]  # before the first launch, and before the second
    run = folders.read(warm.runs()[0], TRAINING_CODEC)
    assert [(f.launch, f.cap_bytes) for f in run.facts if isinstance(f, Advised)] == [(2, 2**16)]
    measured_in = {f.launch for f in run.facts if isinstance(f, Round) for b in f.blocks if b.strategy == "ddp advised"}
    assert measured_in == {2, 3}
    assert "DistributedDataParallel with bucket_cap_mb=0.0625" in done.stdout


def test_what_cannot_be_advised_is_left_out_with_the_remedy(warm):
    for more, reason in (("launches: 1\ncall_sizes: {}", "set launches to 2"), ("launches: 2", "set call_sizes")):
        text = f"benchmark: training\nmodels: [nano]\nstrategies: [ddp, {{ddp: {{buckets: advised}}}}]\n{more}\n"
        done = warm("plan", warm.config(text))
        assert done.returncode == 0 and "left out: ddp advised" in done.stdout and reason in done.stdout


WRONG = {
    "Sum": {"I2"},
    "Forgetful": {"I1", "I2"},
    "Rounded": {"I3"},
    "NoStart": {"I1", "I9"},
    "Raising": {"runs"},
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory, launcher):
    """One run of all that is wrong, beside one that is right."""
    warm = CommandLine(tmp_path_factory.mktemp("refused"), launcher)
    wrong = [f'{{import: "broken_syncs:{name}"}}' for name in WRONG]
    return warm, *measured(warm, ", ".join(["flat", *wrong, "{plan: {buckets: [64KiB]}}"]))


def test_a_wrong_synchroniser_is_refused_a_number_and_what_is_right_beside_it_is_not(refused):
    """Nor is a number given to a plan that does not fit the model."""
    _, done, run = refused
    assert done.returncode == 1 and "failed: " in done.stderr
    failed = failures(run)
    assert set(failed) == {*(f"broken_syncs:{name}" for name in WRONG), "plan [64 KiB]"}
    assert failed["plan [64 KiB]"] == {"runs"}
    for name, violated in WRONG.items():
        assert violated <= failed[f"broken_syncs:{name}"], name
    rounds = [fact for fact in run.facts if isinstance(fact, Round)]
    assert rounds
    for timed in ({block.strategy for block in fact.blocks} for fact in rounds):
        assert timed >= {"none", "flat"} and not any(name.startswith("broken") for name in timed)


def test_an_emulated_link_takes_the_time_that_it_should_and_is_checked_on_the_real_one(warm):
    done, run = measured(warm, "flat, overlap_param, ddp", "links: [10ms + 1GB/s]\n")
    assert done.returncode == 0
    results = {result.label: result for result in analyze(run).scenarios[0].results}
    assert 0.0106 < results["flat"].communication_only_s < 21 * 0.01 < results["overlap_param"].communication_only_s
    assert results["flat"].split.tail_s > 0.009
    checked = {f.strategy: {c.invariant for c in f.checks if c.ok} for f in run.facts if isinstance(f, StrategyChecks)}
    assert {"I2", "I5", "I6", "I7"} <= checked["flat"] and "I1" not in checked["flat"]


def of_users_model(warm, strategies, build):
    text = BASE.replace("STRATEGIES", strategies).replace("[nano]", f'[{{import: "users_model:{build}"}}]')
    done = warm("run", warm.config(text), "--no-plots")
    (path,) = warm.runs()
    return done, folders.read(path, TRAINING_CODEC)


def test_a_users_model_is_measured_like_a_preset_and_missing_rounds_are_made_by_resume(warm):
    """Its weight that is two at once is sent once, and the frozen one never: one matrix and two biases of float32."""
    done, run = of_users_model(warm, "naive, flat, {overlap_bucket: {cap: 1KiB}}, ddp", "build")
    assert done.returncode == 0, done.stderr
    results = {result.label: result for result in analyze(run).scenarios[0].results}
    assert all(result.step is not None for result in results.values())
    matrix, bias = 4 * WIDTH * WIDTH, 4 * WIDTH
    assert sorted(results["naive"].calls) == [bias, bias, matrix]
    assert results["flat"].calls == (matrix + 2 * bias,)
    assert {"I1", "I2", "I3", "I5"} <= {check.invariant for check in results["ddp"].checks if check.ok}

    lines = (run.path / folders.SAMPLES).read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not (b'"Round"' in line and b'"round":2' in line)]
    assert len(kept) == len(lines) - 1
    (run.path / folders.SAMPLES).write_bytes(b"".join(kept))
    assert warm("run", "--resume", str(run.path), "--no-plots").returncode == 0
    again = folders.read(run.path, TRAINING_CODEC)
    assert sorted(fact.round for fact in again.facts if isinstance(fact, Round)) == [1, 2]


def test_a_model_with_batchnorm_and_dropout_gets_numbers(warm):
    """Each rank normalises its own examples, as under DDP: the gathered mean does too, one process does not."""
    strategies = 'naive, {overlap_bucket: {cap: 1KiB}}, ddp, zero1, {import: "broken_syncs:Sum"}'
    done, run = of_users_model(warm, strategies, "build_normalised")
    assert done.returncode == 1 and failures(run) == {"broken_syncs:Sum": {"I2"}}
    results = {result.label: result for result in analyze(run).scenarios[0].results}
    for label in ("naive", "ddp", "zero1"):
        texts = [check.text for check in results[label].checks if check.invariant == "I2"]
        assert results[label].step is not None and len(texts) == 2
        assert all("one process is no measure" in text for text in texts)


def test_a_preset_has_the_parameters_of_its_list(warm):
    """With tied weights and grouped queries, too, and by its sizes alone."""
    sizes = "{d_model: 32, d_ff: 64, layers: 1, heads: 2, vocabulary: 50}"
    by_sizes = BASE.replace("STRATEGIES", "flat").replace("nano", sizes)
    assert "d32-ff64-l1-h2-v50/" in warm("plan", warm.config(by_sizes)).stdout
    for name in ("nano", "nano-v100-kv1-tied", "d32-ff64-l1-h2-v50"):
        model = models.build(Scenario(name, "gloo", 2, 2, 8), torch.device("cpu"), 1)
        model.module(*model.batch(torch.Generator().manual_seed(1), 2)).backward()
        sizes = [parameter.grad.nbytes for parameter in model.module.parameters()]
        assert sizes == [gradient.nbytes for gradient in gradients(find(name))]


def test_a_users_model_that_cannot_be_built_is_said(warm):
    done, _ = of_users_model(warm, "flat", "no")
    assert done.returncode == 1 and "users_model" in done.stderr and "Traceback" not in done.stderr


MISTAKES = {
    "strategies: [flatt]": "did you mean 'flat'",
    "strategies: [{overlap_bucket: {bucket_boundary: before}}]": "needs cap, such as",
    "strategies: [{naive: {cap: 1MiB}}]": "does not take cap",
    "strategies: [{ddp: {options: [fp16, bf16]}}]": "one communication hook",
    "strategies: [{fsdp2: {options: [fp16]}}]": "fsdp2 has no option fp16",
    "strategies: [{ddp: {buckets: torch}}]": "torch is for plan",
    "strategies: [flat]\nclip: -1": "clip: -1: at least 0",
    "strategies: [flat]\nlinks: [fast]": "2ms + 1GB/s",
    "strategies: [flat]\nwarmup: 2": "warmup: 2: at least 3",
    "strategies: [flat]\nmodels: [tini]": "did you mean 'tiny'",
}


def test_each_mistake_is_one_line(warm):
    for line, words in MISTAKES.items():
        text = "benchmark: training\n" + line + ("" if "models" in line else "\nmodels: [nano]")
        done = warm("plan", warm.config(text))
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, line


def test_what_this_machine_cannot_measure_is_said(warm):
    for backend in ("nccl", "mpi"):
        text = f"benchmark: training\nmodels: [nano]\nstrategies: [flat]\nbackends: [{backend}]"
        done = warm("plan", warm.config(text))
        assert done.returncode == 3 and "nothing can be measured here" in done.stderr


def test_a_training_run_is_listed_and_not_diagnosed(refused):
    warm, _, run = refused
    assert run.name in warm("list").stdout
    answer = warm("diagnose")
    assert answer.returncode == 2 and "training benchmark" in answer.stderr
    assert "comm_time_avg" in warm("report", "--format", "csv").stdout


def test_the_table_of_strategies_has_a_synchroniser_for_each():
    assert set(SYNCHRONISERS) == set(STRATEGIES)


def test_strategies_take_turns_on_one_set_of_tensors():
    """Ten runners on one set hold hardly more tensors than one."""
    made = [torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))) for _ in range(10)]
    shared = SharedTensors()
    for module in made:
        shared.adopt(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        shared.lend_states(optimizer)
        module(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        shared.adopt_states(optimizer)
        assert all(state["momentum_buffer"] is not None for state in optimizer.state.values())
    storages = {p.untyped_storage().data_ptr() for module in made for p in module.parameters()}
    assert len(storages) == 8
    assert all(torch.equal(a, b) for a, b in zip(made[0].parameters(), made[9].parameters(), strict=True))


TEN = (
    Strategy("flat"), Strategy("naive"), Strategy("naive_async"), Strategy("overlap_param"), Strategy("none"),
    *(Strategy("overlap_bucket", cap_bytes=cap * 2**20) for cap in (1, 2, 4, 8, 16)),
)  # fmt: skip


@pytest.mark.usefixtures("launcher")  # its fork server has loaded torch
def test_ten_strategies_need_little_more_memory_than_one():
    with ProcessPoolExecutor(2, get_context("forkserver"), max_tasks_per_child=1) as pool:
        one, ten = pool.map(grown_by, [TEN[:1], TEN])
    assert one > 27e6 and ten <= 1.5 * one


def grown_by(strategies):
    """Bytes by which a process grows at most that trains tiny with these strategies in turn."""
    torch.set_num_threads(1)  # two processes' threads on two cores would wait for each other, for minutes
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        scenario, place = Scenario("tiny", "gloo", 1, 1, 16), RankInfo(0, 1, torch.device("cpu"))
        transport, shared = ProcessGroupTransport(1), SharedTensors()
        small = Scenario("nano", "gloo", 1, 1, 16)
        runners.ready_order(small, place, transport, 0)  # loads what torch loads when it first trains
        before, runners_made = psutil.Process().memory_info().rss, []
        order = range(len(gradients(find("tiny"))))
        for strategy in strategies:
            runner = runners.build(strategy, scenario, place, transport, order, 0, shared=shared)
            runners_made.append(runner)
            shared.lend_states(runner.optimizer)
            batch = runner.draw(torch.Generator().manual_seed(0), 1)
            for _ in range(2):
                runner.step(batch)
            shared.adopt_states(runner.optimizer)
            runner.optimizer.zero_grad()
        dist.destroy_process_group()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def test_at_four_ranks_only_calls_that_hold_the_same_need_the_same_bits(warm):
    """flat and DDP send one call each, in which the parameters stand in another order."""
    text = BASE.replace("STRATEGIES", "flat, ddp, naive, naive_async") + "world_sizes: [4]\n"
    done = warm("run", warm.config(text), "--no-plots")
    assert done.returncode == 0, done.stderr
    run = folders.read(warm.runs()[0], TRAINING_CODEC)
    checked = {f.strategy: {c.invariant for c in f.checks if c.ok} for f in run.facts if isinstance(f, StrategyChecks)}
    assert "I3" in checked["naive"] and "I3" not in checked["flat"]
