"""Translate flags of nccl-tests into a YAML configuration.

In: flags as they were typed (letter → text), the operation and the backend. Out: the text of a configuration, which
`config` reads like any file, with a comment for each flag that works in another way or is ignored. Raises a one-line
ConfigError for an invalid value. Prints nothing, does not look at the machine and does not parse the command line: it
only contains the table of flags.

Sources of the flags and their meanings: nccl-tests 2.19 (README, `common.cu`); for later flags (-I, -K and -z 3),
`common.cu` of NVIDIA/nccl-tests at e1dc979, 2026. Flags that rccl-tests added are included.
"""

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import CALLS, OPERATIONS, PLACES
from collbench.catalog.rules import unsupported_by_backend
from collbench.catalog.subgroups import of_colours
from collbench.config import documents
from collbench.config.names import allowed
from collbench.model.divisions import WORLD, Division
from collbench.model.errors import ConfigError
from collbench.model.records import Case
from collbench.model.units import format_bytes
from collbench.packages.interop import catalog as theirs
from collbench.packages.interop.report.nccl_tests import LEAST_BUSBW, least_busbw
from collbench.report.notices import sentence

# In sizes after these flags K is 1024, as in nccl-tests; everywhere else a bare K is refused.
# nccl-tests reads a number and one letter (`parsesize` in its common.cu), and ignores the rest: 128KB is 128K.
_SIZE = re.compile(r"\s*((?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,2})?)\s*(?:([KMG])(\w*))?\s*", re.IGNORECASE)
_FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
# Variables that divide the ranks; the first has precedence, and is a hexadecimal mask.
SPLIT_MASK, SPLIT = "NCCL_TESTS_SPLIT_MASK", "NCCL_TESTS_SPLIT"
# Value of the second: the function of `operator` by which a process makes the number of its group of its own.
_SPLIT = re.compile(
    r"(?:(?P<and_>AND|&)|(?P<or_>OR|\|)|(?:(?P<mod>MOD|%)|(?P<floordiv>DIV|/))(?!\s*0[xb]?0*$))"
    r"\s*(?:0x[\da-f]+|0b[01]+|0|[1-9]\d*)",
    re.IGNORECASE,
)
# Largest number of back-to-back calls in a configuration (`config.models.Config.pipeline_depth`).
DEEPEST = 1000
# Defaults of nccl-tests that differ from ours.
DEFAULT_SIZE, DEFAULT_STEP, DEFAULT_ITERS = "32M", "1M", 20


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of nccl-tests."""

    letter: str
    # Long forms of the flag.
    names: tuple[str, ...]
    value: str
    # Meaning of the flag here. "" if the flag is ignored.
    help: str = ""
    # Value that changes nothing here, so that no remark is needed.
    off: str = ""
    # Behaviour here in place of an ignored flag, in words.
    instead: str = ""


FLAGS = (
    Flag("t", ("nthreads",), "N", "ranks = nthreads × ngpus (× processes of a job)"),
    Flag("g", ("ngpus",), "N", "see nthreads"),
    Flag("b", ("minbytes",), "SIZE", "smallest size; K, M and G are powers of 1024 (32M)"),
    Flag("e", ("maxbytes",), "SIZE", "largest size (32M)"),
    Flag("i", ("stepbytes",), "SIZE", "step from size to size (1M)"),
    Flag("f", ("stepfactor",), "N", "factor from size to size, in place of a step"),
    Flag("o", ("op",), "OP", f"{', '.join(theirs.REDUCE_OPS)} or all (sum)"),
    Flag("d", ("datatype",), "TYPE", f"{', '.join(theirs.DTYPES)} or all (float)"),
    Flag("r", ("root",), "ROOT", "a rank, or all (0)"),
    Flag("n", ("iters",), "N", "calls back to back (metric pipelined; 20)"),
    Flag("w", ("warmup_iters",), "N", "calls before that (5; in nccl-tests since 2.17: 1)"),
    Flag("N", ("run_cycles",), "N", "launches: fresh processes for all of it (1)"),
    Flag("z", ("blocking",), "0|1|2|3", "not 0: call by call (metric isolated)"),
    Flag("G", ("cudagraph",), "N", "a CUDA graph of the calls (metric graph)"),
    Flag("R", ("local_register",), "0|1|2", "1: registered memory, 2: symmetric"),
    Flag("O", ("out_of_place",), "0|1", "0: in place only, 1: out of place only (both)"),
    Flag("T", ("timeout",), "SECONDS", "a rank silent for this long has hung (60)"),
    Flag("c", ("check",), "N", off="1", instead="results are verified anyway, outside the timed calls"),
    Flag("a", ("average",), "0|1|2|3", off="3", instead="the time is the slowest rank's, as with -a 3"),
    Flag("m", ("agg_iters",), "N", off="1", instead="each call stands alone"),
    Flag("p", ("parallel_init",), "0|1", off="0", instead="each rank is a process"),
    Flag("C", ("report_cputime",), "0|1", off="0", instead="not printed"),
    Flag("y", ("stream_null",), "X", off="0", instead="torch chooses"),
    Flag("Y", ("memory_type",), "X", instead="torch chooses"),
    Flag("s", ("memory",), "X", instead="torch chooses"),
    Flag("u", ("cumask", "unalign"), "X", off="0", instead="buffers are aligned, and all compute units are used"),
    Flag("x", ("cta_policy",), "N", instead="use --set env.NCCL_CTA_POLICY=[N]"),
    Flag("D", ("device_implementation",), "N", off="0", instead="torch calls NCCL from the host"),
    Flag("V", ("device_cta_count",), "N", instead="torch calls NCCL from the host"),
    Flag("J", ("output_file",), "FILE", "write nccl-tests' JSON to a new file at the end"),
    Flag("S", ("report_timestamps",), "0|1", off="0", instead="samples.jsonl has them"),
    Flag("I", ("per_iter_timing",), "0|1", off="0", instead="no columns; samples.jsonl has each time, with -z also -J"),
    Flag("K", ("per_iter_skip",), "N", off="0", instead="samples.jsonl has the time of each iteration"),
    Flag("M", ("memory_report",), "0|1", off="0", instead="summary.csv has buffer_bytes"),
    Flag("F", ("cache_flush",), "N", off="0", instead="use --set buffers=flush"),
    Flag("E", ("rotating_tensor",), "0|1", instead="use --set buffers=rotate"),
    Flag("q", ("delay_inout_place", "delay"), "N", instead="placements follow each other at once"),
    Flag("Z", ("output_format",), "X", instead="json: rccl-tests' JSON in the file of -X; others: report --format"),
    Flag("X", (), "FILE", instead="it needs -Z json; -J writes nccl-tests' JSON"),
    Flag("A", ("output_algo_proto_channels",), "0|1", off="0", instead="use --set env.NCCL_DEBUG=[INFO]"),
)  # fmt: skip


def translate(operation: str, flags: Mapping[str, str], backend: str = "nccl", processes: int = 1, **env: str) -> str:
    """Return the YAML configuration for the flags; the comment lines at its beginning are remarks on the flags.

    operation: our name, or the name of a test, such as `alltoall_perf`. processes: number that a launcher has started.
    env: the environment, of which only the variables of nccl-tests are read.
    """
    remarks: list[str] = []
    for flag in FLAGS:
        choices = flag.value.split("|")
        if len(choices) > 1 and (given := flags.get(flag.letter, choices[0])) not in choices:
            raise ConfigError(f"-{flag.letter} {given}: allowed: {', '.join(choices)}")
    if flags.get("N") == "0":
        raise ConfigError("-N 0: runs without an end are not possible; give a number of launches")
    test = re.sub(r"_perf(_mpi)?$", "", PurePath(operation).name)
    op = _operation(operation, test)
    if backend not in BACKENDS:
        raise ConfigError(f"--backend {backend}: unknown backend{allowed(backend, list(BACKENDS))}")
    ranks = processes * _number(flags, "t", 1) * _number(flags, "g", 1)
    if ranks == 1:
        remarks.append("one rank: nothing is communicated; -g N has N ranks, and so has a job of N processes")
    dtypes = _named(flags, "d", "type", theirs.DTYPES, "float")
    if len(dtypes) > 1:
        remarks.append(f"-d all: without {' and '.join(theirs.DTYPES_LACKING)}, which torch does not reduce")
    settings: dict[str, Any] = {
        "name": op,
        "backends": [backend],
        "world_sizes": [ranks],
        "launches": _number(flags, "N", 1),
        "operations": [op],
        "dtypes": dtypes,
        **_operation_settings(flags, op, ranks, remarks),
        **_variables(env, test == theirs.UNEVEN_TEST, processes, ranks // processes, remarks),
        "sizes": _sizes(flags, remarks),
        "placements": _placements(flags, op, backend, remarks),
        **_metric(flags, remarks),
    }
    if BACKENDS[backend].device == "cuda":
        # Buffers are never refilled, as in nccl-tests: exact sums would need 20 buffers of 4 GiB, which do not fit.
        settings["buffers"] = "reused"
    if registered := _number(flags, "R", 0, fewest=0):
        settings["memory"] = ["symmetric" if registered > 1 else "registered"]
    if _number(flags, "T", 0, fewest=0):
        settings["timeout"] = f"{flags['T']}s"
    files = files_asked(flags)
    remarks += [f"{form}: written to {path} at the end" for form, path in files.items()]
    rccl = "ZXx" if "rccl-tests-json" in files else ""
    for flag in FLAGS:
        if not flag.help and flags.get(flag.letter) not in {None, flag.off} and flag.letter not in rccl:
            remarks.append(f"-{flag.letter} {flags[flag.letter]}: ignored: {flag.instead}")
    typed = " ".join(f"-{letter} {value}" for letter, value in flags.items())
    head = [f"From the flags of nccl-tests: {typed}".rstrip(": "), *remarks]
    return "".join(f"# {' '.join(line.split())}\n" for line in head) + documents.dump(settings)


def files_asked(flags: Mapping[str, str]) -> dict[str, str]:
    """Return format of `report` → file that the flags ask for: -J FILE, or rccl-tests' -Z json with -X FILE.

    -X was -x in rccl-tests until nccl-tests took that letter. The long form of both is the long form of -J in
    nccl-tests. Raises ConfigError for -Z json without file.
    """
    json_file, rccl_file = flags.get("J"), flags.get("X", flags.get("x"))
    files = {"nccl-tests-json": json_file}
    if flags.get("Z") == "json":
        if rccl_file is None and json_file is None:
            raise ConfigError("-Z json: name the file, too: -X FILE")
        files = {"rccl-tests-json": rccl_file or json_file, "nccl-tests-json": json_file if rccl_file else None}
    return {form: file for form, file in files.items() if file is not None}


# ── single flags, and flags that belong together ─────────────────────────────────────────────────
def _operation(name: str, test: str) -> str:
    """Return the operation with our name, or the operation of nccl-tests' test. test: the name without `_perf`."""
    if test in theirs.OPERATIONS_LACKING:
        raise ConfigError(f"{name}: there is no such operation here ({theirs.OPERATIONS_LACKING[test]})")
    operation = test if test in CALLS else theirs.operation_of(test)
    if operation is None:
        other_names = "and nccl-tests' names, such as alltoall_perf"
        raise ConfigError(f"{name}: unknown operation{allowed(test, CALLS, other_names)}")
    return operation


def _variables(env: Mapping[str, str], uneven: bool, processes: int, each: int, remarks: list[str]) -> dict[str, Any]:
    """Return the settings of nccl-tests' variables, with a remark for each that changes nothing. each: ranks of one."""
    own = {name: text for name, text in env.items() if name.startswith("NCCL_TESTS_") and text}
    settings: dict[str, Any] = {}
    if (least := own.pop(LEAST_BUSBW, None)) is not None and least_busbw(env) is None:
        raise ConfigError(f"{LEAST_BUSBW}={least}: write a number of GB/s")
    split = SPLIT_MASK if SPLIT_MASK in own else SPLIT
    if split in own and (division := _division(split, own[split], processes, each)) != WORLD:
        settings["groups"] = [str(division)]
        del own[split]
    if uneven:
        spread = own.pop(theirs.SPREAD, f"{theirs.DEFAULT_SPREAD:g}")
        if theirs.MATRIX_FILE in own or not re.fullmatch(r"0*(\.\d+|[01]\.?0*)", spread):
            raise ConfigError(
                f"{theirs.SPREAD} is a number from 0 to 1; for a matrix: --set 'splits=[{{matrix: FILE}}]'"
            )
        remarks.append(f"{theirs.UNEVEN_TEST}_perf: divided as with {theirs.SPREAD}={spread}; say a matrix in splits")
        settings["splits"] = [{"distance": float(spread)} if float(spread) else "even"]
    remarks += [f"{name}={text}: ignored: it changes nothing here" for name, text in own.items()]
    return settings


def _division(name: str, text: str, processes: int, each: int) -> Division:
    """Return the division of ranks by a variable; all ranks of a process are in one group."""
    rule = re.sub("(0x)?", "&0x", text.strip().lower(), count=1) if name == SPLIT_MASK else text.strip()
    if (match := _SPLIT.fullmatch(rule)) is None:
        raise ConfigError(f"{name}={text}: write {'0x7' if name == SPLIT_MASK else 'AND 0x7, OR 0x7, MOD 8 or DIV 8'}")
    colour, number = getattr(operator, str(match.lastgroup)), int(rule[match.end(str(match.lastgroup)) :], 0)
    return of_colours([colour(process, number) for process in range(processes) for _ in range(each)])


def _number(flags: Mapping[str, str], letter: str, default: int, fewest: int = 1) -> int:
    text = flags.get(letter)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < fewest:
        raise ConfigError(f"-{letter} {text}: write a whole number from {fewest} on")
    return int(text)


def _named(flags: Mapping[str, str], letter: str, noun: str, names: Mapping[str, str], default: str) -> list[str]:
    """Return our name of what a flag names; all names for `all`. names: nccl-tests' name → ours."""
    name = flags.get(letter, default)
    if name != "all" and name not in names:
        why = "torch does not reduce it" if name in theirs.DTYPES_LACKING else f"unknown {noun}"
        raise ConfigError(f"-{letter} {name}: {why}; allowed: {', '.join(names)}, all")
    return [*names.values()] if name == "all" else [names[name]]


def _operation_settings(flags: Mapping[str, str], op: str, ranks: int, remarks: list[str]) -> dict[str, Any]:
    """Return the settings of reduce ops and roots, if the operation has them."""
    settings: dict[str, Any] = {}
    reduce_ops, root = _named(flags, "o", "reduce op", theirs.REDUCE_OPS, "sum"), flags.get("r")
    if OPERATIONS[op].reduces:
        settings["reduce_ops"] = reduce_ops
    elif "o" in flags:
        remarks.append(f"-o {flags['o']}: {op} reduces nothing")
    if OPERATIONS[op].rooted:
        settings["roots"] = "all" if root == "all" else [_number(flags, "r", 0, fewest=0)]
        if root != "all" and settings["roots"][0] >= ranks:
            raise ConfigError(f"-r {root}: there are {ranks} ranks, from 0 to {ranks - 1}")
    elif root is not None:
        remarks.append(f"-r {root}: {op} has no root")
    return settings


def _bytes(flags: Mapping[str, str], letter: str, default: str) -> int:
    text = flags.get(letter, default)
    match = _SIZE.fullmatch(text)
    size = math.floor(float(match[1]) * _FACTORS[(match[2] or "").upper()]) if match else 0
    if size < 1:
        raise ConfigError(f"-{letter} {text}: write a size such as 8, 64K, 128M or 1G (powers of 1024)")
    return size


def _sizes(flags: Mapping[str, str], remarks: list[str]) -> dict[str, Any] | list[str]:
    factor = _number(flags, "f", 1)
    if factor > 1 and "i" in flags:  # as in nccl-tests; callers pass all flags, with their defaults
        remarks.append(f"-i {flags['i']}: ignored, -f is given")
    for letter in "be" if factor > 1 else "bei":
        if (match := _SIZE.fullmatch(flags.get(letter, ""))) and match[3]:
            read = f"{match[1]}{match[2]}"
            remarks.append(f"-{letter} {flags[letter]}: read as {read}, a power of 1024, as nccl-tests does")
    first, last = (_bytes(flags, letter, DEFAULT_SIZE) for letter in "be")
    if first > last:
        raise ConfigError(f"-b {flags.get('b', DEFAULT_SIZE)} is larger than -e {flags.get('e', DEFAULT_SIZE)}")
    if first == last:
        return [_text(first)]
    growth = {"factor": factor} if factor > 1 else {"step": _text(_bytes(flags, "i", DEFAULT_STEP))}
    return {"from": _text(first), "to": _text(last), **growth}


def sizes_asked(flags: Mapping[str, str]) -> str:
    """Format the size flags as nccl-tests prints them, such as `minBytes 8 maxBytes 1048576 step: 4(factor)`."""
    first, last = (_bytes(flags, letter, DEFAULT_SIZE) for letter in "be")
    factor = _number(flags, "f", 1)
    step = f"{factor}(factor)" if factor > 1 else f"{_bytes(flags, 'i', DEFAULT_STEP)}(bytes)"
    return f"minBytes {first} maxBytes {last} step: {step}"


def _text(size: int) -> str:
    """Format a size as configurations write it: `128MiB`."""
    return format_bytes(size).replace(" ", "")


def _placements(flags: Mapping[str, str], op: str, backend: str, remarks: list[str]) -> list[str]:
    """Return the placements of -O (default: both, as in nccl-tests) that the operation has on this backend."""
    requested = ["in", "out"] if "O" not in flags else ["out" if _number(flags, "O", 1, fewest=0) else "in"]
    usual = Case(op, backend, 2, "float32", 2**20)
    able = []
    for place in requested:
        why = unsupported_by_backend(replace(usual, placement=place))
        if why is None or place == OPERATIONS[op].placements[0]:
            able.append(place)
        elif place == OPERATIONS[op].copied:
            able.append("copied")
            remarks.append(
                f"{PLACES[place]} {PLACES['copied']}, which is part of the time: the library has no such call"
            )
        else:
            remarks.append(f"not {PLACES[place]}: {sentence(why)}")
    return able or requested


def _metric(flags: Mapping[str, str], remarks: list[str]) -> dict[str, Any]:
    """Return the metric and the numbers of calls and warm-up calls: from -n, -w, -z and -G together."""
    calls, warmup = _number(flags, "n", DEFAULT_ITERS), _number(flags, "w", 5, fewest=0)
    graphs, blocking = _number(flags, "G", 0, fewest=0), _number(flags, "z", 0, fewest=0)
    depth = min(calls, DEEPEST)
    if blocking or depth == 1:
        iterations = {"iterations": calls} if "n" in flags and calls > 1 else {}
        return {"metrics": ["isolated"], "sampling": _warmup(warmup) | iterations}
    if calls > DEEPEST:
        remarks.append(f"-n {calls}: {DEEPEST} calls back to back are the most")
    if graphs:
        remarks.append(f"-G {graphs}: the graph is replayed as often as fits into the time for a size")
    if "n" in flags:
        remarks.append(f"-n {calls}: iterations of {depth} calls, as many as fit into the time for a size")
    # nccl-tests counts warm-up calls; here an iteration of warm-up is `depth` calls.
    if "w" in flags and warmup % depth:
        whole = -(-warmup // depth) * depth
        remarks.append(f"-w {warmup}: {whole} calls, as warm-up is in whole iterations of {depth}")
    metric = "graph" if graphs else "pipelined"
    return {"metrics": [metric], "pipeline_depth": depth, "sampling": _warmup(-(-warmup // depth))}


def _warmup(iterations: int) -> dict[str, Any]:
    return {"warmup": iterations} | ({} if iterations else {"warmup_seconds": 0})
