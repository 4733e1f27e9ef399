"""Print text for people as wide as the terminal is, and write the report of a run.

Documents go into the folder of the run, pictures below plots/.
"""

import os
import shutil
import textwrap
from pathlib import Path

from bench.cli.app import PLOTS, RESULTS
from bench.cli.terminal import say
from bench.model.conclusions import Analysis
from bench.model.records import Run
from bench.report import plots as catalogue
from bench.report.markdown import fitted
from bench.store import folders


def show(text: str) -> None:
    """Print Markdown. What programs read is printed as it is, without this."""
    say(fitted(text, _columns()))


def show_hanging(first: str, text: str) -> None:
    """Print a word or two, and behind them a text whose further lines begin where its first line does."""
    say(textwrap.fill(first + text, _columns(), subsequent_indent=" " * len(first), break_on_hyphens=False))


def _columns() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def is_ours(path: Path) -> bool:
    """Whether a run's folder may be written to unasked: it lies in results/ here, and its owner allows it.

    Others may be kept in version control, or belong to somebody else.
    """
    return RESULTS.resolve() in path.resolve().parents and os.access(path, os.W_OK)


def analyzed(run: Run) -> Analysis:
    """All conclusions from a run, with what is advised on buckets where it trained."""
    from bench.analyze.analysis import analyze  # here: loads numpy and scipy

    analysis = analyze(run)
    if not analysis.scenarios:
        return analysis
    from bench.advise.runs import with_advice

    return with_advice(run, analysis)


def write_report(run: Run, analysis: Analysis, plots: bool, output: Path | None = None) -> list[str]:
    """Write the documents, with pictures if `plots` or if some exist.

    output: the folder of the documents; that of the run if None. Returns lines to print: what was written, and why the
    rest was not.
    """
    from bench.report import document  # here: it loads what writes tables

    # A side of a run has a name with a colon, which is no name for a folder everywhere.
    pictures_at = PLOTS / (run.name.replace(":", "-") if "side" in run.manifest else run.path.resolve().name)
    pictures = catalogue.draw(run, analysis, pictures_at) if plots else catalogue.drawn(pictures_at)
    if output is None and not is_ours(run.path):
        note = f"The report was not written: {run.path} is not a folder of {RESULTS}/ here (--output FOLDER writes it)."
        return [*([str(pictures_at)] if plots and pictures else []), note]
    folder = output or run.path
    written = document.documents(run, analysis, pictures, pictures_at, folder)
    for name, content in written.items():
        folders.write(folder / name, content)
    return [str(folder / name) for name in written] + [str(pictures_at)] * bool(pictures)
