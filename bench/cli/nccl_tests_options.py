"""The flags of nccl-tests as options of a verb: `run -b 8 -e 128M -f 2 -g 2` in place of a configuration.

A verb that is decorated with `with_flags` gets the flags as its argument `given`; `source` turns them into YAML. What
the flags mean is in `bench/config/nccl_tests_flags.py`. Flags that are not honoured are accepted, so
that the YAML can say what happens instead, but --help does not list them.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.config import documents, names
from bench.config.nccl_tests_flags import FLAGS, Flag, NcclTestsFlags, translate
from bench.model.errors import BenchError, StoreError

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator

PANEL = "nccl-tests shorthand, in place of CONFIG"
OPTIONS = {
    "operation": typer.Option(
        "--operation", metavar="NAME", help="An operation by our name (all_reduce).", rich_help_panel=PANEL
    ),
    "perf": typer.Option(
        "--perf", metavar="TEST", help="Or by nccl-tests' name, such as alltoall_perf.", rich_help_panel=PANEL
    ),
    "backend": typer.Option(
        "--backend", metavar="NAME", help="nccl where it can be used, else gloo.", rich_help_panel=PANEL
    ),
    "save": typer.Option(
        "--save", metavar="FILE", help="Write the YAML made from the flags to this new file.", rich_help_panel=PANEL
    ),
}


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A configuration, not yet parsed. name: its name in messages. shown: text to print before it is used."""

    raw: bytes
    name: str
    default_name: str
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """The nccl-tests flags on the command line. save: the file to write the YAML to; None to write none."""

    asked: NcclTestsFlags
    save: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.asked) or self.save is not None


NO_FLAGS = Given(NcclTestsFlags({}))


def with_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb all flags as options. The verb gets them as one argument, `given`."""

    @functools.wraps(function)
    def called(*args: Any, **values: Any) -> Any:
        flags = {flag.letter: values.pop(_parameter(flag)) for flag in FLAGS}
        own = {name: values.pop(name) for name in OPTIONS}
        save = own.pop("save")
        asked = NcclTestsFlags({letter: value for letter, value in flags.items() if value is not None}, **own)
        return function(*args, given=Given(asked, Path(save) if save else None), **values)

    signature = inspect.signature(function)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "given"]
    kinds = {_parameter(flag): _option(flag) for flag in FLAGS} | OPTIONS
    added = {name: Annotated[str | None, option] for name, option in kinds.items()}
    options = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)
        for name, kind in added.items()
    ]
    # typer reads both the signature and the annotations.
    called.__signature__ = signature.replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
    called.__annotations__ = {**{p.name: p.annotation for p in kept}, **added}
    return called


def _parameter(flag: Flag) -> str:
    return f"flag_{flag.letter}_{'upper' if flag.letter.isupper() else 'lower'}"


def _option(flag: Flag) -> Any:
    return typer.Option(
        f"-{flag.letter}",
        *(f"--{name}" for name in flag.names),
        metavar=flag.value,
        help=flag.help,
        hidden=bool(flag.instead),
        rich_help_panel=PANEL,
    )


def fingerprint(config: Path | None, given: Given) -> bytes:
    """The configuration or the flags as bytes, which must be the same in all processes of a job."""
    return documents.read(names.path_of(config)) if config is not None else repr(given).encode()


def source(verb: str, config: Path | None, given: Given, coordinator: "Coordinator | None" = None) -> ConfigSource:
    """The configuration from a file, or from the flags. Raises BenchError if neither or both are given.

    coordinator: of the job that this process belongs to; the job's ranks count as nccl-tests' processes.
    """
    if config is not None and given:
        raise BenchError(f"{verb}: give a configuration or nccl-tests' flags, not both; --set changes a configuration")
    if config is not None:
        path = names.path_of(config)
        return ConfigSource(documents.read(path), str(path), path.stem)
    if not given.asked:
        raise BenchError(f"{verb}: --save writes the YAML of the flags, and no flags were given")
    from bench.machine import host

    machine = host.machine() if coordinator is None else coordinator.machine()
    text = translate(given.asked, machine.backends_missing, machine.ranks or 1)
    if given.save is not None:
        _keep(given.save, text)
    return ConfigSource(text.encode(), "the flags", "flags", text)


def _keep(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StoreError(f"--save {path}: {(error.strerror or str(error)).lower()}") from None
