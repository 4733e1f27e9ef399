"""Open recordings, go through their long lists, and translate the names in them; shared by the readers of all formats.

In: a path. Out: (name, text) of each file: plain, gzipped, or one a rank in a tar; and entries of a long JSON list, one
at a time: a file of 300 MB as one tree of Python objects would take some 3 GB, entry by entry it takes little more than
its text. Raises ForeignError, in one line, for what cannot be read.
"""

import gzip
import io
import json
import pickle
import re
import tarfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Never

from bench.catalog import dtypes
from bench.model.errors import ForeignError
from bench.model.records import Json

# Largest recording, uncompressed: beyond it a file is more likely hostile than long.
MOST_BYTES = 2 * 2**30
MOST_FILES = 4096
# First byte of pickles since protocol 2.
PICKLE = b"\x80"
_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n,"


# ── files ────────────────────────────────────────────────────────────────────────────────────────
def texts(path: Path) -> Iterator[tuple[str, str]]:
    """Each recording in a file, with its name; those of a tar sorted by name."""
    try:
        if not tarfile.is_tarfile(path):
            with path.open("rb") as file:
                yield path.name, _text(path.name, file)
            return
        with tarfile.open(path) as archive:
            members = [member for member in archive.getmembers() if member.isfile() and not _hidden(member.name)]
            if len(members) > MOST_FILES:
                raise ForeignError(f"{path}: {len(members)} files; at most {MOST_FILES} are read")
            for member in sorted(members, key=lambda member: member.name):
                content = archive.extractfile(member)
                if content is not None:
                    yield member.name, _text(f"{path.name}:{member.name}", content)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ForeignError(f"{path}: {reason.lower()}") from None


def _hidden(name: str) -> bool:
    """Whether a file in an archive holds no recording: macOS writes a `._NAME` beside each file."""
    return name.rsplit("/", 1)[-1].startswith(".")


def _text(name: str, file: Any) -> str:
    """The text, uncompressed if need be; that of a pickle as JSON."""
    start = file.read(2)
    file.seek(0)
    source: Any = gzip.GzipFile(fileobj=file) if start == b"\x1f\x8b" else file
    data = source.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ForeignError(f"{name}: more than {MOST_BYTES // 2**30} GiB; cut it to a few steps")
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
    """The data of a pickle as JSON. Raises ForeignError.

    A pickle of a few hundred bytes can refer to its own lists so often that its JSON fills any memory.
    """
    try:
        parts, length = [], 0
        for part in json.JSONEncoder().iterencode(PlainData(io.BytesIO(data)).load()):
            length += len(part)
            if length > MOST_BYTES:
                raise ValueError(f"it holds more than {MOST_BYTES} characters")
            parts.append(part)
        return "".join(parts)
    except Exception as error:  # a damaged pickle can raise anything
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise ForeignError(f"{name}: a pickle that cannot be read: {text[:120]}") from None


class LongObject:
    """A JSON object with one long list, whose entries are read one at a time; then `rest` is the object without it."""

    def __init__(self, name: str, text: str, key: str) -> None:
        self.rest: Json = {}
        self._name, self._text = name, text
        place = text.find(f'"{key}"')
        self._at = text.find("[", place) if place >= 0 else -1

    def entries(self) -> Iterator[Json]:
        """The entries that are objects. Raises ForeignError where the text is no complete JSON object."""
        name, text, end = self._name, self._text, 0
        if self._at >= 0:
            end = yield from _decoded(name, text, self._at + 1)
            if end >= len(text):
                raise ForeignError(f"{name}: the file ends in the middle: it was cut off")
        try:
            rest = json.loads(text[: self._at] + "[" + text[end:] if end else text)
        except (ValueError, RecursionError) as error:
            raise _incomplete(name, error) from None
        if not isinstance(rest, dict):
            raise ForeignError(f"{name}: no JSON object")
        self.rest = rest


def entries_of(name: str, text: str) -> Iterator[Json]:
    """The entries of a text that is one list, or of one object a line."""
    if text.lstrip()[:1] == "[":
        yield from LongObject(name, f'{{"list": {text}}}', "list").entries()
        return
    end = yield from _decoded(name, text, 0)
    if end < len(text):
        raise ForeignError(f"{name}: no complete JSON: a list ends that did not begin")


def _decoded(name: str, text: str, position: int) -> Generator[Json, None, int]:
    """The objects from a position on; returns the position of the bracket, or the end of the text, behind them."""
    while True:
        while position < len(text) and text[position] in _SPACE:
            position += 1
        if position >= len(text) or text[position] == "]":
            return position
        try:
            entry, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise _incomplete(name, error) from None
        if isinstance(entry, dict):
            yield entry


def _incomplete(name: str, error: Exception) -> ForeignError:
    reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
    return ForeignError(f"{name}: no complete JSON: {reason}")


# ── names and values ─────────────────────────────────────────────────────────────────────────────
# Sources: torch's `record_param_comms` and ProcessGroup classes, 2023 to 2026, and NCCL's inspector.
# Ours → theirs, without prefixes (nccl:, gloo:, c10d::), in lower case, without leading and trailing underscores.
_RECORDED = {
    "all_reduce": "allreduce all_reduce",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_list": "allgather all_gather",
    "all_gather": "allgather_base all_gather_base allgather_into_tensor all_gather_into_tensor "
    "allgather_into_tensor_coalesced",
    "reduce_scatter_list": "reduce_scatter",
    "reduce_scatter": "reducescatter reduce_scatter_base reduce_scatter_tensor reduce_scatter_tensor_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all_list": "all_to_all alltoall",
    "all_to_all": "alltoall_base all_to_all_single",
    "all_to_all_uneven": "all_to_allv alltoallv",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
OPERATIONS = {name: operation for operation, names in _RECORDED.items() for name in names.split()}
# Besides the names that are ours, in lower case and without `c10::`.
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
_PREFIX = re.compile(r"^(nccl|gloo|c10d|mpi|ucc|xccl|rccl):+")
_PEER = re.compile(r"^(send|recv) (?:\d+->(?P<to>\d+)|\d+<-(?P<source>\d+))$")


def rank_of(file: str) -> int | None:
    """The rank in the name of a file, such as `et_rank3.json` or `0.json.gz`; None without a number."""
    stem = file.rsplit("/", 1)[-1].split(".json")[0]
    number = re.search(r"rank\D{0,2}(\d+)", stem) or re.search(r"(\d+)\D*$", stem)
    return int(number[1]) if number else None


def operation_of(name: str) -> str:
    """The operation; what is not known keeps its name, without the backend."""
    bare = _PREFIX.sub("", name.strip())
    bare = bare.split(" ")[0] if _PEER.match(bare) else bare
    return OPERATIONS.get(bare.strip("_").lower(), bare)


def peer_of(name: str) -> int | None:
    """The peer that the name of a send or receive tells, such as `nccl:send 0->3`: within its group."""
    peer = _PEER.match(_PREFIX.sub("", name.strip()))
    return int(peer["to"] or peer["source"]) if peer else None


def dtype_of(name: object) -> str | None:
    """The dtype; None if it is not one of these."""
    bare = str(name).strip().lower().removeprefix("c10::")
    return bare if bare in dtypes.DTYPES else DTYPES.get(bare)


def whole(value: object) -> int | None:
    """The value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def numbers(value: object) -> tuple[int, ...] | None:
    """Numbers in a list, or in a text such as `[3, 1]`; None where the text is cut."""
    try:
        listed: Any = json.loads(value or "[]") if isinstance(value, str) else value or ()
        return tuple(int(number) for number in listed)
    except (TypeError, ValueError):
        return None


def member(group: tuple[int, ...] | None, within: int | None) -> int | None:
    """Rank of the world of a rank within its group; None if either is not known."""
    return group[within] if within is not None and group and within < len(group) else None
