"""Text printed for people is no wider than their terminal, and loses no word."""

import shutil

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from collbench.report.blocks import Code, Items, keyed, table
from collbench.report.screen import fitted
from conftest import ROOT

WORDS = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=12)


def tabled(rows, headers):
    return table(rows, keyed([(header, number) for number, header in enumerate(headers)], lambda row, at: row[at]))


CELLS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)


@settings(max_examples=40)
@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=4), st.integers(80, 120))
def test_a_table_fits_and_keeps_every_word(rows, width):
    text = fitted(tabled(rows, ["one", "two", "three"]), width)
    assert max(map(cell_len, text.split("\n"))) <= width
    assert sorted(text.replace("─", " ").split()) == sorted(" ".join(["one two three", *map(" ".join, rows)]).split())


def test_a_table_of_many_columns_becomes_a_block_a_row():
    rows = [[f"case {row}", *(f"value-{row}-{column}" for column in range(9))] for row in range(2)]
    text = fitted(tabled(rows, ["case", *(f"column {column}" for column in range(9))]), 60)
    assert text.startswith("case 0\n    column 0: value-0-0\n") and "\ncase 1\n" in text


@settings(max_examples=40)
@given(st.lists(WORDS, min_size=1, max_size=40), st.integers(20, 100))
def test_sentences_are_wrapped_and_lists_keep_their_indent(words, width):
    text = fitted([Items((" ".join(words),))], width)
    first, *others = text.split("\n")
    assert first.startswith("- ") and all(line.startswith("  ") for line in others)
    assert max(map(len, text.split("\n"))) <= width
    assert text.split()[1:] == words


def test_code_is_left_alone():
    code = "x = " + "1 + " * 50 + "1\n| not a table |"
    assert fitted([Code(code, "python")], 40) == f"```python\n{code}\n```"


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
