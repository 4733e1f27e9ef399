"""What follows from a published table: made by `training.analyze.audit`, shown by `training.report.audit`.

Published ─▶ AuditedRow(one a row) ─▶ GroupAudit(one a group) ─▶ Audit
"""

from dataclasses import dataclass

from bench.training.published import Entry, Published, TableGroup


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """What follows for one row. Seconds.

    exposed_s: step − T_compute; least_s: what it is at least, given how far T_compute and the step are known.
    factor: exposed / reported communication where that is understated; infinite if none was reported.
    wrong: why it cannot be right; note: why nothing follows, or what else there is to say.
    """

    entry: Entry
    exposed_s: float | None = None
    least_s: float | None = None
    factor: float | None = None
    wrong: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class GroupAudit:
    """What follows for one group. bases: T_compute by each row that determines it. reason: why nothing follows."""

    group: TableGroup
    bases: dict[str, float]
    compute_s: float | None
    reason: str | None
    findings: tuple[AuditedRow, ...]

    @property
    def apart(self) -> float:
        """How far the rows that determine T_compute lie apart, as a share of it."""
        values = list(self.bases.values())
        return (max(values) - min(values)) / (sum(values) / len(values)) if values else 0.0

    @property
    def understated(self) -> list[AuditedRow]:
        """Rows whose communication time is understated."""
        return [finding for finding in self.findings if finding.factor is not None]

    @property
    def wrong(self) -> list[AuditedRow]:
        """Rows that cannot be right, for whatever reason."""
        return [finding for finding in self.findings if finding.wrong]


@dataclass(frozen=True, slots=True)
class Audit:
    """What follows for a whole file."""

    published: Published
    tolerance: float
    groups: tuple[GroupAudit, ...]

    @property
    def wrong(self) -> bool:
        """Is there a row that cannot be right?"""
        return any(group.wrong for group in self.groups)

    @property
    def conclusive(self) -> bool:
        """Does any group allow a conclusion?"""
        return any(group.reason is None for group in self.groups)
