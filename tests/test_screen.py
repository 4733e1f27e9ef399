"""Text printed for people is no wider than their terminal, and loses no word."""

import shutil

from collbench.report.blocks import keyed, table
from collbench.report.screen import fitted
from conftest import ROOT


def tabled(rows, headers):
    return table(rows, keyed([(header, number) for number, header in enumerate(headers)], lambda row, at: row[at]))


def test_a_table_of_many_columns_becomes_a_block_a_row():
    rows = [[f"case {row}", *(f"value-{row}-{column}" for column in range(9))] for row in range(2)]
    text = fitted(tabled(rows, ["case", *(f"column {column}" for column in range(9))]), 60)
    assert text.startswith("case 0\n    column 0: value-0-0\n") and "\ncase 1\n" in text


COMMANDS = [
    "list backends",
    "list operations",
    "list configs",
    "list models",
    "list",
    "plan configs/everything.yaml",
    "plan configs/ddp.yaml",
    "compare example/before example/after",
    "compare example/before --across world_size=2,4",
    "report example/before --no-plots",
    "diagnose example/before",
    "advise --model tiny --backward 60ms --link 2ms+1GB/s",
    "replay --look --no-plots example/training.calls.jsonl",
    *(f"{verb} --help" for verb in ("", "run", "ab", "replay", "gate", "report", "compare", "plan", "advise")),
]


def test_no_verb_prints_more_than_80_columns(warm):
    shutil.copytree(ROOT / "docs/example", warm.folder / "example")
    shutil.copytree(ROOT / "configs", warm.folder / "configs")
    warm.environment["COLUMNS"] = "80"
    for command in COMMANDS:
        done = warm(*command.split())
        assert done.returncode in {0, 1}, f"{command}: {done.stderr}"
        wide = [line for line in done.stdout.splitlines() if len(line) > 80]
        assert not wide, "\n".join([command, *wide])
