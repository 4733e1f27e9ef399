"""JSON of nccl-tests gives what its text gives, and nothing of the environment that it dumps gets anywhere."""

import json
from dataclasses import replace

import numpy as np
import pytest

import foreign
from bench.analyze.analysis import diagnose
from bench.analyze.summaries import summarize
from bench.model.errors import ForeignError
from bench.model.notices import notice
from bench.packages.interop.conclusions import ImportNotice
from bench.packages.interop.importers import assembly, nccl_tests
from bench.packages.interop.importers.readings import Options, read_source
from bench.report.notices import sentences
from conftest import invented_run


@pytest.fixture
def read(tmp_path):
    def read(text: str, name: str = "x.json", **options):
        path = tmp_path / name
        path.write_text(text)
        source = read_source(path)
        return source, nccl_tests.read(source, Options(**options))

    return read


def config(**changes) -> dict:
    return {**json.loads(foreign.nccl_json())["config"], **changes}


def test_times_and_cases(read):
    _, reading = read(foreign.nccl_json())
    found = {(n.case.size_bytes, n.case.placement): n.aggregate.time_s for n in reading.numbers}
    assert found == {
        (size, placement): pytest.approx(foreign.time_s(size, place))
        for size in foreign.SIZES
        for placement, place in (("usual", "in"), ("out", "out"))
    }
    assert reading.numbers[0].case.key == "all_reduce/nccl/n2/float32/1024/metric=pipelined/depth=20/placement=out"
    # -a 3 stands in the command line
    assert reading.numbers[0].aggregate.statistic == "mean of 20 calls back to back, maximum over ranks"
    assert notice(ImportNotice.AVERAGE_ASSUMED) not in reading.unknown


@pytest.mark.parametrize("time_us", [0, 5e-324, 9e-4, -1])
def test_what_takes_no_time_is_left_out(read, time_us):
    document = json.loads(foreign.nccl_json())
    document["results"][0]["in_place"]["time"] = time_us
    _, reading = read(json.dumps(document))
    assert reading.left_out[notice(ImportNotice.NO_TIME_IN_HALF)] == 1
    assert len(reading.numbers) == 2 * len(foreign.SIZES) - 1


def test_only_allowed_variables_are_kept(read):
    source, reading = read(foreign.nccl_json())
    imported = assembly.assemble("nccl-tests", "x", [(source, reading)])
    everything = json.dumps([imported.facts, imported.session]) + assembly.explanation(imported).decode()
    assert "hunter2" not in everything and "/secret/bin" not in everything and "SECRET_TOKEN" not in everything
    assert imported.session["imported"]["variables"] == {"NCCL_ALGO": "Ring"}
    assert {"kind": "dropped-variables", "values": {"count": 2}} in imported.facts["notices"]


def test_ranks_of_processes_with_several_devices(read):
    """Only the first device of each process is in the list there."""
    one = {"group": 0, "hostname": "node-1", "device_info": "Example GPU"}
    devices = [{"rank": 0, **one}, {"rank": 4, **one}]
    _, reading = read(foreign.nccl_json(ranks=8, config=config(ngpus=4, devices=devices)))
    assert reading.numbers[0].case.world_size == 8
    assert ImportNotice.STRANGE_RATES not in {note.kind for note in reading.notes}


@pytest.mark.parametrize(("nwrong", "verified"), [(0.0, True), (7, False), (None, None)])
def test_wrong_elements(read, nwrong, verified):
    document = json.loads(foreign.nccl_json())
    document["results"][0]["out_of_place"]["nwrong"] = nwrong
    _, reading = read(json.dumps(document))
    number = reading.numbers[0]
    assert number.verified is verified
    assert (number.failure is not None) == (verified is False)


def test_the_list_of_rccl_tests(read):
    common = {
        "numCycle": 0,
        "name": "all_reduce",
        "ranks": 4,
        "type": "float",
        "redop": "sum",
        "inPlace": 1,
        "wrong": "0",
    }
    rows = [common | {"size": size, "time": 1e6 * foreign.time_s(size, "in")} for size in foreign.SIZES]
    _, reading = read(json.dumps(rows))
    assert {n.case.placement for n in reading.numbers} == {"usual"} and reading.numbers[0].case.world_size == 4
    assert reading.numbers[0].aggregate.time_s == pytest.approx(foreign.time_s(1024, "in"))


@pytest.mark.parametrize(
    "text", [foreign.nccl_json()[:-40], '{"results": 3}', "[{}]", '{"results": [{}, 1, null]}', "[" * 100_000]
)
def test_damage_is_one_sentence(read, text):
    with pytest.raises(ForeignError) as caught:
        source, reading = read(text)
        assembly.assemble("nccl-tests", "x", [(source, reading)])
    assert "\n" not in str(caught.value)


# ── times of single calls (-I 1) ─────────────────────────────────────────────────────────────────
def timed_each(each: dict) -> str:
    document = json.loads(foreign.nccl_json())
    for result in document["results"]:
        result["out_of_place_per_iter"] = each
    document["config"]["per_iter_timing"] = "true"
    return json.dumps(document)


def test_times_of_single_calls_give_their_mean_outliers_and_modes(read):
    dice = np.random.default_rng(1)
    slow = [*(10 * np.exp(dice.normal(0, 0.05, 90))), *(40 * np.exp(dice.normal(0, 0.05, 30)))]
    source, reading = read(timed_each({"times_us": slow}))
    imported = assembly.assemble("nccl-tests", "x", [(source, reading)])
    (samples, *_) = [one for one in imported.samples if one.case.placement == "out"]
    assert samples.aggregate.slowest_s == pytest.approx([us * 1e-6 for us in slow])
    assert samples.aggregate.statistic.startswith("mean of 20 calls")
    assert samples.aggregate.statistic.endswith("maximum over ranks")
    (found,) = summarize(invented_run([samples]))
    assert not found.time_s.known and found.time_s.value == pytest.approx(np.mean(slow) * 1e-6)
    assert found.stall.fast_s < 12e-6 and found.stall.slow_s > 35e-6
    outlying = replace(samples, aggregate=replace(samples.aggregate, each_s=((*([1e-5, 1.1e-5] * 20), 1.0),)))
    assert summarize(invented_run([outlying]))[0].far_outliers == 1
    in_place = next(one for one in imported.samples if one.case.placement == "usual")
    assert in_place.aggregate.each_s == () and not summarize(invented_run([in_place]))[0].time_s.known


def test_of_several_processes_the_slowest_of_each_call_counts(read):
    each = {"times_us": [1.0, 1.0], "per_process_max_times_us": [[1.0, 5.0], [2.0, 4.0]]}
    _, reading = read(timed_each(each))
    (number, *_) = [one for one in reading.numbers if one.case.placement == "out"]
    assert number.aggregate.each_s == (pytest.approx((1e-6, 5e-6)), pytest.approx((2e-6, 4e-6)))
    assert number.aggregate.slowest_s == pytest.approx((2e-6, 5e-6))


def test_calls_that_the_tool_leaves_out_are_left_out(read):
    """-K 2: their times are in the file all the same."""
    _, reading = read(timed_each({"times_us": [9.0, 8.0, 2.0, 4.0], "skipped_iterations": 2}))
    aggregate = next(one for one in reading.numbers if one.case.placement == "out").aggregate
    assert aggregate.slowest_s == pytest.approx((2e-6, 4e-6)) and aggregate.iterations == 18
    assert "without the first 2" in aggregate.statistic and notice(ImportNotice.FIRST_CALLS, calls=2) in reading.notes


# ── who is late ──────────────────────────────────────────────────────────────────────────────────
def diagnosed(read, each: np.ndarray, args=("-z", "3"), ranks=None, test="all_reduce"):
    """What is said of a file with these times of each process (row) and call, in µs."""
    document = json.loads(foreign.nccl_json(ranks=ranks or len(each), args=[f"./{test}_perf", *args]))
    document["config"] |= {"per_iter_timing": "true", "blocking_collectives": "true" if args else "false"}
    times = {"times_us": each.max(axis=0).tolist(), "per_process_max_times_us": each.tolist()}
    for result in document["results"]:
        result["in_place_per_iter"] = result["out_of_place_per_iter"] = times
    source, reading = read(json.dumps(document))
    imported = assembly.assemble("nccl-tests", "x", [(source, reading)])
    run = invented_run([*imported.samples])
    run.environment.append(imported.session)
    return diagnose(run)


def arrivals(late: int | None, ranks: int = 4, calls: int = 60) -> np.ndarray:
    """When ranks call, in µs after a barrier: 5 µs of jitter, and one comes 300 µs late."""
    times = np.random.default_rng(3).exponential(5, (ranks, calls))
    if late is not None:
        times[late] += 300
    return times


def apart(late: int | None, **more) -> np.ndarray:
    """Times with -z 3: from a process's own call to the end, which is for all 100 µs after the last call."""
    called = arrivals(late, **more)
    return called.max(axis=0) + 100 - called


@pytest.mark.parametrize("late", [0, 3])
def test_who_waits_least_is_late_where_each_call_is_timed_apart(read, late):
    (finding,) = diagnosed(read, apart(late)).findings
    assert (finding.kind, finding.rank) == ("late rank", late)
    assert finding.cost_s == pytest.approx(300e-6, rel=0.05)


def test_without_a_late_rank_nobody_is_named(read):
    result = diagnosed(read, apart(None))
    assert not result.findings and any("no rank is late" in text for text in sentences(result.silent))


@pytest.mark.parametrize("args", [(), ("-z", "1"), ("--blocking=2",)])
def test_times_from_one_call_to_the_next_name_nobody(read, args):
    """The last call of the one before ends for all at once: what a rank is late is in everybody's time."""
    called = arrivals(2)
    result = diagnosed(read, np.tile(called.max(axis=0) + 100, (4, 1)) + arrivals(None), args)
    assert not result.findings and any("-I 1 -z 3" in text for text in sentences(result.silent))


def test_several_gpus_of_a_process_or_a_root_name_nobody(read):
    several = diagnosed(read, apart(1), ranks=8)
    assert not several.findings and any("one process for each GPU" in text for text in sentences(several.silent))
    assert not diagnosed(read, apart(1), test="broadcast").findings
