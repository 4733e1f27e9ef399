"""Prints lines and files of each room of bench/ beside the budgets of the design.

`make lint` runs it. It fails nothing: budgets are to think with.
"""

from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
# Room → lines, about.
BUDGETS = {
    "model": 1200,
    "catalog": 1000,
    "stats": 600,
    "config": 1300,
    "planning": 800,
    "store": 750,
    "machine": 1000,
    "protocol": 500,
    "launch": 2500,
    "rank": 5500,
    "analyze": 3500,
    "importers": 2000,
    "report": 4000,
    "advise": 1000,
    "cli": 1900,
}


def main() -> None:
    rows = []
    for room, budget in BUDGETS.items():
        files = [path.read_text().count("\n") for path in (ROOT / "bench" / room).rglob("*.py")]
        rows.append([room, len(files), sum(files), budget])
    for folder in ("tests", "proof", "tools"):
        files = [path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py")]
        rows.append([f"({folder})", len(files), sum(files), None])
    bench = rows[: len(BUDGETS)]
    rows.insert(len(BUDGETS), ["bench", *(sum(row[column] for row in bench) for column in (1, 2, 3))])
    print(tabulate(rows, headers=["room", "files", "lines", "budget"], missingval=""))


if __name__ == "__main__":
    main()
