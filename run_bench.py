#!/usr/bin/env python3
"""Entry point: `python run_bench.py --help`."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. arguments: those of this process if None.

    Programs call `bench.cli.call`, which has types.
    """
    try:
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


if __name__ == "__main__":
    sys.exit(main())
