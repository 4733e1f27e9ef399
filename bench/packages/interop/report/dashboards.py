"""Write a run for cluster monitoring: OpenMetrics for node_exporter's textfile collector, and JSON line by line.

In: a `Run` and its analysis. Out: text. Names and labels are those of NCCL's Inspector (`inspector_prom.cc` in NVIDIA's
nccl) where it has them, so that its dashboards show these numbers, too: gauges `nccl_bus_bandwidth_gbs` in GB/s and
`nccl_collective_exec_time_microseconds`, with labels collective, nranks, n_nodes, message_size, algo_proto, node, gpu,
comm_name. Ends of an interval are gauges of their own, `_low` and `_high`.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime

from bench.catalog.collectives import OPERATIONS
from bench.model.conclusions import Summary
from bench.model.units import format_bytes
from bench.packages.interop.report.nccl_tests import ranks_of
from bench.report import openmetrics as openmetrics_file
from bench.report.labels import label
from bench.report.machine_format import public_cases
from bench.report.openmetrics import END, gauge
from bench.report.view import View

# What NCCL's Inspector calls an operation, where it is not the name's words put together.
COLLECTIVES = {"all_to_all": "AlltoAll", "send_recv": "SendRecv"}
UNKNOWN = "unknown"
Value = Callable[[Summary], float | None]


def openmetrics(view: View) -> str:
    """All numbers of the run as gauges; nothing for a case without a time."""
    run, labelled = view.run, list(_labelled(view))
    lines = [
        line
        for name, unit, about, value in GAUGES
        for line in gauge(name, [(labels, value(summary)) for labels, summary in labelled], about, unit)
    ]
    of_run = {"run": run.name, "collbench": str(run.manifest.get("collbench", UNKNOWN))}
    started = run.manifest.get("started")
    begun = datetime.fromisoformat(started).timestamp() if started else None
    lines += gauge("collbench_run_started_timestamp_seconds", [(of_run, begun)], "When the run began.", "seconds")
    failed = sum(samples.failure is not None for samples in run.samples)
    lines += gauge("collbench_failed_measurements", [(of_run, failed)], "Measurements of the run that failed.")
    lines += openmetrics_file.notices("run", view.analysis.notices)
    return "\n".join([*lines, END])


def jsonl(view: View) -> str:
    """A line for each case, with the fields of `cases` in docs/report-schema.json, and of which run it is."""
    of = {"run": view.run.name, "started": view.run.manifest.get("started")}
    cases = (case.model_dump(mode="json", by_alias=True, exclude_unset=True) for case in public_cases(view))
    return "\n".join(json.dumps({**of, **case}, ensure_ascii=False, allow_nan=False) for case in cases)


def _labelled(view: View) -> Iterator[tuple[dict[str, str], Summary]]:
    run = view.run
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
            },
            summary,
        )


def _rate(seconds: Callable[[Summary], float | None]) -> Value:
    """Bus bandwidth in GB/s, if a call took that long."""

    def rate(summary: Summary) -> float | None:
        time_s = seconds(summary)
        if summary.busbw is None or summary.time_s is None or not time_s:
            return None
        return summary.busbw * summary.time_s.value / time_s / 1e9

    return rate


def _end(which: str) -> Callable[[Summary], float | None]:
    return lambda s: getattr(s.time_s, which) if s.time_s is not None and s.time_s.known else None


def _time(seconds: Callable[[Summary], float | None]) -> Value:
    def time(summary: Summary) -> float | None:
        found = seconds(summary)
        return None if found is None else found * 1e6

    return time


def _value(summary: Summary) -> float | None:
    return None if summary.time_s is None else summary.time_s.value


BANDWIDTH, TIME = "nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"
# Name, unit, what it is, its value of a case.
GAUGES: tuple[tuple[str, str, str, Value], ...] = (
    (BANDWIDTH, "gbs", "Bus bandwidth in GB/s.", _rate(_value)),
    (f"{BANDWIDTH}_low", "", "Lower end of its interval.", _rate(_end("high"))),
    (f"{BANDWIDTH}_high", "", "Upper end of its interval.", _rate(_end("low"))),
    (TIME, "microseconds", "Time of a call on the slowest rank.", _time(_value)),
    (f"{TIME}_low", "", "Lower end of its interval.", _time(_end("low"))),
    (f"{TIME}_high", "", "Upper end of its interval.", _time(_end("high"))),
    ("collbench_launches", "", "Launches behind a number.", lambda s: float(s.launches)),
)
