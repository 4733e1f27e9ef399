#!/usr/bin/env python3
"""Entry point: `python run_bench.py --help`."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. arguments: those of this process if None.

    Programs may call it, such as a Ray Train job: run_bench.main(["run", "configs/gloo.yaml"]). The command line is
    imported in this function, so that ranks, which import this file, do not import it.
    """
    try:
        _standard_streams()
        _find_own_package()
        try:
            from bench.cli import call
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "bench":
                raise
            own = Path(__file__).resolve().parent / ".venv/bin/python"
            how = f"use {own}" if own.exists() else "make install creates .venv/bin/python, which has it"
            sys.stderr.write(f"error: {sys.executable} has no package {error.name}: {how}\n")
            return 2
        return call(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # while packages were loaded: nothing has begun
        return 130


def _find_own_package() -> None:
    """Make `bench` mean the package beside this file, whatever other places have under that name."""
    folder = Path(__file__).resolve().parent / "bench"
    loaded = sys.modules.get("bench")
    if not folder.is_dir() or folder in [Path(path).resolve() for path in getattr(loaded, "__path__", [])]:
        return
    spec = importlib.util.spec_from_file_location(
        "bench", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
        del sys.modules[name]
    sys.modules["bench"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


def _standard_streams() -> None:
    """Open those that were closed, which ranks inherit and write to, and let none refuse a character.

    Some daemons close them; a locale without UTF-8 has no words for what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r"))
        if number and hasattr(getattr(sys, name), "reconfigure"):  # a program that calls this may have its own
            getattr(sys, name).reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
