"""Print the lines and files of each room of bench/ next to its budget, which a test enforces.

`make lint` runs it. A commit that exceeds a budget must state the benefit of the lines, and remove other code.
"""

from pathlib import Path

from tabulate import tabulate

from collbench.catalog import registry

ROOT = Path(__file__).resolve().parents[1]
# Room of the core, or package → most lines: the lines of today.
BUDGETS = {
    "model": 2267,
    "catalog": 1351,
    "stats": 806,
    "config": 1077,
    "planning": 725,
    "store": 1184,
    "machine": 1586,
    "protocol": 491,
    "launch": 3658,
    "rank": 3537,
    "analyze": 3512,
    "report": 5713,
    "cli": 2337,
    "training": 7561,
    "bits": 1021,
    "replay": 4357,
    "gate": 1633,
    "interop": 3942,
    "bimodality": 510,
    "joining": 179,
    "tune": 1938,
}
PACKAGES = tuple(package.name for package in registry.PACKAGES)
# 400 lines more than in early November 2026, for faults at the borders: facts that a resume compares, networks of jobs,
# limits, logs under several settings, recordings of unknown libraries, nccl-tests' variables. Budgets only fall now.
CORE = 28_244


def folder_of(room: str) -> Path:
    """Return the folder of a room of the core, or of a package."""
    return ROOT / "bench" / "collbench" / ("packages" if room in PACKAGES else "") / room


def lines_of(folder: Path) -> tuple[int, int]:
    """Return the number of Python files in a folder, and of their lines."""
    counts = [path.read_text().count("\n") for path in folder.rglob("*.py")]
    return len(counts), sum(counts)


def main() -> None:
    rows: list[list[object]] = []
    rooms = {room: lines_of(folder_of(room)) for room in BUDGETS}
    for room, (files, lines) in rooms.items():
        rows.append([room, files, lines, BUDGETS[room]])
    core = [room for room in BUDGETS if room not in PACKAGES]
    for name, members, budget in (("core", core, CORE), ("bench", [*BUDGETS], None)):
        files, lines = (sum(rooms[room][column] for room in members) for column in (0, 1))
        rows.append([name, files, lines, budget])
    for folder in ("tests", "proof", "tools"):
        rows.append([f"({folder})", *lines_of(ROOT / folder), None])
    print(tabulate(rows, headers=["room", "files", "lines", "budget"], missingval=""))


if __name__ == "__main__":
    main()
