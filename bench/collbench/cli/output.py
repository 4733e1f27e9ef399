"""Print what a verb concluded, and write it into files; the tables, answer and report of a run.

Documents go into the folder of the run, pictures below plots/.
Documents of a run outside results/ go with its pictures.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from collbench.cli.app import PLOTS, RESULTS
from collbench.cli.terminal import say, show
from collbench.model.conclusions import Analysis
from collbench.model.deferred import Deferred
from collbench.model.errors import BenchError, StoreError
from collbench.model.records import Run
from collbench.report import plots as catalogue
from collbench.report.blocks import Block
from collbench.report.plots import Picture
from collbench.report.view import View
from collbench.store import folders

# Longest name of a folder, in bytes. File systems allow 255, some that encrypt names allow 143.
LONGEST_NAME = 140
# Characters that some file systems, or services that store artefacts, refuse in the name of a folder; and spaces.
REFUSED = re.compile(r'[\s\\/:*?"<>|]+')

# Returns all conclusions from a run, after loading numpy and scipy.
analyzed: Callable[[Run], Analysis] = Deferred("analyze.analysis:analyze")
# Path → text, or blocks to be written as Markdown.
Files = Mapping[Path, str | Sequence[Block]]


def folder_name(text: str) -> str:
    """Return a text as the name of a folder, cut if it is too long."""
    return REFUSED.sub("-", text).encode(errors="ignore")[:LONGEST_NAME].decode(errors="ignore")


@contextlib.contextmanager
def optional(part: str = "pictures", remedy: str = " (run, report, ab: --no-plots)") -> Iterator[None]:
    """Print in one line why a part failed that the verdict does not depend on: the exit code stays the verdict's."""
    try:
        yield
    except BrokenPipeError:  # the reader of stdout has left
        raise
    except Exception as error:
        reason = error if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"
        say(f"note: no {part}: {reason}{remedy}", err=True)


def documents_at(path: Path, name: str) -> Path:
    """Return the folder for documents of the run in `path`: its own folder if it is in results/ here and writable.

    Other runs may be in version control, or belong to somebody else: their documents go to `name`, with the pictures.
    """
    ours = RESULTS.resolve() in path.resolve().parents and os.access(path, os.W_OK)
    return path if ours else PLOTS / name


def give(
    blocks: Sequence[Block],
    files: Files,
    draw: Callable[[], Path | None] = lambda: None,
    quiet: bool = False,
) -> None:
    """Print what a verb concluded, write its files and its picture, and print their paths.

    draw: draws the picture, if there is one, and returns its path. quiet: print only the first line of the blocks.
    Raises StoreError if a file cannot be written.
    """
    from collbench.report import markdown  # deferred import: loads tabulate

    show(blocks, quiet)
    paths = [*files]
    for path, content in files.items():
        folders.make_folder(path.parent)
        folders.write(path, content if isinstance(content, str) else markdown.written(content))
    with optional():
        paths += filter(None, [draw()])
    if paths and not quiet:
        say("\n" + "\n".join(map(str, paths)))


def conclude(
    run: Run,
    analysis: Analysis,
    plots: bool,
    quiet: bool = False,
    with_tables: bool = True,
    paper: bool = False,
    faults: Sequence[str] = (),
) -> int:
    """Print tables, caveats and answer of a run, and write its report; return 1 if something failed, else 0.

    quiet: print one line. with_tables: False if the tables were printed already, for programs, so that all else is
    printed to stderr. faults: a sentence on each thing that failed besides measurements. For the other parameters see
    `write_report`. Raises StoreError if a document cannot be written.
    """
    from collbench.report import document  # deferred import: loads the writers of tables

    view = View(run, analysis)
    tables, ending = document.terminal(view)
    answer = [document.brief(view)] if quiet else [*(tables if with_tables else []), *ending]
    show(answer, quiet, err=not with_tables)
    try:
        written = write_report(view, plots, paper)
    except StoreError as error:
        kept = f"the report is not complete, and all that was measured is kept in {run.path}"
        raise StoreError(f"{error}; {kept}") from None
    page = next((path for path in written if path.endswith(".html")), written[0])
    pictures = [path for path in written if not Path(path).suffix] if plots else []
    if not quiet:
        say("\n" + " · pictures: ".join([f"report: {page}", *pictures]), err=not with_tables)
    problems = [*document.problems(run), *faults]
    for problem in problems:
        say(problem, err=True)
    return 1 if problems else 0


def write_report(view: View, plots: bool, paper: bool = False) -> list[str]:
    """Write the documents, with pictures if `plots` or if some exist. Returns their paths and the pictures' folder.

    A run in a folder that `run --output` named has its documents and pictures there. paper: draw pictures that fit a
    column of a paper.
    """
    from collbench.report import document  # deferred import: loads the writers of tables

    run = view.run
    chosen = run.manifest.get("output") == str(run.path.resolve()) and os.access(run.path, os.W_OK)
    name = folder_name(run.name) if "side" in run.manifest else run.path.resolve().name
    pictures_at = run.path / "plots" if chosen and not (run.path / "plots").is_symlink() else PLOTS / name
    pictures: list[Picture] = []
    with optional():
        pictures = catalogue.draw(view, pictures_at, paper) if plots else catalogue.drawn(pictures_at)
    folder = run.path if chosen else documents_at(run.path, name)
    folders.make_folder(folder)
    written = document.documents(view, pictures, pictures_at, folder)
    for file_name, content in written.items():
        folders.write(folder / file_name, content)
    return [str(folder / file_name) for file_name in written] + [str(pictures_at)] * bool(pictures)
