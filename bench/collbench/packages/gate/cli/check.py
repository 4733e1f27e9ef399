"""Define the verb `check`: does a run reach the bandwidths that a table expects?"""

from pathlib import Path
from typing import Annotated

import typer

from collbench.cli.app import RESULTS, RunName
from collbench.cli.comparison import SLOWER_OR_FAILED, UNDECIDED, ComparisonFormat, IfUndecided, print_as
from collbench.config import names
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.model.records import Undecided
from collbench.packages.gate.conclusions import CheckVerdict
from collbench.store import folders


def check(
    table: Annotated[
        str,
        typer.Argument(
            help="A table of expected bandwidths (YAML), or TABLE:NETWORK if it has several.",
            metavar="TABLE[:NETWORK]",
            autocompletion=lambda: [path.stem for path in names.files(names.EXPECTED)],
        ),
    ],
    run: RunName = None,
    undecided: IfUndecided = Undecided.THREE,
    format: Annotated[  # noqa: A002
        ComparisonFormat | None,
        typer.Option(help=f"Print only this: {', '.join(ComparisonFormat)}.", metavar="FORMAT"),
    ] = None,
) -> int:
    """All lines of the table are tested together. A line for other hardware applies to no case.

    Exit code 1 if a line surely misses its limit, or was not measured. 3 if the table is neither met nor missed.
    """
    from collbench.analyze.sessions import places_of
    from collbench.analyze.summaries import headlines
    from collbench.packages.gate import config, report
    from collbench.packages.gate.analyze import tables
    from collbench.report.labels import label

    path, colon, fabric = (table, "", "") if Path(table).exists() else table.partition(":")
    expectations = config.load(names.path_of(Path(path), names.EXPECTED))
    kept = folders.read(folders.find(RESULTS, run))
    try:
        lines = tables.lines_for_fabric(expectations, fabric) if colon else expectations
        result = tables.check(lines, headlines(kept), places_of(kept))
    except ConfigError as error:
        raise ConfigError(f"{table}: {error}") from None
    if all(line.measured is None for line in result.checks):
        wanted = "; ".join(label(line.case) for line in result.checks)
        raise UnmeasurableError(f"{kept.name} has measured no case that {table} expects: {wanted}", result.reason)
    # A line that was not measured is a failure in any case.
    fatal = {CheckVerdict.FAIL, CheckVerdict.MISSING}
    fatal |= {CheckVerdict.INCONCLUSIVE} if undecided is Undecided.FAIL else set()
    writers = {
        ComparisonFormat.CSV: lambda: report.checks_csv(result.checks),
        ComparisonFormat.JSON: lambda: report.checks_json(result, kept.name),
        ComparisonFormat.JUNIT: lambda: report.checks_junit(result, kept.name, fatal),
    }
    print_as(format, lambda: report.checks_document(result, kept.name), writers)
    if result.verdict in fatal:
        return SLOWER_OR_FAILED
    return UNDECIDED if result.verdict == CheckVerdict.INCONCLUSIVE and undecided is Undecided.THREE else 0
