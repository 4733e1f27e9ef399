"""The two records of benchmarks: what they name exists, and a configuration asks for one of them by its key."""

import json
import pkgutil
from dataclasses import asdict, fields, replace

import pytest

import training_fixtures
from bench.cli.benchmarks import BENCHMARKS, COLLECTIVES, TRAINING, Deferred, read_config
from bench.cli.job import WORKERS
from bench.model.errors import ConfigError
from bench.model.records import Case, Fault, Job, Launch
from bench.model.training import Strategy, TrainingJob
from conftest import SAMPLING


def deferred(benchmark) -> dict[str, Deferred]:
    """All that is named by text, by where it stands."""
    values = {field.name: getattr(benchmark, field.name) for field in fields(benchmark)}
    found = {name: value for name, value in values.items() if isinstance(value, Deferred)}
    for table in ("formats", "comparison_formats"):
        found |= {f"{table} {name}": value for name, value in values[table].items()}
    return found


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=BENCHMARKS)
def test_everything_that_a_record_names_exists(benchmark):
    named = deferred(benchmark)
    assert len(named) > 20
    for value in named.values():
        assert value.value is not None


# What either configuration needs beside.
REST = {
    "collectives": ("backends=[gloo]", "world_sizes=[2]", "operations=[all_reduce]", "sizes=[4]"),
    "training": ("models=[nano]", "strategies=[flat]"),
}


@pytest.mark.parametrize(
    ("text", "sets", "wanted"),
    [
        (b"backends: [gloo]\n", (), COLLECTIVES),
        (b"benchmark: training\n", (), TRAINING),
        (b"{benchmark: training, models: [nano]}\n", (), TRAINING),
        (b'"benchmark": training\n', (), TRAINING),
        (b"models: [nano]\n", ("benchmark=training",), TRAINING),
        (b"benchmark: collectives\n", (), COLLECTIVES),
        (b"name: 'benchmark: training'\n", ("name=x",), COLLECTIVES),
    ],
)
def test_a_configuration_asks_for_its_benchmark_by_its_key(text, sets, wanted):
    assert read_config(text, "x.yaml", (*sets, *REST[wanted.name]), "x")[0] is wanted


def test_an_unknown_benchmark_is_one_line():
    with pytest.raises(ConfigError, match=r"x.yaml:1:12: benchmark: trainign is no benchmark; did you mean 'training'"):
        read_config(b"benchmark: trainign\n", "x.yaml", (), "x")


def test_a_training_benchmark_that_is_asked_for_on_the_command_line_is_planned(warm):
    (warm.folder / "c.yaml").write_text("{models: [nano], strategies: [flat]}\n")
    done = warm("plan", "c.yaml", "--set", "benchmark=training")
    assert done.returncode == 0 and "flat" in done.stdout, done.stderr


def arrived(entry, job):
    return WORKERS[entry](json.loads(json.dumps(asdict(job))))


def test_a_job_travels_to_its_rank_with_what_it_imports_and_sets():
    case = Case("all_reduce", "gloo", 2, "float32", 4096, root=1, settings="NCCL_ALGO=Ring")
    faults = (Fault("late", 1, delay_s=0.1),)
    collective = Job(Launch("gloo", 2, 3, (case,)), SAMPLING, 1, 1024, 60.0, faults, "log")
    received = arrived("bench.rank.main:main", collective)
    assert received.job == collective and received.variables == [("NCCL_ALGO", "Ring")]
    plan = training_fixtures.run().plan
    launch = replace(plan.order[0], scenario=replace(plan.order[0].scenario, model="users:build"))
    launch = replace(launch, strategies=(*launch.strategies, Strategy("import", imported="users:sync")))
    received = arrived("bench.rank.training.main:main", TrainingJob(launch, plan, "log"))
    assert received.job == TrainingJob(launch, plan, "log")
    assert received.imports == ["users:build", "users:sync"]


def test_the_functions_that_ranks_of_a_job_run_exist():
    assert all(callable(pkgutil.resolve_name(entry)) for entry in WORKERS)
