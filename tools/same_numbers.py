"""Compare what report, compare, diagnose, import and replay --look print here and at another commit.

    python -m tools.same_numbers COMMIT

A redesign moves no number: this prints the differences as unified diffs, and exits with 1 if there are any. It
reads the runs of docs/example and, where they lie beside the checkout, the tables and traces of ../shared/reference.
"""

import csv
import difflib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT.parent / "shared" / "reference"
RUNS = ("after", "before", "gloo", "replay", "training")
# Keys of abilities that were removed since: they are left out on both sides.
GONE = {"counts", "ctas", "load"}
FORMATS = ("csv", "json", "jsonl", "openmetrics", "junit", "nccl-tests", "markdown")

# Times of day, in names of runs and in records.
TIME = re.compile(r"\d{8}T\d{6}Z|20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d")


def commands(tree: Path) -> Iterator[list[str]]:
    """Yield the command lines. Runs are those of `tree`, because a commit reads its own schema."""
    example = tree / "docs" / "example"
    for run in RUNS:
        yield from (["report", str(example / run), "--format", name] for name in FORMATS)
        yield ["diagnose", str(example / run)]
    for name in ("csv", "json", "markdown", "line", "openmetrics"):
        yield ["compare", str(example / "before"), str(example / "after"), "--format", name]
    traces = [
        example / "training.calls.jsonl",
        *sorted(REFERENCE.glob("traces/*.gz")),
        *REFERENCE.glob("traces/*.json"),
    ]
    for trace in traces:
        yield ["replay", str(trace), "--look", "--no-plots"]
        yield ["replay", str(trace), "--look", "--format", "json"]
    for log in sorted(REFERENCE.glob("nccl-tests/*")):
        yield ["import", "nccl-tests", str(log), "--name", log.stem]


def printed(tree: Path, command: list[str]) -> list[str]:
    """Return the lines that a command prints at the checkout `tree`, then those of the run that it imported."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-P", str(tree / "run_bench.py")]
        variables = os.environ | {"COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": "1"}
        variables.pop("PYTHONPATH", None)

        def run(arguments: list[str]) -> list[str]:
            done = subprocess.run([*program, *arguments], cwd=folder, env=variables, capture_output=True, text=True)
            return [*values(done.stdout, arguments[-1]), *done.stderr.splitlines(), f"exit code {done.returncode}"]

        lines = run(command)
        if command[0] == "import" and list(Path(folder).glob("results/*")):
            lines += run(["report", "--format", "csv"]) + run(["report", "--format", "json"])
        return [TIME.sub("TIME", line.replace(str(tree), "TREE").replace(folder, "FOLDER")) for line in lines]


def values(text: str, name: str) -> list[str]:
    """Return the lines of a text in the format `name`: of CSV and JSON one value a line, without those of GONE."""
    try:
        match name:
            case "csv":
                rows = [
                    [f"{key}: {cell}" for key, cell in row.items() if key not in GONE]
                    for row in csv.DictReader(io.StringIO(text))
                ]
                return [cell for row in rows for cell in row]
            case "json":
                return json.dumps(kept(json.loads(text)), indent=1, sort_keys=True).splitlines()
            case "jsonl":
                return [json.dumps(kept(json.loads(line)), indent=1, sort_keys=True) for line in text.splitlines()]
    except ValueError:  # an error, in words
        pass
    return text.splitlines()


def kept(value: Any) -> Any:
    """Return a value of JSON without the keys of GONE."""
    if isinstance(value, dict):
        return {key: kept(inner) for key, inner in value.items() if key not in GONE}
    return [kept(inner) for inner in value] if isinstance(value, list) else value


def main() -> int:
    with tempfile.TemporaryDirectory() as parent:
        other = Path(parent) / "collbench"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", other, sys.argv[1]], cwd=ROOT, check=True)
        try:
            pairs = list(zip(commands(other), commands(ROOT), strict=True))
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                before = pool.map(lambda pair: printed(other, pair[0]), pairs)
                after = pool.map(lambda pair: printed(ROOT, pair[1]), pairs)
                differ = 0
                for (_, command), old, new in zip(pairs, before, after, strict=True):
                    diff = list(difflib.unified_diff(old, new, "before", " ".join(command), lineterm="", n=1))
                    differ += bool(diff)
                    print("\n".join(diff), end="\n" if diff else "")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)
    print(f"{differ} of {len(pairs)} commands print something else", file=sys.stderr)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
