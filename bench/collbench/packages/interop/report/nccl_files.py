"""Write a table of a run as nccl-tests' JSON (-J FILE) or as rccl-tests' JSON (-Z json -X FILE).

In: the view of a run. Out: text. nccl-tests writes a file for each test, so a run with several tables is refused:
options of `report` choose one table. The fields are from JSON version 4 (`util.cu` of NVIDIA/nccl-tests at a0b82b2,
2026); for rccl-tests, the fields that ROCm's CVS checks (its schema of RCCL, 2026). `collbench`, our version, is added.
An unknown value is null, or the text "nan" that nccl-tests writes for a time that is not a number. Times are the same
as in `nccl_tests`. nccl-tests dumps its whole environment; here only the allow-listed variables are written.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile

import numpy as np
from numpy.typing import NDArray

from collbench import __version__
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS, half
from collbench.model.conclusions import Summary
from collbench.model.errors import ConfigError
from collbench.model.facts import RankFacts
from collbench.model.records import Case, Json, Run, Samples
from collbench.packages.interop.catalog import RCCL_NAMES, test_named
from collbench.packages.interop.report import nccl_tests
from collbench.report.view import View

VERSION = 4
KEYS = {"out": "out_of_place", "in": "in_place"}
# The option with which nccl-tests takes the maximum over ranks, as CollBench does.
MAXIMUM = ["-a", "3"]


def nccl_tests_json(view: View) -> str:
    """Return one table as nccl-tests' -J writes it. Raises ConfigError if the run has several tables, or none."""
    run, cases = view.run, _only_table(view)
    summaries = {summary.case: summary for summary in view.calls}
    case, members = cases[0], [summaries[case] for case in cases]
    ranks, (least, most, step) = nccl_tests.ranks_of(run, case), nccl_tests.sizes_of(cases)
    # A time of several calls is not that of an iteration.
    timed = case.depth == 1 and any(s.timed is not None for each in cases for s in _samples(run, each))
    average, enough = nccl_tests.average_busbw(run, members)
    failures = [failure for summary in members for failure in summary.failures]
    wrong = nccl_tests.wrong_results(run, members)
    warmup = run.plan.settings.sampling.warmup * case.depth
    # nccl-tests writes booleans as text.
    document = {
        "version": VERSION,
        "collbench": __version__,
        "start_time": _clock(run.manifest.get("started")),
        "args": [test_named(case.op), *dropwhile(lambda word: word[:1] != "-", run.manifest.get("argv", [])), *MAXIMUM],
        "env": [f"{name}={value}" for name, value in nccl_tests.variables_of(run).items()],
        "nccl_version": _version(ranks),
        "config": {
            "nthreads": 1,
            "ngpus": nccl_tests.gpus_of_process(run, case),
            "minimum_bytes": least,
            "maximum_bytes": most,
            "step_bytes": step,
            "warmup_iters": warmup,
            "iterations": case.depth if case.depth > 1 else _iterations(members),
            "aggregated_iterations": 1,
            "validation": None if wrong is None else 1,
            "graph": int(case.metric == "graph"),
            "blocking_collectives": json.dumps(case.depth == 1),
            "per_iter_timing": json.dumps(timed),
            "per_iter_skip": 0,
            "parallel_init": json.dumps(False),
            "devices": [
                device | {"device_info": device["device_info"] or BACKENDS[case.backend].device}
                for device in nccl_tests.devices(case, ranks).values()
            ],
        },
        "results": [_result(run, row, summaries, timed) for row in nccl_tests.rows(cases)],
        "out_of_bounds": {"count": wrong, "okay": None if wrong is None else json.dumps(not wrong)},
        "average_bus_bandwidth": {
            "bandwidth": _number(average),
            "okay": "unchecked" if enough is None else json.dumps(enough),
        },
        "errors": [" ".join(failure.text.split()) for failure in failures] or [""],
        "end_time": _clock(run.manifest.get("finished")),
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def rccl_tests_json(view: View) -> str:
    """Return one table as rccl-tests writes it: an object per placement, size and launch; numCycle: launch, from 0.

    Launches without a time have no object. Raises ConfigError if the run has several tables, or none.
    """
    cases, run = _only_table(view), view.run
    case = cases[0]
    hosts = Counter(facts.get("hostname") for facts in nccl_tests.ranks_of(run, case))
    hosts_known = None not in hosts and hosts.total() == case.world_size
    per_node = hosts.total() // len(hosts) if hosts_known and len({*hosts.values()}) == 1 else None
    name = RCCL_NAMES.get(case.op)
    if name is None:
        raise ConfigError(f"{case.op}: rccl-tests has no such test; it has {', '.join(RCCL_NAMES)}")
    rows = []
    for summary in view.calls:
        for samples in _samples(run, summary.case) if summary.case in {*cases} else ():
            time_s = samples.aggregate.time_s if samples.aggregate is not None else None
            if samples.timed is not None:
                time_s = float(_host_ns(samples).max(axis=1).mean()) / (1e9 * samples.timed.calls)
            size, _, dtype, redop, _ = nccl_tests.lead(summary.case)
            row = {
                "collbench": __version__,
                "numCycle": samples.launch - 1,
                "name": name,
                "nodes": len(hosts) if hosts_known else None,
                "ranks": case.world_size,
                "ranksPerNode": per_node,
                "gpusPerRank": 1,
                "size": size,
                "type": dtype.replace("f8e", "fp8_e"),
                "redop": redop,
                "inPlace": int(half(summary.case) == "in"),
            }
            values = nccl_tests.columns(run, summary, time_s)
            rows += [row | dict(zip(("time", "algBw", "busBw", "wrong"), values, strict=True))] * (time_s is not None)
    return json.dumps(rows, indent=2, allow_nan=False)


def _only_table(view: View) -> list[Case]:
    tables = nccl_tests.tables(s.case for s in view.calls if OPERATIONS[s.case.op].sized)
    if len(tables) == 1:
        return tables[0]
    names = "; ".join(nccl_tests.table_named(cases[0]) for cases in tables)
    if not names:
        raise ConfigError(f"{view.run.name}: no table of collectives with sizes")
    raise ConfigError(
        f"{view.run.name}: a file has one table, and this run has {len(tables)} ({names}): choose by --operation, "
        "--backend, --ranks or --metric"
    )


def _result(run: Run, row: Sequence[Case], summaries: Mapping[Case, Summary], timed: bool) -> Json:
    """Return the object of one row: both placements, null for a placement that was not measured."""
    size, count, dtype, redop, root = nccl_tests.lead(row[0])
    result: Json = {"size": size, "count": count, "type": dtype, "redop": redop, "root": f"{root:6}"}
    halves = {half(case): case for case in row}
    for place, key in KEYS.items():
        result[key] = None
        if (case := halves.get(place)) is not None:
            time_us, algbw, busbw, wrong = nccl_tests.columns(run, summaries[case])
            rates = {"alg_bw": _number(algbw), "bus_bw": _number(busbw)}
            result[key] = {"time": _number(time_us), **rates, "nwrong": wrong}
            if timed and (samples := [s for s in _samples(run, case) if s.timed is not None]):
                result[f"{key}_per_iter"] = _per_iteration(np.concatenate([*map(_host_ns, samples)]) / 1e3)
    result["actual_iterations"] = _iterations(summaries[case] for case in row)
    result["experiment_name"] = run.name
    return result


def _per_iteration(rank_times: NDArray[np.float64]) -> Json:
    """Return the times of the iterations of all launches, launch after launch; a process is a rank."""
    times = rank_times.max(axis=1)
    average, deviation = float(times.mean()), float(times.std())
    percentiles = {f"p{q}_us": float(np.percentile(times, q, method="inverted_cdf")) for q in (50, 95, 99)}
    return {
        "skipped_iterations": 0,
        "min_us": float(times.min()),
        "max_us": float(times.max()),
        "avg_us": average,
        **percentiles,
        "stdev_us": deviation,
        "cv_pct": 100 * deviation / average,
        "times_us": times.tolist(),
        "per_process_max_times_us": rank_times.T.tolist(),
    }


def _iterations(members: Iterable[Summary]) -> int:
    return max(s.iterations // max(1, s.launches) for s in members)


# ── values ───────────────────────────────────────────────────────────────────────────────────────
def _samples(run: Run, case: Case) -> list[Samples]:
    """Return the samples of a case that have times, launch after launch."""
    samples = (s for s in run.samples if s.case == case and (s.timed is not None or s.aggregate is not None))
    return sorted(samples, key=lambda s: s.launch)


def _host_ns(samples: Samples) -> NDArray[np.int64]:
    """Return the times by the host's clock, also on GPUs. Shape: (iterations, ranks)."""
    assert samples.timed is not None  # noqa: S101 - callers have looked
    return samples.timed.duration_ns if samples.timed.host_ns is None else samples.timed.host_ns


def _version(ranks: Sequence[RankFacts]) -> int | None:
    """Return NCCL's version as NCCL encodes it: 22902 for 2.29.2; None if unknown."""
    parts = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.|$)", str(ranks[0].get("nccl")) if ranks else "")
    return int(parts[1]) * 10000 + int(parts[2]) * 100 + int(parts[3]) if parts else None


def _clock(moment: str | None) -> str | None:
    """Format `2026-01-02T03:04:05+00:00` as `2026-01-02 03:04:05`."""
    return moment[:19].replace("T", " ") if moment else None


def _number(value: float | None) -> float | str:
    return nccl_tests.NO_NUMBER if value is None else value
