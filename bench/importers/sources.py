"""Read a file of another tool as lines of text, whatever its format.

In: a path. Out: a `Source` (name, checksum, text), or a ForeignError of one line. Lines come without colours, control
characters and the labels that launchers and log collectors put in front (`[1,0]<stdout>:`, `0: `, a time stamp,
`node01: `). Reads at most LIMIT_BYTES, so that a wrong file costs no memory.
"""

import codecs
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from bench.model.errors import ForeignError
from bench.model.units import format_bytes

# The longest sweep with an NCCL that logs at INFO is a few megabytes; a larger file is of another kind.
LIMIT_BYTES = 64 * 2**20
# No tool prints longer lines, and matching patterns in them could take very long.
LONGEST_LINE = 2000
# A file with a larger share of undecodable or NUL characters is not text; a log may hold a few that its tool garbled.
MOST_GARBLED = 0.05
# First bytes of a packed file → how it is packed.
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}
# Byte-order marks. A UTF-32 mark begins like a UTF-16 one, so it comes first.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LABEL = re.compile(
    r"""\s*(?:
        \[[^\]\s]*\]<std\w+>:?              # Open MPI, mpirun --tag-output: [1,0]<stdout>:
      | \[\d+(?:,\d+)?\](?=\s)              # Hydra, mpiexec -l: [0]
      | \(?rank\s?\d+\)?:                   # rank 0:
      | \d+:(?=\s)                          # srun --label: 0:
      | \[?\d{4}-\d\d-\d\d[T\s]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?
      | \[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?=\s)
      | std(?:out|err)\s[FP](?=\s)          # Kubernetes, behind its time stamp
      | [A-Za-z][\w.-]*:(?=\s+[\d\#])       # pdsh, clush: node01:
    )""",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was read. name: without its folder."""

    path: Path
    sha256: str
    text: str

    @property
    def name(self) -> str:
        return self.path.name.encode(errors="replace").decode()

    def lines(self) -> list[str]:
        """The lines without colours, control characters and labels."""
        plain = _CONTROL.sub("", _ESCAPES.sub("", self.text.replace("\r\n", "\n").replace("\r", "\n")))
        return [_unlabelled(line[:LONGEST_LINE]) for line in plain.split("\n")]


def read(path: Path) -> Source:
    """The file as text. Raises ForeignError with one line."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise ForeignError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:  # a path with a NUL in it
        raise ForeignError(f"{path!s:.100}: {error}") from None
    if len(raw) > LIMIT_BYTES:
        raise ForeignError(f"{path}: larger than {format_bytes(LIMIT_BYTES)}, which no table of results is")
    if not raw.strip():
        raise ForeignError(f"{path}: empty")
    return Source(path, hashlib.sha256(raw).hexdigest(), _decoded(path, raw))


def _decoded(path: Path, raw: bytes) -> str:
    for start, kind in PACKED.items():
        if raw.startswith(start):
            raise ForeignError(f"{path}: packed with {kind}; unpack it first")
    text = raw.decode(_encoding(raw), errors="replace")
    garbled = text.count("\ufffd") + text.count("\0")
    if garbled > MOST_GARBLED * len(text):
        raise ForeignError(f"{path}: not text")
    return text


def _encoding(raw: bytes) -> str:
    for mark, encoding in MARKS.items():
        if raw.startswith(mark):
            return encoding
    # UTF-16 without a mark: every other byte of plain text is a zero.
    head = raw[:4096]
    if head[1::2].count(0) > len(head) // 4:
        return "utf-16-le"
    return "utf-16-be" if head[0::2].count(0) > len(head) // 4 else "utf-8"


def _unlabelled(line: str) -> str:
    """The line without its labels, of which there may be several."""
    while (match := _LABEL.match(line)) is not None and match.end():
        line = line[match.end() :]
    return line.rstrip()
