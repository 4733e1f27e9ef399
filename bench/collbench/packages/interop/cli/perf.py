"""The verb `perf`: take the flags of nccl-tests, print its columns line by line while measuring, and store the run.

The meanings of the flags are in `interop/cli/flags.py`, the columns in `interop/report/nccl_tests.py`. Ignored flags
are accepted and named in a comment above the table, but --help does not list them.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collbench.cli.app import Sets
from collbench.cli.job import run_task
from collbench.cli.measuring import ConfigSource, start
from collbench.cli.terminal import say
from collbench.model.errors import ConfigError, StoreError, UnmeasurableError
from collbench.packages.interop.cli.flags import FLAGS, files_asked, sizes_asked, translate
from collbench.packages.interop.cli.live_tables import LiveTables, new_path

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator


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
