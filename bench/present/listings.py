"""Plans, runs and tables of what exists, as text for a terminal. Loads no pandas: these verbs answer at once."""

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tabulate import tabulate

from bench.backends import BACKENDS
from bench.conclusions import Simulation
from bench.operations import OPERATIONS
from bench.plan import estimate_s
from bench.pools import buffer_bytes
from bench.present.labels import extras, label
from bench.records import Json, Plan
from bench.stamps import bounded
from bench.units import format_bytes, format_rate, format_rounded_bytes, format_seconds


def plan(plan: Plan) -> str:
    """What a run would do: cases, memory, skips, and how long it takes."""
    rows = []
    for op, backend, dtype, n, extra in dict.fromkeys(
        (c.op, c.backend, c.dtype, c.world_size, " ".join(extras(c))) for c in plan.cases
    ):
        members = [c for c in plan.cases if (c.op, c.backend, c.dtype, c.world_size) == (op, backend, dtype, n)]
        members = [c for c in members if " ".join(extras(c)) == extra]
        memory = max(buffer_bytes(c, plan.pool_bytes) for c in members)
        sizes = f"{format_bytes(members[0].size_bytes)} – {format_bytes(members[-1].size_bytes)}"
        data = f"{dtype} {extra}".strip()
        rows.append([op, backend, data, n, len(members), sizes, format_rounded_bytes(memory)])
    headers = ["operation", "backend", "data", "ranks", "sizes", "from – to", "buffers a rank"]
    s = plan.sampling
    count = (
        f"{s.iterations} iterations each"
        if s.iterations
        else f"until ±{s.relative_error:.0%}, {format_seconds(s.seconds_per_case)} or {s.max_iterations} iterations"
    )
    bound = "about" if s.iterations else "at most about"
    lines = [
        tabulate(rows, headers, tablefmt="simple") if rows else "nothing can be measured here",
        "",
        f"{len(plan.cases)} cases × {plan.launches} launches = {plan.total} measurements, {count}; seed {plan.seed}",
        f"takes {bound} {format_seconds(estimate_s(plan))}",
    ]
    lines += [f"at {n} ranks at most {most} iterations are kept" for n, most in bounded(plan).items()]
    if plan.budget_s is not None:
        lines.append("of that, what these launches leave buys further ones for the cases with the widest intervals")
    if plan.skips:
        lines += ["", f"{len(plan.skips)} cases are skipped:"]
        lines += [f"  {label(skip.case)}: {skip.reason}" for skip in plan.skips]
    if plan.faults:
        lines += ["", *(f"planted fault: {fault.do} on rank {fault.rank}" for fault in plan.faults)]
    return "\n".join(lines)


def simulation(found: Simulation) -> str:
    """What a dry run checked: a line for each kind of case, what does not fit, what was left out, what it cost."""
    rows = [
        [
            one.case.op,
            one.case.backend,
            " ".join([one.case.dtype, *extras(one.case)]),
            one.cases,
            one.calls,
            format_rounded_bytes(one.buffer_bytes),
            format_seconds(one.build_s),
            "-" if one.call_s is None else format_seconds(one.call_s),
            f"{len(one.misfits)} misfits" if one.misfits else "fits",
        ]
        for one in found.rehearsals
    ]
    headers = ["operation", "backend", "data", "sizes", "calls", "buffers a rank", "to build", "a call", ""]
    calls, cases = (sum(getattr(one, what) for one in found.rehearsals) for what in ("calls", "cases"))
    wrong = sum(len(one.misfits) for one in found.rehearsals)
    who = f"rank{'s' if len(found.ranks) > 1 else ''} {', '.join(map(str, found.ranks))}"
    lines = [
        tabulate(rows, headers, tablefmt="simple") if rows else "nothing can be measured at this world size",
        "",
        f"on paper, as {who} of {found.world_size}: {calls} calls of {cases} cases against the table of operations, "
        f"{wrong or 'none'} that {'does' if wrong == 1 else 'do'} not fit; nothing was sent and no data were checked",
        f"took {format_seconds(found.wall_s)} in all and {format_rounded_bytes(found.peak_rss_bytes)}; “a call” is "
        "what a small one costs in Python and torch, with the fake group's own copies",
    ]
    if any(one.call_s is None for one in found.rehearsals):
        lines.append("“-”: of Python objects the calls are built, of at most 1 MiB, and not made")
    if found.most_iterations is not None:
        lines.append(f"at {found.world_size} ranks at most {found.most_iterations} iterations are kept")
    lines += [f"  {one.case.op}: {text}" for one in found.rehearsals for text in one.misfits]
    reasons = Counter((skip.case.op, skip.case.backend, skip.reason) for skip in found.skips)
    if reasons:
        lines += ["", f"{len(found.skips)} cases are skipped:"]
        lines += [f"  {op} on {backend}: {count} × {reason}" for (op, backend, reason), count in reasons.items()]
    return "\n".join(lines)


def runs(folders: Iterable[tuple[Path, Json]]) -> str:
    """One line a run: name, when, status, measurements, headline."""
    rows = [
        [path.name, str(manifest.get("started", ""))[:16].replace("T", " "), manifest.get("status"), *_headline(path)]
        for path, manifest in folders
    ]
    return tabulate(rows, ["run", "started (UTC)", "status", "cases", "best bus bandwidth"], tablefmt="simple")


def _headline(path: Path) -> tuple[str, str]:
    """Number of measured cases and the best bandwidth, from the summary that the last report left."""
    try:
        with (path / "summary.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("time_s")]
    except OSError:
        return "-", "no report yet"
    best = max(rows, key=lambda row: float(row.get("busbw") or 0), default=None)
    if best is None:
        return "0", "-"
    ranks, size = best["world_size"], format_bytes(int(best["size_bytes"]))
    rate = format_rate(float(best.get("busbw") or 0))
    return str(len(rows)), f"{rate} GB/s: {best['op']}, {best['backend']}, {ranks} ranks, {size}"


def operations() -> str:
    """The table of collectives."""
    rows = [[op.name, op.size_means, f"{op.bus_factor(4):g}" if op.bus_factor else "-"] for op in OPERATIONS.values()]
    return tabulate(rows, ["operation", "size is", "bus factor at 4 ranks"], tablefmt="simple")


def backends(missing: dict[str, str]) -> str:
    """The table of backends, and whether they can be used here."""
    rows = [[b.name, b.device, b.description, missing.get(b.name, "yes")] for b in BACKENDS.values()]
    return tabulate(rows, ["backend", "device", "what it is", "usable here"], tablefmt="simple")


def configs(files: Sequence[Path]) -> str:
    """Configuration files with the first line of their comment."""
    return tabulate([[str(path), _purpose(path)] for path in files], ["file", "what it is for"], tablefmt="simple")


def _purpose(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line.lstrip("# ") for line in lines if line.startswith("#") and "yaml-language-server" not in line]
    return comments[0] if comments else ""
