"""Printed values are read back to the same number; ambiguous texts are refused with the way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.model import units


@given(st.integers(1, 2**60))
def test_formatted_bytes_are_read_back_exactly(size):
    assert units.parse_bytes(units.format_bytes(size)) == size
    assert units.parse_bytes(size) == size


READ = {
    units.parse_bytes: {
        "1MB": 10**6, "1MiB": 2**20, "64 KiB": 65536, "1.5 GB": 1_500_000_000, "4096": 4096, "0.5KiB": 512, ".5KB": 500,
    },
    units.parse_seconds: {"50ms": 0.05, "2 min": 120, 3: 3.0, "1.5s": 1.5, "10us": 1e-5},
    units.parse_rate: {
        "25 Gbit/s": 3.125e9, "430 GB/s": 430e9, "1 GiB/s": 2**30, "100 Mbit/s": 12.5e6, "100Mbit/s": 12.5e6,
        "0.8 GB/s": 0.8e9, ".5 kbit/s": 62.5, "8 bit/s": 1.0, "3 B/s": 3.0,
    },
    units.parse_share: {"5%": 0.05, "0.05": 0.05, 0.1: 0.1, "12.5 %": 0.125, 0: 0.0, "0%": 0.0},
}  # fmt: skip
NAN, INF = float("nan"), float("inf")
REFUSED = {
    units.parse_bytes: ["", "big", "1.5B", "-1", 0, -4, "0", True, 1.0, None, "1 MB MB", "1e6"],
    units.parse_seconds: ["5M", "-1s", NAN, INF, -1, True, None, "s"],
    units.parse_rate: ["", "fast", "-1 GB/s", "0 GB/s", "25", "1 furlong/s", 25, 1.5, None, True],
    units.parse_share: ["5", 5, 1, "100%", "-5%", "", "x", None, True, NAN, INF],
}


@pytest.mark.parametrize("parse", READ, ids=lambda parse: parse.__name__)
def test_valid_texts_are_read_and_others_are_refused(parse):
    for text, number in READ[parse].items():
        assert parse(text) == pytest.approx(number), text
    for value in REFUSED[parse]:
        with pytest.raises(ValueError, match=r"."):
            parse(value)
