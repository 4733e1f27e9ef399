"""Tables hold similar cases, their titles name the differences, and rows are the requested sizes."""

from dataclasses import replace

from collbench.model.conclusions import Summary
from collbench.model.divisions import Division, Splits
from collbench.model.records import OPTIONS, Case, Variables
from collbench.report import labels, tables

CASE = Case("reduce", "nccl", 4, "float32", 2**20)
# A value other than the default, for each type, and for options that take certain values only.
VALUES = {str: "other", int: 7, bool: True, Variables: Variables((("A", "1"),)), Division: Division("strided", 2)}
OF_OPTIONS = {"placement": "out", "splits": Splits("hot", 2.0)}


def test_titles_and_labels_name_every_difference():
    for option in OPTIONS:
        other = replace(CASE, **{option.name: OF_OPTIONS.get(option.name) or VALUES[type(option.default)]})
        assert labels.title(other) != labels.title(CASE)
        if option.name != "depth":
            assert {*labels.label(other).split(" · ")} > {*labels.label(CASE).split(" · ")}
        lengths = [len(each.members) for each in tables.case_tables([Summary(c) for c in (CASE, other)])]
        assert lengths == ([2] if option.name == "scheduling" else [1, 1])


def test_two_schedulings_are_columns_of_one_table():
    both = [replace(CASE, world_size=n, scheduling=name) for name in ("batch", "normal") for n in (4, 2)]
    headers = [[*tables.column_headers(cases).values()] for cases in (both, both[:2])]
    assert headers == [["2 ranks normal", "2 ranks batch", "4 ranks normal", "4 ranks batch"], ["2 ranks", "4 ranks"]]
    assert tables.size_rows(both) == [sorted(both, key=lambda case: case.world_size)]
    assert [table.title for table in tables.case_tables([Summary(case) for case in both])] == [labels.title(CASE)]


def words(parts):
    return [part.words for part in parts]


def test_properties_of_all_cases_are_named_once():
    two, four = (replace(CASE, world_size=n, reduce_op="max") for n in (2, 4))
    common, own = labels.describe([two, four])
    assert words(common) == [
        "reduce", "nccl", "float32", "1 MiB", "max", "in place", "root 0", "isolated", "rotate buffers",
    ]  # fmt: skip
    assert [words(parts) for parts in own] == [["2 ranks"], ["4 ranks"]]


def sized(*sizes, op="all_gather"):
    return [Case(op, "gloo", n, "float32", size) for n, size in sizes]


def requested(case, size):
    return replace(case, asked_bytes=size)


def test_sizes_that_were_equal_before_rounding_are_one_row_and_others_are_not():
    two, three, *large = sized((2, 4096), (3, 4092), (2, 2**20), (3, 2**20 - 4), (7, 2**20 - 16))
    cases = [two, requested(three, 4096), large[0], *(requested(case, 2**20) for case in large[1:])]
    assert [*tables.row_names(cases).values()] == ["≤ 4 KiB"] * 2 + ["≤ 1 MiB"] * 3
    (note,) = tables.rounding(cases)
    assert note.startswith("sizes are rounded down to whole equal shares, as in nccl-tests: 4092 B for 3 ranks, ")
    assert requested(three, 4096) == three  # the requested size distinguishes no cases
    assert len(tables.size_rows(sized((2, 4096), (3, 4092)))) == 2
    assert tables.rounding(sized((2, 4096), (4, 1000), (3, 12))) == []
