"""Write a run for monitoring: OpenMetrics for node_exporter, JSON line by line, and JSON for Bencher.

In: the view of a run. Out: text. Numbers of NCCL have the names and labels of NCCL's Inspector (`inspector_prom.cc` in
NVIDIA's nccl), so that its dashboards show these numbers, too: gauges `nccl_bus_bandwidth_gbs` in GB/s and
`nccl_collective_exec_time_microseconds`, with labels collective, nranks, n_nodes, message_size, algo_proto, node, gpu,
comm_name. Numbers of other libraries are in bytes per second and seconds, under names that begin with `collbench`.
Every gauge has the run's name and a digest of its configuration, so that the files of two runs do not collide. The
bounds of an interval are separate gauges, `_low` and `_high`.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

from collbench.catalog.collectives import OPERATIONS
from collbench.model.conclusions import Summary
from collbench.model.units import format_bytes
from collbench.packages.interop.catalog import capitalised
from collbench.packages.interop.report.nccl_tests import ranks_of
from collbench.report.labels import label
from collbench.report.machine_format import case_rows
from collbench.report.openmetrics import END, PREFIX, gauge, notices, series_of
from collbench.report.rows import row
from collbench.report.view import View

UNKNOWN = "unknown"
# Beginning of the names of NCCL's Inspector.
INSPECTOR = "nccl"
# Bus bandwidth and time: name, name of the unit, and the unit in bytes per second and in seconds.
INSPECTORS = ("bus_bandwidth_gbs", "gbs", 1e9), ("collective_exec_time_microseconds", "microseconds", 1e-6)
OURS = ("bus_bandwidth_bytes_per_second", "", 1.0), ("call_time_seconds", "seconds", 1.0)
ABOUT = "Bus bandwidth of a call.", "Time of a call on the slowest rank."
LIMITS = ("_low", "Lower limit of its interval."), ("_high", "Upper limit of its interval.")


def openmetrics(view: View, prefix: str | None = None) -> str:
    """Return all numbers of the run as gauges; a case without a time has no gauges.

    prefix: beginning of all names, such as `nccl` for Inspector's names; None: by library, as in the module docstring.
    """
    run, lines, gauges = view.run, list[str](), defaultdict(list)
    labelled = [(_labels(view, summary), summary) for summary in view.analysis.summaries]
    for labels, summary in labelled:
        for name, unit, about, value in _gauges(summary, prefix):
            gauges[name, about, unit].append((labels, value))
    for (name, about, unit), rows in gauges.items():
        lines += gauge(name, rows, about, unit)
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


def _labels(view: View, summary: Summary) -> dict[str, str]:
    run, case = view.run, summary.case
    host = run.environment[0].get("host", {}) if run.environment else {}
    nodes = {facts.get("hostname") for facts in ranks_of(run, case)}
    return {
        "collective": capitalised(case.op),
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
        **series_of(run.plan),
    }


def _gauges(summary: Summary, prefix: str | None) -> Iterator[tuple[str, str, str, float | None]]:
    """Yield name, unit, description and value of each gauge of a case: in Inspector's names and units, or in ours."""
    prefix = prefix or (INSPECTOR if summary.case.backend == "nccl" else PREFIX)
    value = low = high = moved = None
    if summary.time_s is not None:
        value = summary.time_s.value
        low, high = (summary.time_s.low, summary.time_s.high) if summary.time_s.known else (None, None)
        moved = None if summary.busbw is None else summary.busbw * value
    rates = [moved / seconds if moved and seconds else None for seconds in (value, high, low)]
    names = INSPECTORS if prefix == INSPECTOR else OURS
    for (name, unit_name, unit), about, ends in zip(names, ABOUT, (rates, (value, low, high)), strict=True):
        for (suffix, text), end in zip([("", about), *LIMITS], ends, strict=True):
            yield f"{prefix}_{name}{suffix}", "" if suffix else unit_name, text, end and end / unit
