"""Training steps on real gloo ranks: a strategy that trains correctly gets a time, a wrong strategy gets none."""

import re

import pytest
import torch
import torch.distributed as dist

from collbench.analyze.analysis import analyze
from collbench.model.records import Case
from collbench.packages.training.catalog.presets import find, gradients
from collbench.packages.training.conclusions import training_of
from collbench.packages.training.rank import models
from collbench.packages.training.rank import runner as runners
from collbench.packages.training.rank.runner import SYNCHRONISERS
from collbench.packages.training.rank.synchronisers import Build, Stopwatch
from collbench.packages.training.rank.transport import ProcessGroupTransport, RankInfo, SharedTensors
from collbench.packages.training.synchronisation import (
    PARTS,
    Scenario,
    StepOptions,
    Strategy,
    label,
    strategy_in,
)
from collbench.rank.device import Host
from collbench.store import folders
from conftest import CommandLine, with_value
from users_model import WIDTH

BASE = """
backends: [gloo]
world_sizes: [2]
launches: 1
training: {models: [nano], batch: 2, sequence: 8, rounds: 2, steps: 2, warmup: 3, strategies: [STRATEGIES], IN_SECTION}
"""
NANO = Case(
    "training_step",
    "gloo",
    2,
    "float32",
    0,
    depth=1,
    own=StepOptions(model="nano", batch=2, sequence=8, optimizer="sgd"),
)


def config_text(strategies, section="links: [real]", model="nano"):
    return BASE.replace("STRATEGIES", strategies).replace("IN_SECTION", section).replace("[nano]", f"[{model}]")


def measured(warm, *content):
    # With some seeds the loss of a few steps rises, and I2 does not judge.
    done = warm("run", warm.config(config_text(*content)), "--no-plots", "--set", "seed=1")
    (path,) = warm.runs()
    return done, folders.read(path)


def by_label(run):
    """Return the samples of training steps by the label of their strategy."""
    return {label(strategy_in(entry.case)): entry for entry in run.samples}


def kept_by(entry):
    """Return the invariants that were checked and hold."""
    return {check.invariant for check in entry.checks if check.ok}


def failures(run):
    violated = {name: {check.invariant for check in e.checks if check.ok is False} for name, e in by_label(run).items()}
    return {name: invariants for name, invariants in violated.items() if invariants}


def results_of(run):
    """Return the results of the first scenario by the label of their strategy."""
    return {result.label: result for result in training_of(analyze(run)).scenarios[0].results}


# The calls of a preset, and, on a small model, which makes few calls a step, all other strategies.
OF_A_PRESET = """flat, naive, {overlap_bucket: {cap: 64KiB}}, {ddp: {cap: 64KiB}}, zero1, zero_redundancy, fsdp2,
{plan: {buckets: [64KiB]}}"""
OTHERS = """flat, naive_async, overlap_param, {ddp: {options: [noop]}}, {ddp: {options: [fp16]}},
{ddp: {accumulate: 2}}, {local_sgd: {every: 1}}, {local_sgd: {every: 2}}, {import: "broken_syncs:Right"}"""
SMALL = '{import: "users_model:build_newcomers"}'


@pytest.fixture(scope="module")
def preset(tmp_path_factory, launcher):
    """Run a preset, also by a plan that does not fit it."""
    return measured(CommandLine(tmp_path_factory.mktemp("preset"), launcher), OF_A_PRESET)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, launcher):
    """Run the other strategies together with wrong synchronisers."""
    warm = CommandLine(tmp_path_factory.mktemp("trained"), launcher)
    wrong = [f'{{import: "broken_syncs:{name}"}}' for name in WRONG]
    return warm, *measured(warm, ", ".join([OTHERS, *wrong]), "links: [real]", SMALL)


WRONG = {
    "Sum": {"I2"},
    "Forgetful": {"I1", "I2"},
    "Rounded": {"I3"},
    "NoStart": {"I1", "I2", "I9"},
    "Raising": {"runs"},
}


def test_every_strategy_is_checked_and_measured(preset, trained):
    entries = by_label(preset[1])
    assert {"I1", "I2", "I3", "I5", "I6", "I9"} <= kept_by(entries["overlap_bucket 64 KiB"])
    assert "I4" in kept_by(entries["none"]) and all("I12" in kept_by(entries[name]) for name in ("zero1", "fsdp2"))
    details = {name: entry.detail for name, entry in entries.items() if entry.timed is not None}
    calls = {name: detail.calls for name, detail in details.items()}
    assert len(calls["naive"]) == 21 and len(calls["flat"]) == 1 and calls["none"] == ()
    assert sum(calls["overlap_bucket 64 KiB"]) == sum(calls["naive"]) == sum(calls["ddp 64 KiB"])
    assert all(len(details[name].alone_s) == 5 for name in ("naive", "flat", "ddp 64 KiB"))
    gathered = {name: entries[name].timed.inner_ns["gather"].min() for name in details}
    assert all(gathered[name] > 2 * gathered["flat"] for name in ("zero1", "zero_redundancy", "fsdp2"))
    others = by_label(trained[2])
    assert "I4" in kept_by(others["ddp noop"])
    assert kept_by(others["local_sgd every step"]) == kept_by(others["local_sgd every 2 steps"]) == {"I1", "I9"}
    assert (others["local_sgd every 2 steps"].timed.inner_ns["gather"] > 0).all()
    line = others["overlap_param"].detail.timeline.ranks[0]
    assert line.calls and all(call.ready_s <= call.launched_s <= call.done_s for call in line.calls)
    for timed in (entry.timed for entry in (*entries.values(), *others.values()) if entry.timed is not None):
        assert (sum(timed.inner_ns[part] for part in PARTS) <= timed.duration_ns).all()


def test_a_wrong_synchroniser_gets_no_number_and_every_other_one_in_the_run_does(preset, trained):
    """A plan that does not fit the model gets no number either."""
    wrong = {f"broken_syncs:{name}": violated for name, violated in WRONG.items()}
    for done, run, violated, right in ((*preset, {"plan [64 KiB]": {"runs"}}, 10), (*trained[1:], wrong, 13)):
        assert done.returncode == 1 and "failed: " in done.stderr
        assert failures(run) == violated
        timed = {name for name, result in results_of(run).items() if result.step is not None}
        assert timed == {*by_label(run)} - {*violated} and len(timed) == right


@pytest.mark.slow
def test_clipping_by_the_norm_of_all_gradients_and_autocast_train_the_same_under_every_strategy(warm):
    """I2 compares with ranks that clip the gathered mean (a shard's norm is smaller); sent data stay float32."""
    done, run = measured(warm, "flat, ddp, zero1, zero_redundancy, fsdp2", "clip: 0.01, autocast: bfloat16")
    assert done.returncode == 0 and failures(run) == {}, done.stderr
    entries = by_label(run)
    assert all({"/clip=0.01", "/autocast=bfloat16"} <= {*re.findall("/[^/]*", e.case.key)} for e in run.samples)
    assert all((entry.timed.inner_ns["clip"] > 0).all() for entry in run.samples)
    assert all({"I1", "I2"} <= kept_by(entries[name]) for name in ("flat", "ddp", "zero1", "zero_redundancy", "fsdp2"))
    assert all("I3" in kept_by(entries[name]) for name in ("flat", "ddp"))
    assert sum(entries["flat"].detail.calls) == sum(g.nbytes for g in gradients(find("nano")))
    assert "autocast bfloat16" in done.stdout


@pytest.fixture
def alone(tmp_path):
    """Return the place of this process as the only rank of a group."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield RankInfo(0, 1, torch.device("cpu"), ProcessGroupTransport(1))
    dist.destroy_process_group()


def test_autocast_lowers_the_dtype_of_forward(alone):
    dtypes = []
    scenario = Scenario(with_value(NANO, "autocast", "bfloat16"))
    runner = runners.build(Strategy("none"), scenario, alone, alone.real, range(0), 1)
    runner.sync.module.head.register_forward_hook(lambda *call: dtypes.append(call[-1].dtype))
    runner.step(runner.draw(torch.Generator().manual_seed(1), 2))
    assert dtypes == [torch.bfloat16]
    assert {p.grad.dtype for p in runner.parameters} == {torch.float32}


def test_advised_buckets_are_found_while_planning_or_left_out_with_the_remedy(warm):
    shape = config_text("{plan: {buckets: advised}}, {plan: {buckets: torch}}", "links: [1ms + 100MB/s]")
    done = warm("plan", warm.config(shape.replace("[nano]", "[{shape: nano, backward: 10ms}]")))
    assert done.returncode == 0 and "plan advised" in done.stdout and "plan torch's default" in done.stdout
    done = warm("plan", warm.config(config_text("ddp, {plan: {buckets: advised}}")))
    assert done.returncode == 0 and "`advise --from RUN` finds it after a run" in done.stdout
    done = warm("plan", warm.config(config_text("ddp")), "--set", "training.steps=1")
    assert "\nnote: steps: 1 puts one step" in done.stdout


@pytest.fixture(scope="module")
def of_users(tmp_path_factory, launcher):
    """Run models as users bring them, each under several strategies."""
    warm = CommandLine(tmp_path_factory.mktemp("users"), launcher)
    builds = ", ".join(f'{{import: "users_model:build{kind}"}}' for kind in ("", "_normalised"))
    return warm, *measured(warm, "flat, {overlap_bucket: {cap: 1KiB}}, ddp, zero1", "links: [real]", builds)


def test_users_models_are_measured_like_a_preset(of_users):
    _, done, run = of_users
    assert done.returncode == 0 and len(training_of(analyze(run)).scenarios) == 2, done.stderr
    for entry in run.samples:
        assert not [check for check in entry.checks if check.ok is False] and entry.timed is not None
        if (name := strategy_in(entry.case).name) != "none":
            assert {"I1", "I2", "I3", *(["I5"] if name != "zero1" else [])} <= kept_by(entry), entry.case.key
        # Each rank normalises its own examples, as under DDP: so does the gathered mean, but one process does not.
        no_measure = ["one process is no measure" in c.text for c in entry.checks if c.invariant == "I2" and c.ok]
        assert all(said == entry.case.own.model.endswith("build_normalised") for said in no_measure)


def test_a_launch_of_a_users_model_that_is_missing_is_made_by_resume(of_users):
    warm, _, run = of_users
    lines = (run.path / folders.SAMPLES).read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b"build_normalised" not in line]
    assert 0 < len(kept) < len(lines)
    (run.path / folders.SAMPLES).write_bytes(b"".join(kept))
    assert warm("resume", str(run.path), "--trust", "--no-plots").returncode == 0
    again = folders.read(run.path)
    assert {entry.case for entry in again.samples} == {entry.case for entry in run.samples}


@pytest.mark.parametrize("cap", [1, 2000, 10**6])
def test_a_parameter_that_a_step_does_not_use_leaves_no_bucket_unsynchronised(alone, cap):
    """The last of two micro-batches does not use the second layer; none uses the third, which has no gradient."""
    layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
    strategy, watch = Strategy("overlap_bucket", cap_bytes=cap), Stopwatch(Host())
    build = Build(strategy, layers, alone, alone.real, watch, range(7, -1, -1), SharedTensors())
    synchroniser = SYNCHRONISERS["overlap_bucket"](build)
    alone.real.world_size = 2  # so that what was synchronised is halved
    for last, used in ((False, (0, 1)), (True, (0, 3))):
        with synchroniser.micro(last):
            sum(layers[number](torch.ones(WIDTH)).sum() for number in used).backward()
    gradients_before = {p: p.grad.clone() for p in layers.parameters() if p.grad is not None}
    synchroniser.finish()
    assert len(gradients_before) == 6 and all(p.grad is None for p in layers[2].parameters())
    assert all(torch.equal(p.grad, gradient / 2) for p, gradient in gradients_before.items())
    assert sum(synchroniser.calls()) == sum(p.nbytes for p in layers.parameters())


def test_a_preset_has_the_parameters_of_its_list(warm):
    """This holds for a model given by its sizes alone, too."""
    sizes = "d32-ff64-l1-h2-v50"
    assert "d32-ff64-l1-h2-v50" in warm("plan", warm.config(config_text("flat").replace("nano", sizes))).stdout
    for name in ("nano", "d32-ff64-l1-h2-v50"):
        model = models.build(Scenario(with_value(NANO, "model", name)), torch.device("cpu"), 1)
        model.module(*model.batch(torch.Generator().manual_seed(1), 2)).backward()
        sizes = [parameter.grad.nbytes for parameter in model.module.parameters()]
        assert sizes == [gradient.nbytes for gradient in gradients(find(name))]


def test_a_users_model_that_cannot_be_built_is_reported(warm):
    done, _ = measured(warm, "flat", "links: [real]", '{import: "users_model:no"}')
    assert done.returncode == 1 and "users_model" in done.stderr and "Traceback" not in done.stderr


MISTAKES = {
    "strategies: [flatt]": "did you mean 'flat'",
    "strategies: [{overlap_bucket: {accumulate: 2}}]": "needs cap, such as",
    "strategies: [{naive: {cap: 1MiB}}]": "does not take cap",
    "strategies: [{ddp: {options: [fp16, bf16]}}]": "one communication hook",
    "strategies: [{fsdp2: {options: [fp16]}}]": "fsdp2 does not take options",
    "strategies: [{ddp: {buckets: torch}}]": "torch is for plan",
    "strategies: [flat], clip: -1": "clip: -1: at least 0",
    "strategies: [flat], links: [fast]": "2ms + 1GB/s",
    "strategies: [flat], warmup: 2": "warmup: 2: at least 3",
    "strategies: [local_sgd]": "local_sgd needs every, such as {local_sgd: {every: 4}}",
    "strategies: [{local_sgd: {every: 3}}], steps: 4": "steps, 4, must be a multiple of it",
    "strategies: [flat], models: [tini]": "did you mean 'tiny'",
    "strategies: [flat], models: [{shape: tny}]": "did you mean 'tiny'",
    "strategies: [flat], models: [{shape: tiny, backward: soon}]": "backward",
    "strategies: [flat], models: [{shape: tiny, layers: 3}]": "layers",
    "strategies: [flat], models: [{import: nothing}]": "package.module:name",
    "strategies: [flat], models: [d64-ff128-l1-h5-v100]": "not divided into 5 heads",
    "strategies: [flat], models: [d64-ff128-l0-h4-v100]": "at least 1",
}


def test_each_mistake_is_one_line(warm):
    for section, words in MISTAKES.items():
        models_too = "" if "models" in section else ", models: [nano]"
        text = f"backends: [gloo]\nworld_sizes: [2]\ntraining: {{{section}{models_too}}}\n"
        done = warm("plan", warm.config(text))
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, section


def test_a_run_of_steps_is_listed_and_written_for_programs(trained):
    warm, _, run = trained
    assert run.name in warm("list").stdout
    assert "comm_time_avg" in warm("report", "--format", "csv").stdout
    assert 'failures="' in warm("report", "--format", "junit").stdout


def test_strategies_take_turns_on_one_set_of_tensors(alone):
    shared, order = SharedTensors(), range(len(gradients(find("nano"))))
    held = set()
    for strategy in (
        Strategy("flat"), Strategy("naive"), *(Strategy("overlap_bucket", cap_bytes=cap) for cap in (2**16, 2**18)),
    ):  # fmt: skip
        runner = runners.build(strategy, Scenario(NANO), alone, alone.real, order, 1, shared=shared)
        shared.lend_states(runner.optimizer)
        runner.step(runner.draw(torch.Generator().manual_seed(1), 2))
        shared.adopt_states(runner.optimizer)
        momenta = [state["momentum_buffer"] for state in runner.optimizer.state.values()]
        assert len(momenta) == len(order)
        held |= {tensor.untyped_storage().data_ptr() for tensor in (*runner.parameters, *momenta)}
    assert len(held) == 2 * len(order)
    buckets = [shared.buckets(sizes, torch.zeros(1)) for sizes in ([10, 20], [5], [30])]
    assert len({tensor.untyped_storage().data_ptr() for tensors in buckets for tensor in tensors}) == 1
