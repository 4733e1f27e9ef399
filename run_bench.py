#!/usr/bin/env python3
"""Run CollBench from a checkout: `python run_bench.py --help`."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER / "bench"))

from collbench.__main__ import main  # noqa: E402 - of this checkout

if __name__ == "__main__":
    try:
        status = main()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "collbench":
            raise
        own = FOLDER / ".venv/bin/python"
        how = f"use {own}" if own.exists() else "make install creates .venv/bin/python, which has it"
        sys.stderr.write(f"error: {sys.executable} has no package {error.name}: {how}\n")
        status = 2
    sys.exit(status)
