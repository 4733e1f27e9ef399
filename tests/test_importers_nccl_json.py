"""JSON of nccl-tests gives the same numbers as its text; of the environment in it, only allowed variables are kept."""

import json

import numpy as np
import pytest

import foreign
from collbench.analyze.analysis import diagnose
from collbench.model.errors import ForeignError
from collbench.packages.interop.importers import assembly, nccl_tests
from collbench.packages.interop.importers.nccl_tests import AVERAGE_ASSUMED, NO_TIME_IN_HALF, STRANGE_RATES
from collbench.packages.interop.importers.readings import Options, read_source
from collbench.report.notices import sentences
from conftest import invented_run


@pytest.fixture
def read(tmp_path):
    def read(text: str):
        path = tmp_path / "x.json"
        path.write_text(text)
        source = read_source(path)
        return source, nccl_tests.read(source, Options())

    return read


def changed(half: str, **values) -> str:
    """Return JSON in which a half of the first result has these values."""
    document = json.loads(foreign.nccl_json())
    document["results"][0][half] |= values
    return json.dumps(document)


def assembled(source, reading):
    return assembly.assemble("nccl-tests", "x", [(source, reading)])


def test_times_and_cases(read):
    _, reading = read(foreign.nccl_json())
    times_s = {(n.case.size_bytes, n.case.placement): n.aggregate.time_s for n in reading.numbers}
    assert times_s == {
        (size, placement): pytest.approx(foreign.time_s(size, place))
        for size in foreign.SIZES
        for placement, place in (("usual", "in"), ("out", "out"))
    }
    assert reading.numbers[0].case.key == "all_reduce/nccl/n2/float32/1024/metric=pipelined/depth=20/placement=out"
    # -a 3 is in the command line
    assert reading.numbers[0].aggregate.statistic == "mean of 20 calls back to back, maximum over ranks"
    assert AVERAGE_ASSUMED() not in reading.unknown


@pytest.mark.parametrize("time_us", [0, 5e-324, 9e-4, -1])
def test_results_that_take_no_time_are_left_out(read, time_us):
    _, reading = read(changed("in_place", time=time_us))
    assert reading.left_out[NO_TIME_IN_HALF()] == 1
    assert len(reading.numbers) == 2 * len(foreign.SIZES) - 1


def test_ranks_of_processes_with_several_devices(read):
    """nccl-tests lists only the first device of each process."""
    device = {"group": 0, "hostname": "node-1", "device_info": "Example GPU"}
    config = json.loads(foreign.nccl_json())["config"]
    config |= {"ngpus": 4, "devices": [{"rank": 0, **device}, {"rank": 4, **device}]}
    _, reading = read(foreign.nccl_json(ranks=8, config=config))
    assert reading.numbers[0].case.world_size == 8
    assert STRANGE_RATES not in {note.kind for note in reading.notes}


def test_the_list_of_rccl_tests(read):
    common = {"numCycle": 0, "name": "all_reduce", "ranks": 4, "type": "float", "redop": "sum"}
    common |= {"inPlace": 1, "wrong": "0"}
    rows = [common | {"size": size, "time": 1e6 * foreign.time_s(size, "in")} for size in foreign.SIZES]
    _, reading = read(json.dumps(rows))
    assert {n.case.placement for n in reading.numbers} == {"usual"} and reading.numbers[0].case.world_size == 4
    assert reading.numbers[0].aggregate.time_s == pytest.approx(foreign.time_s(1024, "in"))


@pytest.mark.parametrize(
    "text", [foreign.nccl_json()[:-40], '{"results": 3}', "[{}]", '{"results": [{}, 1, null]}', "[" * 100_000]
)
def test_damage_is_one_sentence(read, text):
    with pytest.raises(ForeignError) as caught:
        assembled(*read(text))
    assert "\n" not in str(caught.value)


# ── late ranks ───────────────────────────────────────────────────────────────────────────────────
def diagnosed(read, each: np.ndarray, args=("-z", "3"), ranks=None, test="all_reduce"):
    """Return the diagnosis of a file with these times in µs: a row per process, a column per call."""
    document = json.loads(foreign.nccl_json(ranks=ranks or len(each), args=[f"./{test}_perf", *args]))
    document["config"] |= {"per_iter_timing": "true", "blocking_collectives": "true" if args else "false"}
    times = {"times_us": each.max(axis=0).tolist(), "per_process_max_times_us": each.tolist()}
    for result in document["results"]:
        result["in_place_per_iter"] = result["out_of_place_per_iter"] = times
    imported = assembled(*read(json.dumps(document)))
    run = invented_run([*imported.samples])
    run.environment.append(imported.session)
    return diagnose(run)


def arrivals(late: int | None, ranks: int = 4, calls: int = 60) -> np.ndarray:
    """Return when ranks call, in µs after a barrier, with 5 µs of jitter; the rank `late` calls 300 µs later."""
    times = np.random.default_rng(3).exponential(5, (ranks, calls))
    if late is not None:
        times[late] += 300
    return times


def apart(late: int | None, **more) -> np.ndarray:
    """Return times as with -z 3: from the own call to the end, 100 µs after the last call for all processes."""
    called = arrivals(late, **more)
    return called.max(axis=0) + 100 - called


@pytest.mark.parametrize("late", [0, 3])
def test_the_rank_that_waits_least_is_late_if_each_call_is_timed_separately(read, late):
    (finding,) = diagnosed(read, apart(late)).findings
    assert (finding.kind, finding.rank) == ("late rank", late)
    assert finding.cost_s == pytest.approx(300e-6, rel=0.05)


def together() -> np.ndarray:
    """Return times from one call to the next: the previous call ends for all at once, and all wait for rank 2."""
    return np.tile(arrivals(2).max(axis=0) + 100, (4, 1)) + arrivals(None)


@pytest.mark.parametrize(
    ("times", "how", "words"),
    [
        (apart(None), {}, "no rank is late"),
        *((together(), {"args": args}, "-I 1 -z 3") for args in ((), ("-z", "1"), ("--blocking=2",))),
        (apart(1), {"ranks": 8}, "one process for each GPU"),
        (apart(1), {"test": "broadcast"}, ""),
    ],
)
def test_where_the_times_do_not_show_it_no_rank_is_named_and_the_reason_is(read, times, how, words):
    result = diagnosed(read, times, **how)
    assert not result.findings and (not words or any(words in text for text in sentences(result.silent)))
