"""The table of benchmarks: for each one, the functions that the verbs call.

In: a configuration or the folder of a run. Out: the `Benchmark` that it belongs to. Its functions are named by text
and loaded when they are first called, so that a verb loads only what it needs.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.model import spelling
from bench.model.deferred import Deferred
from bench.model.errors import ConfigError, StoreError
from bench.model.records import Plan, Samples
from bench.store import folders

if TYPE_CHECKING:
    from bench.analyze.pairs import TimedCase
    from bench.config.models import Config
    from bench.model.capabilities import Machine
    from bench.model.training import Fact, TrainingPlan
from bench.model.records import Scenario

MARKDOWN, CSV, JSON, JUNIT = "markdown", "csv", "json", "junit"
NCCL_TESTS, CS336 = "nccl-tests", "cs336"


@dataclass(frozen=True)
class Benchmark:
    """The functions of one benchmark. Their types are its own, such as Run or TrainingRun.

    Configure. model: the pydantic model of the configuration.
    expand(config, machine, seed) → plan. unmeasurable_reason(plan) → why no case of it can be measured here, else None.
    demands(config or plan) → `capabilities.Demands`. describe(plan, machine) → what `plan` prints.

    Measure. codec: for the store. launcher() → context that starts ranks. sweep(plan, facts, launcher, append, log,
    launched, observer, before_go): measures what is missing. observer(console, total, done) → context that shows
    progress. variables(plan) → (name, value) of each variable that ranks set for themselves. done(plan, facts) → how
    many of plan.total steps are done; None if nothing is left to do.
    report_modules: modules for the analysis and the report, imported while the ranks start.

    Conclude. analyze(run) → analysis. terminal(run, analysis) → what `run` prints at its end. tables(run, analysis) →
    what `report` prints. problems(run, analysis) → what failed; exit code 1 if any. headline(rows of summary.csv) →
    (cases, best result) for `list`. documents(run, analysis, pictures, their folder, output) → text by file
    name, for the folder `output`.
    pictures: a `report.pictures.Catalogue`. formats: format → function(run, analysis) → text.

    Compare. ledger_entry(run, analysis) → the run's line for the noise ledger, or None; None if the benchmark has none.
    timed_cases(facts, plan) → `analyze.pairs.TimedCase` of one side of `ab`.
    compare(before, after, min_change, noise_floor, across, ledger) → comparison with `failed` and `fail_on`.
    comparison_formats: format → function(comparison) → text. draw_comparison(comparison, folder) → its picture's
    path; None if there is nothing to draw.
    """

    name: str
    model: Deferred
    expand: Deferred
    unmeasurable_reason: Deferred
    demands: Deferred
    describe: Deferred
    codec: Deferred
    launcher: Deferred
    sweep: Deferred
    observer: Deferred
    variables: Deferred
    done: Deferred
    report_modules: tuple[str, ...]
    analyze: Deferred
    terminal: Deferred
    tables: Deferred
    problems: Deferred
    headline: Deferred
    documents: Deferred
    pictures: Deferred
    formats: Mapping[str, Deferred]
    ledger_entry: Deferred | None
    timed_cases: Deferred
    compare: Deferred
    comparison_formats: Mapping[str, Deferred]
    draw_comparison: Deferred

    def read(self, path: Path) -> Any:
        """The run in a folder; raises StoreError."""
        return folders.read(path, self.codec.value)


COLLECTIVES = Benchmark(
    name="collectives",
    model=Deferred("config.models:Config"),
    expand=Deferred("cli.benchmarks:expand_collectives"),
    unmeasurable_reason=Deferred("planning.plan:unmeasurable_reason"),
    demands=Deferred("planning.plan:demands"),
    describe=Deferred("report.listings:plan"),
    codec=Deferred("store.encoding:CODEC"),
    launcher=Deferred("launch.mpirun:ByBackend"),
    sweep=Deferred("launch.sweep:sweep"),
    observer=Deferred("report.progress:CaseProgress"),
    variables=Deferred("store.encoding:variables_of"),
    done=Deferred("planning.plan:done"),
    report_modules=("bench.analyze.analysis", "bench.report.document", "pandas"),
    analyze=Deferred("analyze.analysis:analyze"),
    terminal=Deferred("report.document:terminal"),
    tables=Deferred("report.document:tables_of"),
    problems=Deferred("report.document:problems"),
    headline=Deferred("report.listings:headline"),
    documents=Deferred("report.document:documents"),
    pictures=Deferred("report.pictures:CATALOGUE"),
    formats={
        MARKDOWN: Deferred("report.document:markdown_of"),
        CSV: Deferred("report.machine_format:to_csv"),
        JSON: Deferred("report.machine_format:to_json"),
        NCCL_TESTS: Deferred("report.nccl_tests:document"),
        CS336: Deferred("report.cs336:document"),
    },
    ledger_entry=Deferred("analyze.noise:entry_of"),
    timed_cases=Deferred("cli.benchmarks:of_collectives"),
    compare=Deferred("analyze.compare:compare_runs"),
    comparison_formats={
        MARKDOWN: Deferred("report.comparison:document"),
        CSV: Deferred("report.machine_format:comparison_csv"),
        JSON: Deferred("report.machine_format:comparison_json"),
        JUNIT: Deferred("report.machine_format:comparison_junit"),
    },
    draw_comparison=Deferred("report.plots.comparison:draw_comparison"),
)

TRAINING = Benchmark(
    name="training",
    model=Deferred("config.training:TrainingConfig"),
    expand=Deferred("planning.training:expand"),
    unmeasurable_reason=Deferred("planning.training:unmeasurable_reason"),
    demands=Deferred("planning.training:demands"),
    describe=Deferred("training.report.listing:plan"),
    codec=Deferred("training.encoding:CODEC"),
    launcher=Deferred("training.launch.sweep:launcher"),
    sweep=Deferred("cli.benchmarks:sweep_training"),
    observer=Deferred("training.report.progress:RoundProgress"),
    variables=Deferred("training.encoding:variables_of"),
    done=Deferred("planning.training:done"),
    report_modules=("bench.analyze.training", "bench.report.training_document"),
    analyze=Deferred("analyze.training:analyze"),
    terminal=Deferred("report.training_document:summary_tables"),
    tables=Deferred("report.training_document:summary_tables"),
    problems=Deferred("report.training_document:problems"),
    headline=Deferred("training.report.listing:headline"),
    documents=Deferred("report.training_document:documents"),
    pictures=Deferred("training.report.listing:PICTURES"),
    formats={
        MARKDOWN: Deferred("report.training_document:markdown_of"),
        CSV: Deferred("report.training:to_csv"),
        JSON: Deferred("report.training:to_json"),
    },
    ledger_entry=None,
    timed_cases=Deferred("training.analyze.comparison:timed_cases"),
    compare=Deferred("training.analyze.comparison:compare_runs"),
    comparison_formats={
        MARKDOWN: Deferred("training.report.comparison:document"),
        CSV: Deferred("training.report.comparison:to_csv"),
        JSON: Deferred("training.report.comparison:to_json"),
        JUNIT: Deferred("training.report.comparison:to_junit"),
    },
    draw_comparison=Deferred("report.plots.training_steps:draw_comparison"),
)


class _Silent:
    """An observer of either benchmark that shows nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


SILENT = _Silent()
BENCHMARKS = {benchmark.name: benchmark for benchmark in (COLLECTIVES, TRAINING)}


def read_config(raw: bytes, source: str, sets: Sequence[str], default_name: str) -> tuple[Benchmark, Any]:
    """The benchmark that the key `benchmark` names (without it, collectives), and the settings of the configuration.

    Raises ConfigError.
    """
    from bench.config import documents, problems  # here: loads pydantic and a YAML reader, which few verbs need
    from bench.config.fields import fields_of

    document = documents.document(raw, source, "backends: [gloo]", sets)
    values = document.values
    name = values.get("benchmark", COLLECTIVES.name)
    if not isinstance(name, str) or name not in BENCHMARKS:
        words = f"{documents.short(name)} is no benchmark{spelling.allowed(name, list(BENCHMARKS))}"
        raise ConfigError(f"{document.place(['benchmark']).where}: benchmark: {words}")
    benchmark = BENCHMARKS[name]
    try:
        return benchmark, problems.validate(benchmark.model.value, document, name=default_name)
    except ConfigError:
        fields = fields_of(benchmark.model.value)
        unknown = [key for key in values if key not in fields and not spelling.near(key, list(fields))]
        incomplete = any(field.is_required() and key not in values for key, field in fields.items())
        for other in BENCHMARKS.values():
            if unknown and incomplete and other is not benchmark and set(unknown) <= set(fields_of(other.model.value)):
                where = document.place(unknown[:1], of_key=True).where
                text = f"unknown key of the {benchmark.name} benchmark; write benchmark: {other.name}, which has it"
                raise ConfigError(f"{where}: {unknown[0]}: {text}") from None
        raise


def of_run(path: Path) -> Benchmark:
    """The benchmark of a run. Raises StoreError, also if this version does not know the benchmark."""
    manifest = folders.read_manifest(path)
    if manifest["benchmark"] not in BENCHMARKS:
        raise StoreError(f"{path}: a run of the benchmark {manifest['benchmark']!r}: update CollBench")
    return BENCHMARKS[manifest["benchmark"]]


def collectives_only(paths: Sequence[Path], what: str) -> None:
    """Raise ConfigError if one of these runs is of another benchmark. what: the option or verb that was used."""
    for path in paths:
        benchmark = of_run(path)
        if benchmark is not COLLECTIVES:
            raise ConfigError(f"{what} is for runs of collectives; {path.name} is of the {benchmark.name} benchmark")


# ── parts of runs, launch by launch ─────────────────────────────────────────────────────────────
# The first torch whose DistributedDataParallel takes the size of each bucket.
BUCKET_LISTS = (2, 13)


def one_launch(plan: Any, number: int) -> Any:
    """The plan of one launch."""
    order = tuple(launch for launch in plan.order if launch.number == number)
    return dataclasses.replace(plan, order=order, launches=1)


def facts_of_launch(facts: Sequence[Any], number: int) -> list[Any]:
    """The facts of one launch."""
    return [fact for fact in facts if fact.launch == number]


def of_collectives(facts: Sequence[Samples], plan: Plan) -> "list[TimedCase]":
    """The cases of a side, with the names that tables have for them."""
    from bench.analyze import pairs  # here: loads numpy and scipy
    from bench.report.labels import label

    return pairs.of_collectives(facts, plan.cases, label)


def expand_collectives(config: "Config", machine: "Machine", seed: int) -> Plan:
    """`plan.expand`, with the calls of the job that the configuration replays."""
    from bench.planning.plan import expand

    recorded = None
    if config.recording:
        from bench.importers.traces import reading

        recorded = reading.read([Path(name) for name in config.recording])
    return expand(config, machine, seed, recorded)


def sweep_training(*arguments: Any) -> None:
    """`training.launch.sweep.sweep`, which asks the analysis for advice between launches."""
    from bench.training.launch import sweep

    functools.partial(sweep.sweep, advise=_advised)(*arguments)


def _advised(
    plan: "TrainingPlan", scenario: "Scenario", facts: "Sequence[Fact]"
) -> tuple[int | None, tuple[int, ...]] | None:
    """Cap and buckets for DistributedDataParallel of the installed torch; None if nothing is known yet."""
    from bench.advise.of_run import ddp_setting  # here: loads scipy
    from bench.machine import host
    from bench.model.training import TrainingRun

    build = host.torch_build() or {}
    version = tuple(int(part) for part in str(build.get("version", "0.0")).split(".")[:2])
    return ddp_setting(TrainingRun(Path(), {}, plan, [], list(facts)), scenario, lists=version >= BUCKET_LISTS)
