"""The verb `perf`: take the flags of nccl-tests, print its columns line by line while measuring, and store the run.

The meanings of the flags are in `interop/cli/flags.py`, the columns in `interop/report/nccl_tests.py`. Ignored flags
are accepted and named in a comment above the table, but --help does not list them. A line is printed as soon as it and
all earlier lines are known.
"""

import functools
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collbench.cli.app import Sets
from collbench.cli.job import run_task
from collbench.cli.measuring import ConfigSource, start
from collbench.cli.terminal import say
from collbench.model.conclusions import Summary
from collbench.model.errors import ConfigError, StoreError, UnmeasurableError
from collbench.model.facts import RankFacts
from collbench.model.records import Case, Launch, Run, Samples
from collbench.packages.interop.cli.flags import FLAGS, files_asked, sizes_asked, translate
from collbench.packages.interop.package import INTEROP
from collbench.packages.interop.report import nccl_tests
from collbench.report.view import View
from collbench.store import folders

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator

# Kind of a launch: its backend and its number of ranks.
Kind = tuple[str, int]


def new_path(requested: str) -> Path:
    """Return the path. If the file exists, append `.0`, `.1` … to the path, as nccl-tests does.

    Raises StoreError if its folder does not exist.
    """
    path = Path(requested)
    if not path.parent.is_dir():
        raise StoreError(f"{path}: no such folder: {path.parent}")
    return next(name for name in (path, *(Path(f"{path}.{number}") for number in range(10_000))) if not name.exists())


class LiveTables:
    """The part of a run that is known so far, and the lines that wait for further results.

    A case is known when it is measured in all its launches. With a budget, which allows further launches, no case is
    known before the end. sizes: the requested sizes, as the heading shows them.
    """

    def __init__(self, run: Run, sizes: str | None = None, files: Mapping[str, Path] | None = None) -> None:
        """Begin without any results. files: format of `report` → file that the run is written to at the end."""
        self._run, self._sizes, self._files = run, sizes, files or {}
        self._missing = Counter(case for launch in run.plan.order for case in launch.cases)
        self._samples: dict[Case, list[Samples]] = defaultdict(list)
        self._summaries: dict[Case, Summary] = {}
        self._ranks: dict[Kind, Sequence[RankFacts]] = {}
        self._printing = self._print()
        self._awaited: set[Case | Kind] | None = next(self._printing, None)

    def joined(self, launch: Launch, ranks: Sequence[RankFacts]) -> None:
        """Record the ranks of a launch, and print all lines that are now known. ranks: facts of each rank."""
        if not self._ranks:
            self._run = folders.read(self._run.path)  # with the session, which was recorded before the launch
        self._ranks.setdefault((launch.backend, launch.world_size), ranks)
        self._go_on()

    def sampled(self, samples: Samples) -> None:
        """Record the samples of a case from one launch, and print all lines that are now known."""
        from collbench.analyze.summaries import headlines  # here: loads numpy and scipy

        case = samples.case
        self._samples[case].append(samples)
        self._missing[case] -= 1
        if self._missing[case] == 0 and self._run.plan.budget_s is None:
            (self._summaries[case],) = headlines(replace(self._run, samples=self._samples.pop(case)))
            self._go_on()

    def concluded(self, view: View) -> list[str]:
        """Print all remaining lines and write the files, after the run has ended; return what failed."""
        self._run = view.run
        self._summaries = {summary.case: summary for summary in view.analysis.summaries}
        for _ in self._printing:
            pass
        for form, path in self._files.items():
            try:
                text = INTEROP.formats[form].value(view)
                with path.open("x", encoding="utf-8") as file:
                    file.write(f"{text}\n")
                say(f"# Writing JSON output to {path}")
            except (ConfigError, OSError) as error:  # the run itself is kept
                say(f"warning: {path}: not written: {error}", err=True)
        tables = [[self._summaries[case] for case in cases] for cases in nccl_tests.tables(self._summaries)]
        low = any(nccl_tests.average_busbw(self._run, members)[1] is False for members in tables)
        return [f"the mean bus bandwidth is too low for {nccl_tests.LEAST_BUSBW}"] * low

    def _go_on(self) -> None:
        while self._awaited is not None and self._awaited <= {*self._summaries, *self._ranks}:
            self._awaited = next(self._printing, None)

    def _print(self) -> Iterator[set[Case | Kind]]:
        """Print all lines. Before each part, yield the cases or the kind that must be known for it."""
        for cases in nccl_tests.tables(self._run.plan.cases):
            kind = cases[0].backend, cases[0].world_size
            yield {kind}
            ranks = self._ranks.get(kind, ())
            say("\n".join(nccl_tests.heading(self._run, cases, ranks, self._summaries, self._sizes)))
            for halves in nccl_tests.rows(cases):
                yield {*halves}
                say(nccl_tests.row_line(self._run, halves, self._summaries))
            say("\n".join(nccl_tests.closing(self._run, cases, self._summaries)))


def with_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of nccl-tests to a verb as options. The verb receives the typed flags as `flags`: letter → text."""
    letters = {f"flag_{flag.letter}_{'upper' if flag.letter.isupper() else 'lower'}": flag.letter for flag in FLAGS}

    @functools.wraps(function)
    def called(*args: Any, **values: Any) -> Any:
        typed = {letter: values.pop(name) for name, letter in letters.items()}
        return function(*args, flags={letter: text for letter, text in typed.items() if text is not None}, **values)

    own = dict(inspect.signature(function).parameters)
    del own["flags"]
    for name, flag in zip(letters, FLAGS, strict=True):
        option = typer.Option(
            f"-{flag.letter}",
            *(f"--{long}" for long in flag.names),
            metavar=flag.value,
            help=flag.help,
            hidden=not flag.help,
        )
        kind = Annotated[str | None, option]
        own[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    # typer reads both the signature and the annotations.
    called.__signature__ = inspect.Signature([*own.values()])  # type: ignore[attr-defined]
    called.__annotations__ = {name: parameter.annotation for name, parameter in own.items()}
    return called


@with_flags
def perf(
    context: typer.Context,
    operation: Annotated[
        str, typer.Argument(help="all_reduce, or nccl-tests' name: alltoall_perf.", metavar="OPERATION")
    ],
    backend: Annotated[
        str, typer.Option(help="Measure with this backend; gloo is on the CPU.", metavar="NAME")
    ] = "nccl",
    save: Annotated[
        Path | None, typer.Option(help="Measure nothing: write the YAML of the flags to this new file.", metavar="FILE")
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.", metavar="")] = True,
    *,
    flags: Mapping[str, str],
) -> int:
    """Print lines while measuring, and keep the run. Comments name flags that work differently; the rest is on stderr.

    In a job (torchrun, srun, mpirun) all processes measure together, and rank 0 prints.
    """

    def task(coordinator: "Coordinator | None") -> int:
        from collbench.machine import environment, host

        machine = host.machine() if coordinator is None else coordinator.machine()
        text = translate(operation, flags, backend, machine.ranks or 1, **environment.variables())
        if save is not None:
            _keep(save, text, sets)
            return 0
        if (reason := machine.backends_missing.get(backend)) is not None:
            remedy = () if "gloo" in machine.backends_missing else ("add --backend gloo to measure on the CPU",)
            raise UnmeasurableError(f"{backend} cannot be used here", reason, *remedy)
        say("\n".join(line for line in text.splitlines() if line.startswith("#")))
        source = ConfigSource(text.encode(), "the flags", "flags")
        sizes = None if any(text.startswith("sizes") for text in sets) else sizes_asked(flags)
        files = {form: new_path(path) for form, path in files_asked(flags).items()}
        return start(source, sets, plots, coordinator, context.obj, live=lambda run: LiveTables(run, sizes, files))

    return run_task(task, lambda: repr((operation, backend, flags, sets)).encode())


def _keep(path: Path, text: str, sets: list[str]) -> None:
    """Write the YAML to a new file, and print the commands that use it."""
    if sets:
        raise ConfigError("perf --save: the file has only the settings of the flags; give --set to plan or run")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StoreError(f"--save {path}: {(error.strerror or str(error)).lower()}") from None
    say(f"{text}\n# {path} has this; nothing was measured: plan {path}, run {path}")
