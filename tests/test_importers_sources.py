"""A file becomes lines whatever its encoding, or one sentence says why not; labels of launchers fall away."""

import os
from pathlib import Path

import pytest

from bench.importers import sources
from bench.model.errors import ForeignError


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (bytes(range(256)) * 8, "not text"),
        (os.urandom(4096), "not text|packed"),
        (b"\x1f\x8b\x08rest", "packed with gzip"),
        (b"\x7fELF" + bytes(500), "not text"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, content, words):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ForeignError, match=words):
        sources.read(path)


def test_enormous_files_are_refused_by_their_size(tmp_path):
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        file.truncate(sources.LIMIT_BYTES + 1)
    with pytest.raises(ForeignError, match="larger than 64 MiB"):
        sources.read(path)


@pytest.mark.parametrize("path", ["missing.txt", ".", "a\0b"])
def test_what_cannot_be_opened_is_one_sentence(tmp_path, path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ForeignError) as caught:
        sources.read(Path(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings(tmp_path, encoding):
    path = tmp_path / "x"
    path.write_bytes("# size\r\n  8 µs\r\n".encode(encoding))
    assert sources.read(path).lines()[:2] == ["# size", "  8 µs"]


@pytest.mark.parametrize(
    "label",
    [
        "[1,0]<stdout>:", "[1,12]<stderr>: ", "[prterun-a-1@1,3]<stdout>: ", "[0] ", "0: ", "  12: ", "node-01: ",
        "2026-01-02T03:04:05Z ", "2026-01-02 03:04:05,678 ", "[2026-01-02 03:04:05] ", "03:04:05.678 ",
        "2026-01-02T03:04:05.6+02:00 stderr F ", "0: [1,0]<stdout>:", "\x1b[1m[0] \x1b[0m",
    ],
)  # fmt: skip
@pytest.mark.parametrize("line", ["# size  count", "   1024  256  float", "#"])
def test_labels_fall_away(tmp_path, label, line):
    path = tmp_path / "x"
    path.write_text(f"{label}{line}\n")
    assert sources.read(path).lines()[0].strip() == line.strip()


@pytest.mark.parametrize("line", ["1024  12.3", "12.5", "# OSU MPI Latency Test v7", "Rank  0 on node device", "a: b"])
def test_other_lines_stay(tmp_path, line):
    path = tmp_path / "x"
    path.write_text(line)
    assert sources.read(path).lines() == [line]
