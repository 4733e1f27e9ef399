"""Print the lines and files of each room of bench/ next to its budget, which a test enforces.

`make lint` runs it. A commit that exceeds a budget must state the benefit of the lines, and remove other code.
"""

from pathlib import Path

from tabulate import tabulate

from bench.catalog import registry

ROOT = Path(__file__).resolve().parents[1]
# Room of the core, or package → most lines: the lines of November 2026, plus 5 %.
BUDGETS = {
    "model": 2275,
    "catalog": 1360,
    "stats": 800,
    "config": 1080,
    "planning": 725,
    "store": 1185,
    "machine": 1430,
    "protocol": 510,
    "launch": 3525,
    "rank": 3670,
    "analyze": 3360,
    "report": 5685,
    "cli": 2250,
    "training": 7660,
    "bits": 1025,
    "replay": 4245,
    "gate": 1630,
    "interop": 3660,
    "bimodality": 497,
    "joining": 565,
    "tune": 1925,
}
PACKAGES = tuple(package.name for package in registry.PACKAGES)
# 1 400 more than in November 2026: 670 for a resume elsewhere, launchers and odd hosts; 730 for notices, each with a
# kind, a sentence and a remedy in place of a text at the place of its detection. Fields have comments,
# and options that were text are types. 360 more for copies, JUnit by the schemas, metrics, and the live table;
# 100 for its first times; 470 for notices that are stored, of skips, machines and imports: kinds, values, sentences;
# 280 for output of an installed wheel (show, schema, docs), launch files that start it, and pictures with bands,
# names on hovering and a style for papers; the picture of bits (75 lines) went.
CORE = 27_785


def folder_of(room: str) -> Path:
    """Return the folder of a room of the core, or of a package."""
    return ROOT / "bench" / ("packages" if room in PACKAGES else "") / room


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
