"""Extract the lines that a tool printed from a log, without labels of launchers and envelopes of log collectors.

In: the text of a file. Out: `LogLine`s, with their line numbers in the file. Removed are colours, control characters,
labels in front of a line (`[1,0]<stdout>:`, `0: `, a time stamp, `node01: `), the bars of Markdown's tables, and JSON
around it: one object per line (Docker's json-file, Fluent Bit, structlog), or a whole table escaped in one text. This
module does not know the format of any tool.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

# No tool prints longer lines, and matching patterns in longer lines could take very long.
LONGEST_LINE = 2000
# Names that log collectors give the text of a line: Docker, Fluent Bit, Logstash, Loki, journald and others.
TEXT_KEYS = (
    "log", "message", "msg", "MESSAGE", "@message", "output", "text", "textPayload", "line", "body", "content",
    "stdout", "stdout_line", "_raw", "event",
)  # fmt: skip
DOCKER = "log"
# If more than this share of the enveloped texts end with a line feed, the collector has cut the other texts.
MOSTLY = 0.5

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Labels that occur at any place of a line: launchers write them wherever a rank's output was cut into pieces.
_ANYWHERE = r"""
        \[[^\]\s]*\]<std\w+>:?              # Open MPI, mpirun --tag-output: [1,0]<stdout>:
"""
_BETWEEN = r"""
      | \[\d+(?:,\d+)?\](?=\s)              # Hydra, mpiexec -l: [0]
      | \(?rank\s?\d+\)?:                   # rank 0:
      | \b\d+:(?=\s)                        # srun --label: 0:
      | \[?\d{4}-\d\d-\d\d[T\s]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?
      | \[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?=\s)
      | std(?:out|err)\s[FP](?=\s)          # Kubernetes, behind its time stamp
"""
_FRONT = r"""
      | [A-Za-z][\w.-]*:(?=\s+[\d\#])       # pdsh, clush: node01:
      | >(?=\s*[\d\#|])                     # a quotation in Markdown
"""
_MARKDOWN_ROW = re.compile(r"\s*\|.*\|\s*")
# A row whose bars are of another kind, or on one side only.
_BARRED = re.compile(r"[\s|│*`]*\d[\d.,*`]*\s*[|│]")
_NO_COMMAND = re.compile(r"\s*[\d#]")
_TAG = re.compile(_ANYWHERE, re.VERBOSE)
# Labels inside a line that launchers have cut into pieces, each with a label.
INSIDE = re.compile(_ANYWHERE + _BETWEEN, re.VERBOSE | re.IGNORECASE)
_LABEL = re.compile(rf"\s*(?:{_ANYWHERE}{_BETWEEN}{_FRONT})", re.VERBOSE | re.IGNORECASE)
# The parts of a launcher's command line, each searched for after the previous part: a single pattern would take half a
# second for a hostile line.
_LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec|srun|orterun|prterun|mpirun_rsh|aprun|jsrun|flux run)(?=\s)")
_RANKS = re.compile(r"\s(?:-n|-np|--np|--ntasks)[\s=]{0,3}(\d{1,7})\b")
_NODES = re.compile(r"\s(?:-N|--nodes)[\s=]{0,3}(\d{1,7})(?![\d-])")
_PER_NODE = re.compile(r"\s(?:--ntasks-per-node|-ppn|-perhost|--npernode|-npernode)[\s=]{0,3}(\d{1,7})\b")
# Line feeds that collectors write within one line: escaped, or as rsyslog writes them (#012).
_ESCAPED_FEED = re.compile(r"(?:\\r)?\\n|#012")
_NUMBER_ALONE = re.compile(r"[-+\d.:eTZ ]*")
# A wrapper program between a launcher and the started program; the wrapper's options are not the launcher's.
_WRAPPER = re.compile(r"\s(?:\S*/)?(?:nice|numactl|taskset|env|bash|sh|timeout|strace|perf|singularity|apptainer)\s")
_OBJECT = re.compile(r'\{\s*"')
_DECODER = json.JSONDecoder()


class LogLine(NamedTuple):
    """A line that a tool printed."""

    # Line number in the file, counted from 1.
    number: int
    text: str


class Command(NamedTuple):
    """The command line that started a program."""

    # Number of processes; None if the line does not give it.
    processes: int | None
    # Match of the program's name.
    program: re.Match[str]


def lines(text: str) -> list[LogLine]:
    """Return the lines of a log without envelopes and labels; a line may have several envelopes and labels."""
    plain = _CONTROL.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    found: list[LogLine] = []
    for number, line in _joined([*_opened(plain.split("\n"))]):
        bare = _bare(line)
        if found and found[-1].text.endswith("\\") and not _NO_COMMAND.match(bare):  # a command goes on
            found[-1] = LogLine(found[-1].number, f"{found[-1].text[:-1]} {bare.strip()}")
        else:
            found.append(LogLine(number, bare))
    return found


def command_in(text: str, program: re.Pattern[str]) -> Command | None:
    """Return the launcher's command line in a line of a log; None if it starts no program with this name."""
    line = " ".join(text.split())
    launcher = _LAUNCHER.search(line)
    started = program.search(line, launcher.end()) if launcher else None
    if launcher is None or started is None:
        return None
    # After another launcher between the two, its options count.
    *_, between = _LAUNCHER.split(line[launcher.end() : started.start()])
    options = _WRAPPER.split(between, maxsplit=1)[0]
    ranks, nodes, per_node = (pattern.search(options) for pattern in (_RANKS, _NODES, _PER_NODE))
    processes = int(nodes[1]) * int(per_node[1]) if nodes and per_node else None
    several = " : " in line or "jsrun" in line  # several programs at once; resource sets, which are not processes
    return Command(None if several else int(ranks[1]) if ranks else processes, started)


def _bare(text: str) -> str:
    line = _TAG.sub("", text[:LONGEST_LINE])
    while (label := _LABEL.match(line)) is not None and label.end():
        line = line[label.end() :]
    if _MARKDOWN_ROW.fullmatch(line) or _BARRED.match(line):
        return "  ".join(cell.strip(" *`") or "N/A" for cell in re.split("[|│]", line.strip().strip("|│")))
    return line.rstrip()


# ── envelopes ────────────────────────────────────────────────────────────────────────────────────
class _Piece(NamedTuple):
    """A part of a log: a line, or the content of an envelope."""

    number: int
    text: str
    # Key of the text in its envelope; "" if collectors do not use the key; None for a line without an envelope.
    enveloped: str | None = None


def _opened(file_lines: Iterable[str]) -> Iterator[_Piece]:
    for number, line in enumerate(file_lines, 1):
        pieces = [*_contents(number, line)]
        if any(piece.enveloped is not None for piece in pieces):
            yield from pieces
        elif _ESCAPED_FEED.search(line):  # a table in one line, in an envelope that is not JSON or was cut
            unescaped = _ESCAPED_FEED.sub("\n", line).replace("\\t", "\t").replace('\\"', '"')
            yield from (_Piece(number, part) for part in unescaped.split("\n"))
        else:
            yield _Piece(number, line)


def _contents(number: int, line: str) -> Iterator[_Piece]:
    """Yield the texts in the JSON objects of a line and the text around them; the line if no object is complete."""
    at = 0
    while (match := _OBJECT.search(line, at)) is not None:
        try:
            value, end = _DECODER.raw_decode(line, match.start())
        except (ValueError, RecursionError):
            break
        if line[at : match.start()].strip(" \t[,]"):
            yield _Piece(number, line[at : match.start()])
        yield from (_Piece(number, text, key) for key, text in _texts(value))
        at = end
    if line[at:].strip(" \t[,]"):
        yield _Piece(number, line[at:])


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, text) from an object: the text with a key that collectors use, else all texts in the object."""
    if isinstance(value, str):
        try:
            inner = json.loads(value) if _OBJECT.match(value.lstrip()) else None
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, dict):
            yield from _texts(inner)
        elif key or not _NUMBER_ALONE.fullmatch(value):  # a time next to the text is not a row
            yield key, value
    elif isinstance(value, dict):
        named = [name for name in TEXT_KEYS if isinstance(value.get(name), str) and value[name].strip()]
        for name, part in [(named[0], value[named[0]])] if named else (("", part) for part in value.values()):
            yield from _texts(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _joined(pieces: Sequence[_Piece]) -> Iterator[LogLine]:
    """Yield the lines of the pieces; texts that were cut into several envelopes are joined again."""
    # If a collector keeps line feeds, as Docker does, a text without one was cut: its rest is in the next envelope.
    kept = Counter(piece.enveloped for piece in pieces if piece.text.endswith("\n"))
    every = Counter(piece.enveloped for piece in pieces)
    cutting = {key for key in kept if key and (key == DOCKER or kept[key] > MOSTLY * every[key])}
    number, held = 0, ""
    for piece in pieces:
        if piece.enveloped not in cutting:
            yield from (LogLine(piece.number, line) for line in piece.text.removesuffix("\n").split("\n"))
            continue
        number = number if held else piece.number
        *complete, held = (held + piece.text).split("\n")
        yield from (LogLine(number, line) for line in complete)
        if len(held) > LONGEST_LINE:
            yield LogLine(number, held)
            held = ""
    if held:
        yield LogLine(number, held)
