"""A text file is read as lines, any other file is refused in one sentence; labels of launchers are removed."""

import os

import pytest

from collbench.model.errors import ForeignError
from collbench.packages.interop.importers import readings
from collbench.packages.interop.importers.readings import read_source


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (bytes(range(256)) * 8, "not UTF-8 text"),
        (b"\x1f\x8b\x08rest", "packed with gzip"),
        (b"\x7fELF" + bytes(500), "not UTF-8 text"),
        ("# size\r\n  8 \u00b5s\r\n".encode("utf-16"), "not UTF-8 text"),
        (None, "larger than 64 MiB"),
    ],
)
def test_files_that_are_not_text_or_enormous_are_refused(tmp_path, content, words):
    path = tmp_path / "x"
    path.write_bytes(content or b"")
    if content is None:
        os.truncate(path, readings.LIMIT_BYTES + 1)
    with pytest.raises(ForeignError, match=words):
        read_source(path)
