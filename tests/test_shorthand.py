"""Flags of nccl-tests become YAML with the same meaning, and no flag is ignored without a remark."""

import pytest

from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES, REDUCE_OPS
from collbench.config.models import parse
from collbench.model.divisions import WORLD
from collbench.model.errors import ConfigError
from collbench.packages.interop import catalog as nccl_tests_names
from collbench.packages.interop.cli.flags import FLAGS, files_asked, sizes_asked, translate
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


def test_a_usual_command_line():
    flags = {"b": "8", "e": "128M", "f": "2", "g": "2", "n": "50", "w": "5", "c": "0", "o": "sum", "d": "float"}
    settings = config(flags)
    assert (settings.world_sizes, settings.size_list[0], settings.size_list[-1]) == ([2], 8, 2**27)
    assert (settings.dtypes, settings.reduce_ops, settings.placements) == (["float32"], ["sum"], ["in", "copied"])
    assert (settings.metrics, settings.pipeline_depth, settings.sampling.warmup) == (["pipelined"], 50, 1)
    assert "# -c 0: ignored: results are verified anyway, outside the timed calls" in remarks(flags, "all_reduce")
    copied = "# out of place by a copy, which is part of the time: the library has no such call"
    assert copied in remarks(flags, "all_reduce")
    assert sizes_asked(flags) == "minBytes 8 maxBytes 134217728 step: 2(factor)"
    assert sizes_asked({"b": "8", "f": "1"}) == "minBytes 8 maxBytes 33554432 step: 1048576(bytes)"
    with pytest.raises(ConfigError, match="-r 5: there are 2 ranks, from 0 to 1"):
        translate("broadcast", {"g": "2", "r": "5"}, "gloo")


def test_no_flag_means_what_nccl_tests_does_without_any():
    settings = parse(translate("all_gather", {}).encode(), "the flags")
    assert (settings.backends, settings.world_sizes, settings.size_list) == (["nccl"], [1], [32 * 2**20])
    assert (settings.metrics, settings.pipeline_depth, settings.placements) == (["pipelined"], 20, ["in", "out"])


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


def test_no_letter_and_no_name_is_taken_twice():
    letters = [flag.letter for flag in FLAGS]
    names = [name for flag in FLAGS for name in flag.names]
    assert len(set(letters)) == len(letters) and len(set(names)) == len(names)
    # getopt's string in common.cu of nccl-tests at e1dc979 (2026), without -h.
    assert set("tgbeifnmwNpIKcodrzyTGCaRxDVJSMu") <= set(letters)


def test_a_factor_wins_over_a_step_as_in_nccl_tests():
    """NVIDIA/cloudai always passes a step."""
    for step in ("1M", "0", "3B"):  # never read, so never refused
        flags = {"b": "1M", "e": "4M", "i": step, "f": "2"}
        assert config(flags).size_list == [2**20, 2**21, 2**22] and "step: 2(factor)" in sizes_asked(flags)
        assert [line for line in remarks(flags, "reduce") if "-i " in line] == [f"# -i {step}: ignored, -f is given"]
    assert not any("-i" in line for line in remarks(flags | {"i": "1M", "f": "1"}, "reduce"))


def test_rccl_tests_json_is_written_to_the_file_of_any_of_its_flags():
    """-X in rccl-tests of today, -x before."""
    for flags in ({"Z": "json", letter: "f"} for letter in "XxJ"):
        assert files_asked(flags) == {"rccl-tests-json": "f"}
        assert not any("ignored" in line for line in remarks(flags, "reduce"))
    assert files_asked({"Z": "json", "X": "f", "J": "g"}) == {"rccl-tests-json": "f", "nccl-tests-json": "g"}


def test_letters_are_powers_of_1024_as_in_nccl_tests():
    assert config({"b": "1.5k", "e": "1G", "f": "1024"}).size_list == [1536, 1536 * 1024]
    assert "from: 4KiB, to: 16KiB, step: 4KiB" in translate("reduce", {"b": "4096", "e": "16K", "i": "4K"})
    assert config({"b": "1M", "e": "3M"}).size_list == [2**20, 2 * 2**20, 3 * 2**20]


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ({"t": "2", "g": "4"}, {"world_sizes": [8]}),
        ({"d": "all"}, {"dtypes": list(nccl_tests_names.DTYPES.values())}),
        ({"o": "all"}, {"reduce_ops": ["sum", "product", "min", "max", "avg", "premul_sum"]}),
        ({"r": "all"}, {"roots": "all"}),
        ({"N": "5"}, {"launches": 5}),
        ({"z": "1", "n": "30"}, {"metrics": ["isolated"]}),
        ({"n": "1"}, {"metrics": ["isolated"]}),
        ({"n": "5000"}, {"pipeline_depth": 1000}),
        ({"G": "3", "n": "10"}, {"metrics": ["graph"], "pipeline_depth": 10}),
        ({"R": "1"}, {"memory": ["registered"]}),
        ({"O": "0"}, {"placements": ["in"]}),
        ({"T": "90"}, {"timeout": 90.0}),
    ],
)
def test_meanings(flags, settings):
    parsed = config(flags, "reduce")
    assert {name: getattr(parsed, name) for name in settings} == settings


def test_ranks_are_counted_over_all_processes_and_warm_up_in_calls():
    text = translate("reduce", {"g": "2"}, processes=8)
    assert parse(text.encode(), "the flags").world_sizes == [16]
    assert config({"w": "45"}).sampling.warmup == 3
    assert config({"w": "45", "z": "1"}).sampling.warmup == 45
    assert config({"w": "0"}).sampling.warmup_s == 0


def test_operations_by_either_name():
    assert config({}, "./build/alltoall_perf_mpi").operations == ["all_to_all"]
    assert config({}, "sendrecv_pair").operations == ["sendrecv_pair"]
    for test, operation in nccl_tests_names.OPERATIONS.items():
        assert operation in OPERATIONS and nccl_tests_names.test_named(operation) == f"{test}_perf"
        assert config({"g": "2"}, f"{test}_perf").operations == [operation]
    assert set(nccl_tests_names.DTYPES.values()) <= set(DTYPES)
    assert set(nccl_tests_names.REDUCE_OPS.values()) <= set(REDUCE_OPS)


def test_uneven_shares_are_divided_as_alltoallv_perf_divides_them():
    flags = {"b": "1M", "e": "1M", "g": "4"}
    uneven = config(flags, "alltoallv_perf")
    assert uneven.operations == ["all_to_all"] and texts(uneven.splits) == ["distance:1"]
    assert any("NCCL_TESTS_ALLTOALLV_SPREAD" in line for line in remarks(flags, "alltoallv_perf"))
    assert config({"g": "4"}, "alltoall_perf").splits == [None]


@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        ({"SPLIT_MASK": "0x1"}, {"groups": ["strided:4"]}),
        ({"SPLIT_MASK": "F", "SPLIT": "MOD 2"}, {"groups": ["contiguous:1"]}),
        ({"SPLIT": "AND 0x1"}, {"groups": ["strided:4"]}),
        ({"SPLIT": "%4"}, {"groups": ["strided:2"]}),
        ({"SPLIT": "or 0b11"}, {"groups": ["contiguous:4"]}),
        ({"SPLIT": "/2"}, {"groups": ["contiguous:2"]}),
        ({"SPLIT": "& 2"}, {"groups": ["sets:0,1,4,5|2,3,6,7"]}),
        ({"SPLIT": "DIV 8"}, {"groups": ["world"]}),
        ({"SPLIT_MASK": "0x0", "MIN_BW": "1.5e2", "DEVICE": "0", "OF_NEXT_YEAR": "1"}, {"groups": ["world"]}),
        ({"ALLTOALLV_SPREAD": "0.5"}, {"splits": ["distance:0.5"]}),
        ({"ALLTOALLV_SPREAD": "0.0"}, {"splits": ["None"]}),
        ({"ALLTOALLV_MATRIX_SCALE": "2"}, {"splits": ["distance:1"]}),
    ],
)
def test_each_variable_of_nccl_tests_has_its_meaning_or_is_named(variables, settings):
    """Groups: `run` in common.cu, which has a number for each of its processes."""
    variables = {f"NCCL_TESTS_{name}": text for name, text in variables.items()}
    text = translate("alltoallv_perf", {"g": "1"}, "gloo", 8, **variables, NCCL_DEBUG="INFO")
    parsed = parse(text.encode(), "the flags")
    assert {name: texts(getattr(parsed, name)) for name in settings} == settings
    used = {"NCCL_TESTS_MIN_BW", "NCCL_TESTS_ALLTOALLV_SPREAD"}
    if settings.get("groups", ["world"]) != ["world"]:
        used |= {"NCCL_TESTS_SPLIT" if "NCCL_TESTS_SPLIT_MASK" not in variables else "NCCL_TESTS_SPLIT_MASK"}
    ignored = {line.split("=")[0][2:] for line in text.splitlines() if "ignored: it changes nothing here" in line}
    assert ignored == variables.keys() - used


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


def test_sizes_are_read_as_nccl_tests_reads_them():
    """A size is a number and one letter; further text is ignored with a remark."""
    sizes = {"128KB": 2**17, "2GB": 2**31, "64KiB": 2**16, ".5M": 2**19, "1e3": 1000}
    for text, size in sizes.items():
        flags = {"b": text, "e": text}
        assert config(flags).size_list == [size]
        assert any("as nccl-tests does" in remark for remark in remarks(flags, "all_reduce")) == text.endswith("B")
    for refused in ("128B", "1T", "K", "-8", "1..2K"):
        with pytest.raises(ConfigError, match="write a size"):
            translate("all_reduce", {"b": refused})
