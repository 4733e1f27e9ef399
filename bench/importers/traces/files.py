"""Open recordings: plain, gzipped, one a rank in a tar; and go through a long JSON list one entry at a time.

In: a path. Out: (name, text) of each file, and entries. A file of 300 MB as one tree of Python objects would take some
3 GB; entry by entry it takes little more than its text. Raises ForeignError, in one line, for what cannot be read.
"""

import gzip
import json
import tarfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from bench.importers.traces import plain_pickle
from bench.model.errors import ForeignError
from bench.model.records import Json

# Largest recording, uncompressed: beyond it a file is more likely hostile than long.
MOST_BYTES = 2 * 2**30
MOST_FILES = 4096
_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n,"


def texts(path: Path) -> Iterator[tuple[str, str]]:
    """Each recording in a file, with its name; those of a tar sorted by name."""
    try:
        if tarfile.is_tarfile(path):
            yield from _in_tar(path)
        else:
            with path.open("rb") as file:
                yield path.name, _text(path.name, file)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ForeignError(f"{path}: {said.lower()}") from None


def _in_tar(path: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(path) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        if len(members) > MOST_FILES:
            raise ForeignError(f"{path}: {len(members)} files; at most {MOST_FILES} are read")
        for member in sorted(members, key=lambda one: one.name):
            file = archive.extractfile(member)
            if file is not None:
                yield member.name, _text(f"{path.name}:{member.name}", file)


def _text(name: str, file: Any) -> str:
    """The text, uncompressed if need be."""
    head = file.read(2)
    file.seek(0)
    source: Any = gzip.GzipFile(fileobj=file) if head == b"\x1f\x8b" else file
    data = source.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ForeignError(f"{name}: more than {MOST_BYTES // 2**30} GiB; cut it to a few steps")
    if data[:1] == plain_pickle.BEGINS:
        return plain_pickle.as_json(name, data, MOST_BYTES)
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise ForeignError(f"{name}: neither a text file nor a pickle of plain data") from None


class LongObject:
    """A JSON object with one long list, whose entries are read one at a time; then `rest` is the object without it."""

    def __init__(self, name: str, text: str, key: str) -> None:
        self.rest: Json = {}
        self._name, self._text = name, text
        found = text.find(f'"{key}"')
        self._at = text.find("[", found) if found >= 0 else -1

    def entries(self) -> Iterator[Json]:
        """The entries that are objects. Raises ForeignError where the text is no complete JSON object."""
        name, text, end = self._name, self._text, 0
        if self._at >= 0:
            end = yield from _decoded(name, text, self._at + 1)
            if end >= len(text):
                raise ForeignError(f"{name}: the file ends in the middle: it was cut off")
        self.rest = _object(name, text[: self._at] + "[" + text[end:] if end else text)


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
            raise ForeignError(f"{name}: no complete JSON: {_short(error)}") from None
        if isinstance(entry, dict):
            yield entry


def _object(name: str, text: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ForeignError(f"{name}: no complete JSON: {_short(error)}") from None
    if not isinstance(found, dict):
        raise ForeignError(f"{name}: no JSON object")
    return found


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
