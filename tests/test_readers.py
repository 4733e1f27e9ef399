"""Readers of nccl-tests' output read the table and the JSON of every operation that real ranks measured.

They read 13 columns that are all numbers, the average line, and JSON of nccl-tests and of rccl-tests.
"""

import json
import re

import pytest

from collbench.packages.interop.catalog import OPERATIONS, RCCL_NAMES
from conftest import CommandLine

SIZES = (1024, 4096)
TESTS = {op: test for test, op in OPERATIONS.items()}
CONFIG = f"""
name: everything
backends: [gloo]
world_sizes: [2]
operations: [{", ".join(OPERATIONS.values())}]
dtypes: [float32]
placements: [in, out, copied]
metrics: [isolated]
sizes: [1KiB, 4KiB]
launches: 2
sampling: {{iterations: 8, warmup: 1}}
"""


@pytest.fixture(scope="module")
def measured(launcher, tmp_path_factory):
    """Return the command line in a folder with one run that has a table for each operation."""
    here = CommandLine(tmp_path_factory.mktemp("readers"), launcher)
    here.measure(CONFIG)
    return here


def report(here: CommandLine, op: str, form: str = "nccl-tests") -> str:
    done = here("report", "--format", form, "--operation", op)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def thirteen_numbers(text: str) -> dict[int, tuple[float, ...]]:
    """Return the numbers per size; refuse another number of columns, or a column behind the names without a number."""
    numbers = {}
    for row in rows_of(text):
        size, count, _, _, root, *values = row
        assert len(values) == 8 and int(count) > 0 and int(root) >= -1
        assert all(re.fullmatch(r"\d+\.?\d*", value) for value in values)  # no nan, and no exponent
        numbers[int(size)] = tuple(map(float, values))
    return numbers


@pytest.mark.parametrize("op", OPERATIONS.values())
def test_every_family_reads_every_operation_and_json_has_the_numbers_of_the_table(measured, op):
    text = report(measured, op)
    numbers = thirteen_numbers(text)
    assert set(numbers) == {*SIZES}
    assert all(values[3] == values[7] == 0 for values in numbers.values())  # #wrong
    assert len(re.findall(r"^# Avg bus bandwidth\s*:\s*[\d.e-]+", text, re.MULTILINE)) == 1
    assert text.count("# Out of bounds values : 0 OK") == 1
    assert f"# Collective test starting: {TESTS[op]}_perf" in text

    document = json.loads(report(measured, op, "nccl-tests-json"))
    assert document["args"][0] == f"{TESTS[op]}_perf" and document["out_of_bounds"] == {"count": 0, "okay": "true"}
    for result in document["results"]:
        for place, first in (("out_of_place", 0), ("in_place", 4)):
            time, algbw, busbw, _ = numbers[result["size"]][first : first + 4]
            half, each = result[place], result[f"{place}_per_iter"]
            assert (half["time"], half["alg_bw"], half["bus_bw"], half["nwrong"]) == (
                pytest.approx(time, abs=0.06), pytest.approx(algbw, abs=0.006), pytest.approx(busbw, abs=0.006), 0,
            )  # fmt: skip
            processes = each["per_process_max_times_us"]
            assert len(processes) == 2 and each["times_us"] == list(map(max, zip(*processes, strict=True)))
            assert len(each["times_us"]) == 16
    entries = json.loads(report(measured, op, "rccl-tests-json"))
    assert {(entry["size"], entry["inPlace"], entry["numCycle"]) for entry in entries} == {
        (size, place, launch) for size in SIZES for place in (0, 1) for launch in (0, 1)
    }
    assert {entry["name"] for entry in entries} == {RCCL_NAMES[op]}
    assert all(entry["ranks"] == entry["nodes"] * entry["ranksPerNode"] == 2 for entry in entries)


def test_tables_are_chosen_and_each_is_complete(measured):
    all_tables = measured("report", "--format", "nccl-tests").stdout
    assert all_tables.count("# Avg bus bandwidth") == all_tables.count("# Collective test starting") == len(OPERATIONS)
    assert all_tables.count("#wrong") == 2 * len(OPERATIONS)
    several = measured("report", "--format", "nccl-tests-json")
    assert several.returncode == 2 and "this run has 9" in several.stderr and "--operation" in several.stderr
    nothing = measured("report", "--format", "nccl-tests", "--operation", "all_gather", "--ranks", "4")
    assert nothing.returncode == 2 and "it has op: " in nothing.stderr
    assert measured("report", "--operation", "all_gather").returncode == 2


def test_files_that_collbench_wrote_are_not_imported_as_nccl(measured):
    for form in ("nccl-tests", "nccl-tests-json", "rccl-tests-json"):
        file = measured.config(report(measured, "all_gather", form), f"{form}.json")
        done = measured("import", "nccl-tests", file)
        assert done.returncode == 2 and "CollBench wrote it" in done.stderr
