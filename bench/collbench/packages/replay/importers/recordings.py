"""Open recordings, iterate over their long lists, and translate their names; shared by the readers of all formats.

In: a path. Out: (name, text) of each file (plain, .gz, or one per rank in a .tar.gz), and the entries of a long JSON
list, one at a time. A file of 300 MB as one tree of Python objects would take some 3 GB; entry by entry, it takes
little more than its bytes. Raises ForeignError, a one-line message, for a file that cannot be read.

Limits are checked before the work that they limit: unpacked bytes while reading, the size of a group before its ranks
are listed. All memory that is taken is under the limit of `collbench.machine.memory`.
"""

import functools
import gzip
import io
import json
import pickle
import re
import tarfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path, PurePath
from typing import IO, Any, Never

from collbench.catalog import dtypes
from collbench.model.errors import ForeignError, json_words
from collbench.model.records import Json
from collbench.model.units import MOST_RANKS, format_bytes
from collbench.packages.replay.recorded_calls import RecordedCall

# Largest recording, unpacked, with all files of a tar: a larger file is more likely hostile than long.
MOST_BYTES = 2 * 2**30
# Most characters of JSON per byte of a pickle, which contains each text once and refers to it afterwards; and the
# number of characters that every pickle may have.
UNFOLDED, LEAST_UNFOLDED = 100, 2**20
# First bytes of a file that gzip packed, and of files that other tools packed.
GZIP = b"\x1f\x8b"
OTHERS_PACKED = (b"BZh", b"\xfd7zXZ", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
ONLY_GZIP = "an archive that is not read; only .gz and .tar.gz are: unpack it first"
# Bytes per read.
CHUNK = 2**20
# A tar consists of blocks of this size, and ends with blocks of zeros.
BLOCK = tarfile.BLOCKSIZE
# First byte of pickles since protocol 2.
PICKLE = b"\x80"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
_SPACE = " \t\r\n,"
# Numbers of C++ that JSON does not have, and such numbers as a value.
_NO_JSON_NUMBER = re.compile(r"-?(?:inf|nan)\b")
_NO_JSON_VALUE = re.compile(r"([:\[,]\s*)-?(?:inf|nan)(?=\s*[,}\]])")


# ── files ────────────────────────────────────────────────────────────────────────────────────────
def texts(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the name and text of a file, or of each file in a tar, in order; None if a file in a tar has no text."""
    try:
        with path.open("rb") as file:
            packed, data = _unpacked(str(path), file)
        if not _begins_a_tar(data):
            yield path.name, _text(path.name, data)
        elif packed:
            yield from _in_tar(path, data)
        else:
            raise ForeignError(f"{path}: {ONLY_GZIP}")
    except (OSError, tarfile.TarError) as error:
        raise ForeignError(f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from None
    except (ValueError, LookupError, ArithmeticError, RecursionError) as error:  # a damaged header of a tar
        raise ForeignError(f"{path}: damaged: {str(error)[:120]}") from None


def _unpacked(name: str, file: IO[bytes]) -> tuple[bool, bytes]:
    """Return whether gzip packed a file, and its bytes, unpacked."""
    start, data = file.read(6), io.BytesIO()
    file.seek(0)
    if start.startswith(OTHERS_PACKED):
        raise ForeignError(f"{name}: {ONLY_GZIP}")
    packed = start.startswith(GZIP)
    source: Any = gzip.GzipFile(fileobj=file) if packed else file
    try:
        while chunk := source.read(CHUNK):
            data.write(chunk)
            if data.tell() > MOST_BYTES:
                raise ForeignError(f"{name}: more than {format_bytes(MOST_BYTES)}, unpacked; cut it to a few steps")
    except (OSError, EOFError, zlib.error) as error:
        raise ForeignError(f"{name}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from None
    return packed, data.getvalue()


def _begins_a_tar(data: bytes) -> bool:
    try:
        return bool(tarfile.TarInfo.frombuf(data[:BLOCK], "utf-8", "replace"))
    except tarfile.HeaderError:
        return False


def _in_tar(path: Path, data: bytes) -> Iterator[tuple[str, str | None]]:
    """Yield the files in a tar, and check that it is complete: a truncated tar would silently lack ranks."""
    with tarfile.TarFile(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            # A sparse file claims a size that it does not have; macOS adds a hidden `._NAME` for each file.
            plain = member.isreg() and not member.issparse() and not PurePath(member.name).name.startswith(".")
            if plain and (content := archive.extractfile(member)) is not None:
                name = f"{path.name}:{member.name}"
                try:
                    yield member.name, _text(name, _unpacked(name, content)[1])
                except ForeignError:
                    if ".json" in member.name:
                        raise
                    yield member.name, None
    if data[-BLOCK:].strip(b"\0"):
        raise ForeignError(f"{path}: the file is incomplete: it was cut off")
    if data[archive.offset :].strip(b"\0"):
        raise ForeignError(f"{path}: damaged: there are further bytes after its last file")


def _text(name: str, data: bytes) -> str:
    """Return the text of a file; a pickle is converted to JSON."""
    if data[:1] == PICKLE:
        return _unpickled(name, data)
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise ForeignError(f"{name}: neither a text file nor a pickle of plain data") from None


class PlainData(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries; makes no object of any class and calls nothing.

    torch's flight recorder writes a pickle when a job hangs. Nothing else in the suite unpickles anything.
    """

    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a recording needs no class")


def _unpickled(name: str, data: bytes) -> str:
    """Return the data of a pickle as JSON; references to the same list can make it much longer. Raises ForeignError."""
    try:
        text, most = io.StringIO(), min(MOST_BYTES, LEAST_UNFOLDED + UNFOLDED * len(data))
        for part in json.JSONEncoder().iterencode(PlainData(io.BytesIO(data)).load()):
            text.write(part)
            if text.tell() > most:
                raise ValueError(f"it expands to more than {format_bytes(most)}")
        return text.getvalue()
    except (MemoryError, SystemError):  # as in machine/memory.py
        raise
    except Exception as error:  # a damaged pickle can raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ForeignError(f"{name}: a pickle that cannot be read: {reason[:120]}") from None


def entries_in(name: str, text: str, key: str, rest: Json) -> Iterator[Json]:
    """Yield the objects in the list `key` of a JSON object one at a time, and at the end add the other keys to `rest`.

    Raises ForeignError if the text is not a complete JSON object.
    """
    place, end = text.find(f'"{key}"'), 0
    begin = text.find("[", place) if place >= 0 else -1
    if begin >= 0:
        text, end = yield from _decoded(name, text, begin + 1)
        if end >= len(text):
            raise ForeignError(f"{name}: the file is incomplete: it was cut off")
    try:
        whole_object = json.loads(text[:begin] + "[" + text[end:] if end else text)
    except (ValueError, RecursionError) as error:
        raise _incomplete(name, error) from None
    if not isinstance(whole_object, dict):
        raise ForeignError(f"{name}: not a JSON object")
    rest |= whole_object


def entries_of(name: str, text: str) -> Iterator[Json]:
    """Yield the entries of a text that is one list, or has one object per line."""
    if text.lstrip()[:1] == "[":
        yield from entries_in(name, f'{{"list": {text}}}', "list", {})
        return
    text, end = yield from _decoded(name, text, 0)
    if end < len(text):
        raise ForeignError(f"{name}: not complete JSON: a list ends that did not begin")


def _decoded(name: str, text: str, position: int) -> Generator[Json, None, tuple[str, int]]:
    """Yield the objects from a position on; return the text, and the position of the closing bracket or of the end.

    In the returned text, numbers of C++ that JSON does not have are replaced by null.
    """
    while True:
        while position < len(text) and text[position] in _SPACE:
            position += 1
        if position >= len(text) or text[position] == "]":
            return text, position
        try:
            entry, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            at = error.pos if isinstance(error, json.JSONDecodeError) else len(text)
            without = text
            if _NO_JSON_NUMBER.match(text, at):  # torch of 2021 wrote `inf` for a bandwidth
                without = text[:position] + _NO_JSON_VALUE.sub(r"\1null", text[position:])
            if without == text:
                raise _incomplete(name, error) from None
            text = without
            continue
        if isinstance(entry, dict):
            yield entry


def _incomplete(name: str, error: Exception) -> ForeignError:
    place = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    return ForeignError(f"{name}{place}: not complete JSON: {json_words(error) or type(error).__name__}")


# ── names and values ─────────────────────────────────────────────────────────────────────────────
# Sources: torch's `record_param_comms` and ProcessGroup classes, 2023 to 2026, torchcomms, and NCCL's inspector.
# Our name → theirs, without prefixes (nccl:, gloo:, c10d::), in lower case, without leading and trailing underscores.
_RECORDED = {
    "all_reduce": "allreduce all_reduce",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_list": "allgather all_gather",
    "all_gather": "allgather_base all_gather_base allgather_into_tensor all_gather_into_tensor "
    "allgather_into_tensor_coalesced all_gather_into_tensor_coalesced all_gather_single all_gather_v",
    "reduce_scatter_list": "reduce_scatter",
    "reduce_scatter": "reducescatter reduce_scatter_base reduce_scatter_tensor reduce_scatter_tensor_coalesced "
    "reduce_scatter_single reduce_scatter_v",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather gather_single",
    "scatter": "scatter",
    "all_to_all_list": "all_to_all alltoall",
    "all_to_all": "alltoall_base all_to_all_single",
    "all_to_all_uneven": "all_to_allv alltoallv all_to_all_v_single",
    "barrier": "barrier all_reduce_barrier",
    "send": "send",
    "recv": "recv",
}
OPERATIONS = {name: operation for operation, names in _RECORDED.items() for name in names.split()}
# Recorded name, in lower case and without `c10::` → our name. Our own names are accepted, too.
DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
}
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
# torch's name of its first group, which has all ranks.
DEFAULT_GROUP = "0"
_PREFIX = re.compile(r"^(gloo|c10d|mpi|ucc|[a-z]*ccl):+")
_PEER = re.compile(r"^(send|recv) (?:\d+->(?P<to>\d+)|\d+<-(?P<source>\d+))$")


# Numbers in the name of a file that are not a rank: a date, a time, a version, a number of something else.
_NO_RANK = re.compile(
    r"(?<!\d)\d{4}([-_.]?)[01]\d\1[0-3]\d(?!\d) | (?<!\d)\d\d([-_.])\d\d\2\d\d(?!\d)"
    r" | (?<!\d)\d{1,3}(?:\.\d{1,3})+(?!\d) | \d{4,}"
    r" | (?:step|iter|iteration|epoch|host|node|local_?rank|worker_?count)[-_=]?\d+",
    re.VERBOSE | re.IGNORECASE,
)
# torch's tensorboard_trace_handler names a file after host, process and time: `gpu07_4711.1732600000000.pt.trace.json`;
# libkineto and HolisticTraceAnalysis name it after the process, too.
_HOST_AND_PROCESS = re.compile(r".*_\d+\.\d{10,}\.pt\.trace$|.*\.\d+\.pt\.trace$|libkineto_\w+_\d+$")
_RANK_WORD = re.compile(r"(?<![a-z])(?:rank(?!s)|worker)\D{0,2}(\d+)", re.IGNORECASE)
# A separate number at the end: `trace.7`, `et_3`, `0`; in `h100`, `bs32` or `8gpus` it belongs to a word.
_LAST_NUMBER = re.compile(r"(?:^|[-_.])(\d+)$")


def rank_of(file: str) -> int | None:
    """Return the rank in a file name such as `et_rank3.json` or `0.json.gz`; None if no number in it can be a rank."""
    named = file.rsplit("/", 1)[-1].split(".json")[0]
    stem = _NO_RANK.sub("", named)
    number = _RANK_WORD.search(stem)
    if number is None and not _HOST_AND_PROCESS.match(named):
        number = _LAST_NUMBER.search(stem.rstrip("-_."))
    return int(number[1]) if number else None


def call_in(
    group: tuple[int, ...] | None, operation: str, dtype: str | None, elements_in: int | None, elements_out: int | None
) -> RecordedCall:
    """Return a call of a format that records neither the parts of an all-to-all nor the size of a group."""
    splits = None if "all_to_all" in operation else ()
    return RecordedCall(operation, dtype, elements_in, elements_out, splits, group, len(group) if group else None)


def operation_of(name: str) -> str:
    """Return the operation that a name means; an unknown operation keeps its name, without the backend."""
    bare = _PREFIX.sub("", name.strip())
    bare = bare.split(" ")[0] if _PEER.match(bare) else bare
    return OPERATIONS.get(bare.strip("_").lower(), bare)


def peer_of(name: str) -> int | None:
    """Return the peer, as a rank of the group, in the name of a send or receive such as `nccl:send 0->3`."""
    peer = _PEER.match(_PREFIX.sub("", name.strip()))
    return int(peer["to"] or peer["source"]) if peer else None


def dtype_of(name: object) -> str | None:
    """Return our name of a dtype; None if the dtype is unknown."""
    bare = str(name).strip().lower().removeprefix("c10::")
    return bare if bare in dtypes.DTYPES else DTYPES.get(bare)


def whole(value: object) -> int | None:
    """Return the value if it is an integer, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def numbers(value: object) -> tuple[int, ...] | None:
    """Return the numbers in a list, or in a text such as `[3, 1]`; None if the text is truncated."""
    try:
        listed: Any = json.loads(value or "[]") if isinstance(value, str) else value or ()
        return tuple(int(number) for number in listed)
    except (TypeError, ValueError):
        return None


@functools.lru_cache(maxsize=8)  # most calls of a recording are of few groups
def ranks_from(size: int, start: int = 0, stride: int = 1) -> tuple[int, ...]:
    """Return the ranks of a group that a recording does not list. Raises ValueError if no cluster has that many."""
    if size > MOST_RANKS or not 0 <= start + stride * max(0, size - 1) < MOST_RANKS:
        raise ValueError(f"a group of {size} ranks from {start} on, {stride} apart; at most {MOST_RANKS} are read")
    return tuple(range(start, start + stride * size, stride))


def member(group: tuple[int, ...] | None, within: int | None) -> int | None:
    """Return the world rank of a rank within its group; None if either is unknown."""
    return group[within] if within is not None and group and within < len(group) else None
