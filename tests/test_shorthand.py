"""Flags of nccl-tests become YAML with the same meaning, and no flag is ignored without a remark."""

import pytest

from collbench.config.models import parse
from collbench.model.divisions import WORLD
from collbench.model.errors import ConfigError
from collbench.packages.interop.cli.flags import FLAGS, translate
from test_nccl_tests import read_as_clients_do

# Values that differ from the defaults of the flags.
VALUES = {
    "b": "1M", "e": "64M", "o": "max", "d": "half", "r": "1", "i": "8M", "w": "45", "J": "x.json", "s": "x", "a": "1",
    "m": "4",
}  # fmt: skip


def config(flags=None, operation="all_reduce", backend="gloo"):
    return parse(translate(operation, flags or {}, backend).encode(), "the flags")


def texts(values) -> list[str]:
    return [*map(str, values)]


def remarks(flags, operation) -> list[str]:
    return [line for line in translate(operation, flags, "gloo").splitlines()[1:] if line.startswith("#")]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.letter)
def test_each_flag_changes_the_settings_or_is_named(flag):
    base = {"b": "2M", "e": "128M", "f": "2", "g": "2"} | ({"f": "1"} if flag.letter == "i" else {})
    value = VALUES.get(flag.letter, "1" if "|" in flag.value else "7")
    with_it, without = ({**base, **more} for more in ({flag.letter: value}, {}))
    changed = config(with_it, "reduce") != config(without, "reduce")
    comments = remarks(with_it, "reduce")
    assert read_as_clients_do("\n".join(comments)) == ([], set())
    if flag.letter == "J":
        assert "# nccl-tests-json: written to x.json at the end" in comments
        return
    named = bool(flag.instead) and f"# -{flag.letter} {value}: ignored: {flag.instead}" in comments
    assert (changed, named) == ((True, False) if flag.help else (False, True))
    if flag.off:
        assert not any(f"-{flag.letter} " in line for line in remarks({flag.letter: flag.off}, "reduce"))


def test_all_ranks_of_a_process_are_in_one_group():
    text = translate("reduce", {"g": "2"}, processes=4, NCCL_TESTS_SPLIT="MOD 2")
    assert texts(parse(text.encode(), "the flags").groups) == ["sets:0,1,4,5|2,3,6,7"]
    alone = translate("reduce", {"g": "8"}, NCCL_TESTS_SPLIT="MOD 2")
    assert parse(alone.encode(), "the flags").groups == [WORLD] and "# NCCL_TESTS_SPLIT=MOD 2: ignored" in alone


@pytest.mark.parametrize(
    ("flags", "more", "parts"),
    [
        ({"d": "uint32"}, {}, ["-d uint32", "torch does not reduce it", "bfloat16"]),
        ({"b": "64M", "e": "32M"}, {}, ["-b 64M is larger than -e 32M"]),
        ({"Z": "json"}, {}, ["-Z json: name the file, too: -X FILE"]),
        ({"g": "two"}, {}, ["-g two: write a whole number from 1 on"]),
        ({}, {"operation": "hypercube_perf"}, ["no such operation"]),
        ({}, {"NCCL_TESTS_MIN_BW": "100GB"}, ["NCCL_TESTS_MIN_BW=100GB: write a number of GB/s"]),
        ({}, {"NCCL_TESTS_SPLIT_MASK": "0xG"}, ["NCCL_TESTS_SPLIT_MASK=0xG: write 0x7"]),
        ({}, {"NCCL_TESTS_SPLIT": "MOD 0x0"}, ["NCCL_TESTS_SPLIT=MOD 0x0: write AND 0x7"]),
        ({}, {"NCCL_TESTS_SPLIT": "8"}, ["NCCL_TESTS_SPLIT=8: write AND 0x7"]),
        ({}, {"operation": "alltoallv_perf", "NCCL_TESTS_ALLTOALLV_SPREAD": "1.5"}, ["a number from 0 to 1"]),
        ({}, {"operation": "alltoallv_perf", "NCCL_TESTS_ALLTOALLV_MATRIX_FILE": "f"}, ["splits=[{matrix: FILE}]"]),
        ({}, {"operation": "allreduce"}, ["did you mean 'all_reduce'"]),
    ],
)
def test_each_mistake_is_one_line(flags, more, parts):
    with pytest.raises(ConfigError) as error:
        translate(**({"operation": "all_reduce", "flags": flags} | more))
    assert "\n" not in str(error.value)
    assert all(part in str(error.value) for part in parts), error.value
