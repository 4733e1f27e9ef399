"""The two records of benchmarks: what they name exists, and a configuration asks for one of them by its key."""

from dataclasses import fields

import pytest

from bench.cli import run
from bench.cli.benchmarks import BENCHMARKS, COLLECTIVES, TRAINING, Deferred, read_config
from bench.cli.nccl_tests_options import ConfigSource
from bench.errors import BenchError, ConfigError


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
    with pytest.raises(ConfigError, match=r"x.yaml: benchmark: unknown benchmark trainign, did you mean 'training'"):
        read_config(b"benchmark: trainign\n", "x.yaml", (), "x")


def test_a_training_benchmark_that_is_asked_for_on_the_command_line_is_planned(warm):
    (warm.folder / "c.yaml").write_text("{models: [nano], strategies: [flat]}\n")
    done = warm("plan", "c.yaml", "--set", "benchmark=training")
    assert done.returncode == 0 and "flat" in done.stdout, done.stderr


def test_the_training_benchmark_is_refused_in_a_job():
    """A job starts ranks of the benchmark of collectives only."""
    asked = ConfigSource(b"{benchmark: training, models: [nano], strategies: [flat]}", "c.yaml", "c")
    with pytest.raises(BenchError, match=r"c.yaml: the training benchmark cannot run in a job; start it once"):
        run._start(asked, [], False, object(), [])
