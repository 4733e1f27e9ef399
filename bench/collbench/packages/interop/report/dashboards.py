"""Write a run for monitoring: OpenMetrics for node_exporter, JSON line by line, and JSON for Bencher.

In: the view of a run. Out: text. Numbers of NCCL have the names and labels of NCCL's Inspector (`inspector_prom.cc` in
NVIDIA's nccl), so that its dashboards show these numbers, too: gauges `nccl_bus_bandwidth_gbs` in GB/s and
`nccl_collective_exec_time_microseconds`, with labels collective, nranks, n_nodes, message_size, algo_proto, node, gpu,
comm_name. Numbers of other libraries are in bytes per second and seconds, under names that begin with `collbench`.
Every gauge has the run's name and a digest of its configuration, so that the files of two runs do not collide. The
bounds of an interval are separate gauges, `_low` and `_high`.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

from collbench.catalog.collectives import OPERATIONS
from collbench.model.conclusions import Summary
from collbench.model.units import format_bytes
from collbench.packages.interop.report.nccl_tests import ranks_of
from collbench.report.labels import label
from collbench.report.machine_format import case_rows
from collbench.report.openmetrics import END, PREFIX, gauge, notices, series_of
from collbench.report.rows import row
from collbench.report.view import View

# Operation → its name in NCCL's Inspector, if this is not our name in capitalised words.
COLLECTIVES = {"all_to_all": "AlltoAll", "send_recv": "SendRecv"}
UNKNOWN = "unknown"
# Beginning of the names of NCCL's Inspector.
INSPECTOR = "nccl"
Value = Callable[[Summary], float | None]


def openmetrics(view: View, prefix: str | None = None) -> str:
    """Return all numbers of the run as gauges; a case without a time has no gauges.

    prefix: beginning of all names, such as `nccl` for Inspector's names; None: by library, as in the module docstring.
    """
    run, labelled = view.run, list(_labelled(view))
    lines = []
    for first in dict.fromkeys(_prefix(summary, prefix) for _, summary in labelled):
        own = [(labels, summary) for labels, summary in labelled if _prefix(summary, prefix) == first]
        for name, unit, about, value in _gauges(first):
            lines += gauge(name, [(labels, value(summary)) for labels, summary in own], about, unit)
    launches = [(labels, float(summary.launches)) for labels, summary in labelled]
    lines += gauge("collbench_launches", launches, "Launches behind a number.")
    series = series_of(run.plan)
    run_labels = {**series, "collbench": str(run.manifest.get("collbench", UNKNOWN))}
    started = run.manifest.get("started")
    begun = datetime.fromisoformat(started).timestamp() if started else None
    lines += gauge("collbench_run_started_timestamp_seconds", [(run_labels, begun)], "When the run began.", "seconds")
    failed = sum(samples.failure is not None for samples in run.samples)
    lines += gauge("collbench_failed_measurements", [(run_labels, failed)], "Measurements of the run that failed.")
    lines += notices({"of": "run", **series}, view.analysis.notices)
    return "\n".join([*lines, END])


def jsonl(view: View) -> str:
    """Return a line per case, with the fields of `cases` in docs/report-schema.json, and name and start of its run."""
    run_fields = {"run": view.run.name, "started": view.run.manifest.get("started")}
    cases = ({**run_fields, **row(case)} for case in case_rows(view))
    return "\n".join(json.dumps(case, ensure_ascii=False, allow_nan=False) for case in cases)


def bencher(view: View) -> str:
    """Return Bencher's metric format: per key of a case, `latency` in nanoseconds with the bounds of its interval."""
    benchmarks = {}
    for summary in view.analysis.summaries:
        if summary.time_s is not None:
            metric = {"value": 1e9 * summary.time_s.value}
            if summary.time_s.known:
                metric |= {"lower_value": 1e9 * summary.time_s.low, "upper_value": 1e9 * summary.time_s.high}
            benchmarks[summary.case.key] = {"latency": metric}
    return json.dumps(benchmarks, indent=1, allow_nan=False)


def _labelled(view: View) -> Iterator[tuple[dict[str, str], Summary]]:
    run, series = view.run, series_of(view.run.plan)
    host = run.environment[0].get("host", {}) if run.environment else {}
    for summary in view.analysis.summaries:
        case = summary.case
        nodes = {facts.get("hostname") for facts in ranks_of(run, case)}
        words = "".join(word.capitalize() for word in case.op.split("_"))
        yield (
            {
                "collective": COLLECTIVES.get(case.op, words),
                "nranks": str(case.world_size),
                "n_nodes": str(len(nodes) or 1),
                "message_size": format_bytes(case.size_bytes) if OPERATIONS[case.op].sized else "",
                "algo_proto": summary.chosen or "",
                "node": str(host.get("hostname", UNKNOWN)),
                "gpu": "all",
                "comm_name": "collbench",
                "backend": case.backend,
                "case": label(case),
                "virtual": str(summary.virtual).lower(),
                **series,
            },
            summary,
        )


def _prefix(summary: Summary, requested: str | None) -> str:
    return requested or (INSPECTOR if summary.case.backend == "nccl" else PREFIX)


def _gauges(prefix: str) -> Iterator[tuple[str, str, str, Value]]:
    """Yield name, unit, description and value function of each gauge: in Inspector's names and units, or in ours."""
    bandwidth, rate, rate_unit = "bus_bandwidth_bytes_per_second", 1.0, ""
    time, unit, time_unit = "call_time_seconds", 1.0, "seconds"
    if prefix == INSPECTOR:
        bandwidth, rate, rate_unit = "bus_bandwidth_gbs", 1e9, "gbs"
        time, unit, time_unit = "collective_exec_time_microseconds", 1e-6, "microseconds"
    limits = {"_low": "Lower limit of its interval.", "_high": "Upper limit of its interval."}
    yield f"{prefix}_{bandwidth}", rate_unit, "Bus bandwidth of a call.", partial(_rate, "value", rate)
    for (suffix, about), shortest in zip(limits.items(), ("high", "low"), strict=True):
        yield f"{prefix}_{bandwidth}{suffix}", "", about, partial(_rate, shortest, rate)
    yield f"{prefix}_{time}", time_unit, "Time of a call on the slowest rank.", partial(_time, "value", unit)
    for suffix, about in limits.items():
        yield f"{prefix}_{time}{suffix}", "", about, partial(_time, suffix[1:], unit)


def _time(end: str, unit: float, summary: Summary) -> float | None:
    """Return the time of a call in units of `unit` seconds, or an end of its interval if the interval is known."""
    time_s = summary.time_s
    known = time_s is not None and (end == "value" or time_s.known)
    return getattr(time_s, end) / unit if known else None


def _rate(end: str, unit: float, summary: Summary) -> float | None:
    """Return the bus bandwidth, in units of `unit` bytes per second, of a call that takes this time."""
    seconds = _time(end, 1.0, summary)
    if summary.busbw is None or summary.time_s is None or not seconds:
        return None
    return summary.busbw * summary.time_s.value / seconds / unit
