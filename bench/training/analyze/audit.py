"""Find the published communication times that cannot be right, and by how much.

In: a `Published` table. Out: an `Audit` of each group of rows of the same computing. Where a strategy blocks, the step
is T_compute plus the communication it waits for, so step − comm is T_compute. Such rows must agree with each other;
then every other row must expose step − T_compute, whatever its own timer said: a timer that starts after a device
synchronise misses the wait (docs/training-audit.md). Nothing is measured, and doubts favour the published number.
"""

from collections.abc import Iterator

from bench.training.published import Audit, AuditedRow, Entry, GroupAudit, Published, TableGroup

# Strategies that wait for all their communication after backward: all the communication they report lengthens the step.
BLOCKING = ("naive", "flat")
# Strategies that do not communicate: their step is T_compute.
SILENT = ("none", "no_ddp")
# Strategies whose ranks compute something else: a share of the optimizer's work, or of the layers.
OTHER_WORK = ("zero1", "zero_redundancy", "fsdp", "fsdp2", "dp", "tp", "pp")
# Largest relative distance of T_compute between rows that agree, and smallest uncertainty of T_compute. In the tables
# we know, rows that agree are 0.1 % and 0.5 % apart, rows that do not are 5 % apart.
TOLERANCE = 0.01
# Largest relative distance of a reported share from comm / step: it may be rounded, or a mean of shares.
SHARE_TOLERANCE = 0.05


def audit(published: Published, tolerance: float = TOLERANCE) -> Audit:
    """Judge every group of rows by itself."""
    return Audit(published, tolerance, tuple(_group(group, tolerance) for group in published.groups))


def _group(group: TableGroup, tolerance: float) -> GroupAudit:
    bases = {entry.name: base for entry in group.entries if (base := _base(entry)) is not None}
    reason = _reason(group, bases, tolerance)
    if reason is not None:
        findings = tuple(AuditedRow(entry, wrong=tuple(_impossible(entry))) for entry in group.entries)
        return GroupAudit(group, bases, None, reason, findings)
    values = list(bases.values())
    compute = sum(values) / len(values)
    margin = max(tolerance * compute, max(values) - compute)
    findings = tuple(_finding(entry, bases, compute, margin) for entry in group.entries)
    return GroupAudit(group, bases, compute, None, findings)


def _base(entry: Entry) -> float | None:
    """T_compute by this row; None where the row does not determine it."""
    step, comm = entry.numbers.get("step"), entry.numbers.get("comm")
    if entry.problems or step is None or next(_impossible(entry), None):
        return None
    if entry.strategy in SILENT:
        return step
    return step - comm if entry.strategy in BLOCKING and comm is not None else None


def _apart(values: list[float]) -> float:
    return (max(values) - min(values)) / (sum(values) / len(values)) if values else 0.0


def _reason(group: TableGroup, bases: dict[str, float], tolerance: float) -> str | None:
    """Why T_compute of the group is not known; None if it is."""
    silent = any(entry.name in bases and entry.strategy in SILENT for entry in group.entries)
    if len(bases) >= 2 or silent:
        if _apart(list(bases.values())) <= tolerance:
            return None
        return f"the rows that determine T_compute disagree by {100 * _apart(list(bases.values())):.1f} %"
    able = [entry for entry in group.entries if entry.strategy in (*BLOCKING, *SILENT)]
    flaws = [f"{entry.name}: {flaw}" for entry in able if entry.name not in bases for flaw in _flaws(entry)]
    if flaws:
        return "; ".join(flaws)
    if bases:
        return f"only {next(iter(bases))} determines T_compute, and no second row confirms it"
    return f"no row of a strategy that blocks ({', '.join(BLOCKING)}) or does not communicate ({', '.join(SILENT)})"


def _flaws(entry: Entry) -> list[str]:
    """Why a row that should determine T_compute does not."""
    needed = ("step",) if entry.strategy in SILENT else ("step", "comm")
    missing = [] if entry.problems else [f"no {what} time" for what in needed if what not in entry.numbers]
    return [*entry.problems, *missing, *_impossible(entry)]


def _impossible(entry: Entry) -> Iterator[str]:
    """What cannot be right in a row, whatever the other rows say."""
    step, comm, share = (entry.numbers.get(name) for name in ("step", "comm", "share"))
    if step is not None and step <= 0:
        yield "the step time must be above 0"
    if comm is not None and comm < 0:
        yield "the communication time must not be negative"
    if step is None or comm is None or step <= 0 or comm < 0:
        return
    if entry.strategy in BLOCKING and comm >= step:
        yield "its communication time is not below its step time"
    if share is not None and abs(share - comm / step) > SHARE_TOLERANCE * max(share, comm / step):
        yield f"the reported share {share:.2%} is not comm / step = {comm / step:.2%}"


def _finding(entry: Entry, bases: dict[str, float], compute: float, margin: float) -> AuditedRow:
    """What a row must expose and whether it can be right, given T_compute ± margin."""
    wrong = list(_impossible(entry))
    step, comm = entry.numbers.get("step"), entry.numbers.get("comm")
    if entry.name in bases:
        return AuditedRow(entry, entry.numbers["step"] - compute, wrong=tuple(wrong), note="determines T_compute")
    if entry.problems or step is None:
        return AuditedRow(entry, wrong=tuple(wrong), note="; ".join(entry.problems) or "no step time is reported")
    if entry.strategy in OTHER_WORK:
        return AuditedRow(entry, wrong=tuple(wrong), note="its ranks compute something else: T_compute does not apply")
    exposed, doubt = step - compute, margin + entry.numbers.get("step_std", 0.0)
    if exposed < -doubt:
        wrong.append("the step is shorter than T_compute: one of the two is wrong")
    least = exposed - doubt
    if comm is None or comm < 0:
        return AuditedRow(
            entry, exposed, least, wrong=tuple(wrong), note="no communication time is reported" * (not wrong)
        )
    if least <= comm + entry.numbers.get("comm_std", 0.0):
        return AuditedRow(entry, exposed, least, wrong=tuple(wrong), note="" if wrong else "can be right")
    wrong.append("less communication reported than exposed")
    return AuditedRow(entry, exposed, least, exposed / comm if comm else float("inf"), tuple(wrong))
