"""A training plan: models that do not fit into memory are refused with the numbers; misleading settings are noted."""

from dataclasses import replace

import pytest

from collbench.config.models import parse
from collbench.model.errors import ConfigError
from collbench.model.projection import grouped
from collbench.model.records import Machine
from collbench.packages.training.report.steps import scenario_text
from collbench.packages.training.synchronisation import TRAINING_STEP, options_of, scenario_of, strategy_in
from collbench.planning.plan import expand
from collbench.report.notices import sentence, sentences

HOST = Machine("h", 4, 2**34, 2**25, 0, {})
TWO_GPUS = replace(HOST, gpus=2, gpu_free_bytes=10 * 2**30)
# Setting → words of its note → a similar setting that is sound.
TRAPS = [
    ("strategies: [{ddp: {cap: 25MiB}}]", "not torch's default", "strategies: [ddp, {ddp: {cap: 10MiB}}]"),
    ("strategies: [{ddp: {cap: 25MB}}]", "drops the first bucket", "strategies: [{overlap_bucket: {cap: 25MB}}]"),
    ("strategies: [ddp], threads: 4", "2 ranks of 4 computing threads on 4", "strategies: [ddp], threads: 2"),
    ("strategies: [ddp], threads: 4", "lower threads", "strategies: [naive_async, zero1], threads: 4"),
    ("strategies: [ddp], threads: 4", "emulated link", "strategies: [ddp], threads: 4, links: [1ms+1GB/s]"),
    ("strategies: [ddp], steps: 1", "write steps: 2", "strategies: [ddp], steps: 2"),
]


def planned(section: str, machine: Machine = HOST, backend: str = "gloo"):
    text = f"backends: [{backend}]\nworld_sizes: [2]\ntraining: {{{section}}}\n"
    return expand(parse(text.encode(), "x.yaml", [], "x"), machine, 1)


def scenarios_in(plan):
    """Return the scenarios of a plan, each with its strategies."""
    of = grouped((case for case in plan.cases if case.op == TRAINING_STEP), lambda case: case.shared)
    return {scenario_of(plan.settings, shared): [*map(strategy_in, cases)] for shared, cases in of.items()}


def on(backend: str, model: str, machine: Machine):
    return planned(f"models: [{model}], strategies: [flat]", machine, backend)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers():
    for backend, machine, message in (
        ("gloo", HOST, "needs 2 × "),
        ("nccl", TWO_GPUS, "of memory on a GPU for parameters"),
    ):
        plan = on(backend, "xl-2026", machine)
        (skip,) = plan.skips
        assert not plan.order and message in sentence(skip.reason) and "GiB are available" in sentence(skip.reason)
        assert on(backend, "tiny", machine).order


def test_unknown_memory_refuses_nothing_and_gpus_need_no_memory_of_the_host():
    assert on("nccl", "xl-2026", replace(TWO_GPUS, gpu_free_bytes=None)).order
    assert on("nccl", "tiny", replace(TWO_GPUS, memory_available_bytes=2**20)).order


def test_a_trap_is_named_with_its_remedy_and_a_sound_setting_is_not():
    for trap, words, sound in TRAPS:
        (note,) = sentences(planned(f"models: [nano], {trap}").notices)
        assert words in note
        assert planned(f"models: [nano], {sound}").notices == ()


def test_variables_and_scheduling_hold_for_steps_and_other_options_are_refused():
    """Sides of `ab` that differ only in options without effect would be called the same."""
    section = "training: {models: [nano], strategies: [flat]}"
    base = f"backends: [gloo]\nworld_sizes: [2]\nenv: {{NCCL_MAX_CTAS: [1, 2]}}\n{section}\n"
    plan = expand(parse(base.encode(), "x.yaml", [], "x"), HOST, 1)
    assert {(case.op, str(case.settings)) for case in plan.cases} == {
        ("training_step", f"NCCL_MAX_CTAS={value}") for value in (1, 2)
    }
    assert all(len({case.settings for case in launch.cases}) == 1 for launch in plan.order)
    for wrong in ("metrics: [isolated]", "sizes: [1KiB]", "reduce_ops: [max]", "groups: [world]"):
        with pytest.raises(ConfigError, match=f"{wrong.split(':')[0]}: .*cases of training_step do not have this key"):
            parse(f"{base}{wrong}\n".encode(), "x.yaml", [], "x")
        parse(f"{base}operations: [all_reduce]\nsizes: [2KiB]\n".encode(), "x.yaml", [], "x")


def test_schedulings_are_an_axis_of_steps_and_batch_is_for_gloo():
    section = "training: {models: [nano], strategies: [flat]}"
    text = f"backends: [gloo, mpi]\nworld_sizes: [2]\nscheduling: [normal, batch]\n{section}\n"
    plan = expand(parse(text.encode(), "x.yaml", [], "x"), HOST, 1)
    assert {case.scheduling for case in plan.cases if case.backend == "gloo"} == {"normal", "batch"}
    assert {" · batch · " in scenario_text(scenario) for scenario in scenarios_in(plan)} == {True, False}
    assert {case.scheduling for case in plan.cases if case.backend == "mpi"} == {"normal"}
    assert {skip.case.scheduling for skip in plan.skips if "has none" in sentence(skip.reason)} == {"batch"}


def test_autocast_is_bfloat16_over_float32_parameters_and_refused_elsewhere_with_the_reason():
    section = "models: [nano], strategies: [flat], autocast: bfloat16"
    assert all(options_of(case).autocast == "bfloat16" for case in planned(section).cases)
    for wrong, why in (("float16", "unknown dtype of autocast"), ("float64", "unknown dtype of autocast")):
        with pytest.raises(ConfigError, match=f"training.autocast: .*{why}"):
            planned(section.replace("bfloat16", wrong))
    shape = planned(section.replace("[nano]", "[{shape: nano, backward: 10ms}]"))
    text = b"backends: [gloo]\nworld_sizes: [2]\ndtypes: [float64]\ntraining: {%b}\n" % section.encode()
    for plan in (shape, expand(parse(text, "x.yaml", [], "x"), HOST, 1)):
        assert not plan.cases and all("autocast" in sentence(skip.reason) for skip in plan.skips)


@pytest.mark.parametrize(
    ("backend", "ranks", "more", "why"),
    [
        ("gloo", 1, [], "nothing to synchronise"),
        ("nccl", 1, [], None),
        ("nccl", 2, [], "oversubscribe_gpu"),
        ("nccl", 2, ["oversubscribe_gpu=true"], None),
    ],
)
def test_a_step_may_be_tried_on_one_gpu(backend, ranks, more, why):
    text = f"backends: [{backend}]\nworld_sizes: [{ranks}]\ntraining: {{models: [micro], strategies: [flat, ddp]}}\n"
    plan = expand(parse(text.encode(), "x.yaml", more, "x"), replace(TWO_GPUS, gpus=1), 1)
    tried = [case for case in plan.cases if strategy_in(case).name == "flat"]
    assert bool(tried) == (why is None) and all(case.oversubscribed == bool(more) for case in tried)
    assert any((why or "nothing to") in sentence(skip.reason) for skip in plan.skips) == (why is not None)
