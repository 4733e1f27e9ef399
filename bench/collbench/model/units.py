"""Parse and format bytes, seconds, rates and shares.

In: a text or number of a user (`"64MiB"`, `"50 ms"`, `"25 Gbit/s"`, `"5%"`, `4096`). Out: plain ints (bytes) and floats
(seconds, bytes per second, shares); and text for people. Prefixes are exact, in parsing and in formatting: `MB` is
10^6 and `MiB` is 2^20; a bare `M` is ambiguous and refused. Bits and bytes differ by name, never by the case of a
letter. Raises ValueError with a sentence; callers add file and key.
"""

import re
from collections.abc import Sequence

# Number of texts for which a line has room.
FEW = 5
# Seconds in a nanosecond and in a microsecond; bytes in a mebibyte.
NS, US, MIB = 1e-9, 1e-6, 2**20
# More ranks than any cluster has; a larger number is a typing error, or damage.
MOST_RANKS = 65536
# More elements, or bytes, than any memory has; a larger number is damage.
MOST_ELEMENTS = 2**63 - 1
_DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BYTES: dict[str, int] = {"": 1, "B": 1, **_DECIMAL, **_BINARY}
_SECONDS = {"": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
# "bit" is written out in rates, because `Gb` and `GB` are mistaken for each other in data sheets and logs.
_BITS = {"bit": 1, "kbit": 10**3, "Kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
_RATES = {
    **{f"{unit}/s": float(factor) for unit, factor in _BYTES.items() if unit},
    **{f"{unit}/s": factor / 8 for unit, factor in _BITS.items()},
}
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z/]*)\s*")
_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e-[0-9]+)?|\.[0-9]+)\s*(%?)\s*")
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-zµ]*)\s*")


def _split(text: str, what: str, example: str) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {what}; write a number and a unit, such as {example}")
    return match[1], match[2]


def parse_bytes(value: int | str) -> int:
    """Parse bytes from an int or from text such as `"64MiB"` or `"1.5 GB"`; always a whole, positive number."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a size; write bytes or a size such as 1MiB")
    if isinstance(value, int):
        number, unit = str(value), ""
        if value < 0:
            raise ValueError(f"a size cannot be negative, but this is {value}")
    else:
        number, unit = _split(value, "a size", "64KiB, 1MB or 4096")
    if unit not in _BYTES:
        letter, given = unit[:1].upper(), f"'{number}{unit}'"
        if letter in {"K", "M", "G", "T"} and unit[1:].lower() in {"", "b", "i", "ib"}:
            decimal, binary = f"{number}{letter}B", f"{number}{letter}iB"
            raise ValueError(f"{given} is ambiguous: write {decimal} for powers of 1000 or {binary} for powers of 1024")
        raise ValueError(
            f"unknown unit {unit!r} in {given}: use B, KB, MB, GB (powers of 1000) or KiB, MiB, GiB (of 1024)"
        )
    integer, _, fraction = number.partition(".")
    scaled = int((integer or "0") + fraction) * _BYTES[unit]
    size, remainder = divmod(scaled, int(10 ** len(fraction)))
    if remainder:
        raise ValueError(f"{value!r} is not a whole number of bytes")
    if size == 0:
        raise ValueError(f"{value!r} is not a size: at least 1 byte")
    return size


def parse_seconds(value: int | float | str) -> float:
    """Parse seconds from a number (seconds) or from text such as `"50ms"` or `"10 min"`; never negative."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a duration; write seconds or a duration such as 50ms")
    if isinstance(value, str):
        number, unit = _split(value, "a duration", "50ms, 2s or 10min")
        if unit not in _SECONDS:
            raise ValueError(f"unknown unit {unit!r} in {value!r}: use ns, us, ms, s, min or h")
        return float(number) * _SECONDS[unit]
    seconds = float(value)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"a duration cannot be {value}")
    return seconds


def parse_rate(value: str) -> float:
    """Parse bytes per second from text such as `"25 Gbit/s"`, `"430 GB/s"` or `"1 GiB/s"`; always positive."""
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a rate; write a number and a unit, such as 25 Gbit/s or 3 GB/s")
    number, unit = match[1], match[2]
    if unit not in _RATES:
        letter, text = unit[:1].upper(), value.strip()
        if letter in {"K", "M", "G", "T"}:
            raise ValueError(
                f"{text!r} does not say whether bits or bytes a second are meant, which differ by a factor of 8: "
                f"write {number} {letter}bit/s or {number} {letter}B/s"
            )
        raise ValueError(
            f"unknown unit {unit!r} in {text!r}: use Mbit/s, Gbit/s, MB/s, GB/s (powers of 1000) or MiB/s, GiB/s"
        )
    if float(number) == 0:
        raise ValueError(f"{value!r} must be above 0, such as 10Gbit/s")
    return float(number) * _RATES[unit]


def parse_link(text: str) -> tuple[float, float]:
    """Parse the latency in seconds and the rate in bytes per second of a link such as `2ms + 1GB/s`."""
    latency, plus, rate = text.partition("+")
    if not plus:
        raise ValueError("write latency and rate, such as 2ms + 1GB/s")
    return parse_seconds(latency.strip()), parse_rate(rate.strip())


def parse_share(value: int | float | str) -> float:
    """Parse a share of at least 0 and less than 1, from text such as `"5%"` or from a number such as `0.05`."""
    match = None if isinstance(value, bool) else _SHARE.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a share; write 5% or 0.05")
    share = float(match[1]) / (100 if match[2] else 1)
    if share >= 1:
        raise ValueError(f"{value!r} would be {format_share(share)}: write less than 100%, such as 5% or 0.05")
    return share


def format_bytes(size: int) -> str:
    """Format bytes as the shortest exact text: `1 MiB`, `1 MB`, `1536 B`. `parse_bytes` reads the same number back."""
    for unit, factor in (*reversed(_BINARY.items()), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size % factor == 0 and size:
            return f"{size // factor} {unit}"
    return f"{size} B"


def format_rounded_bytes(size: float) -> str:
    """Format about this many bytes, for people: `1.4 GiB`. The text is not exact and never parsed back."""
    for unit, factor in reversed(_BINARY.items()):
        if size >= factor:
            return f"{_three_digits(size / factor)} {unit}"
    return f"{size:.0f} B"


def format_seconds(seconds: float) -> str:
    """Format seconds in the unit that suits, to about three digits: `556 µs`, `1.61 ms`, `62.8 s`, `3.5 min`."""
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        # 0.9995 of a unit would print as 1000 of the next smaller one.
        if abs(seconds) >= 0.9995 * factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{_three_digits(seconds * 1e9)} ns"


def format_rate(bytes_per_second: float) -> str:
    """Format a rate in GB/s with GB = 1e9, as nccl-tests prints it, to three significant digits."""
    return f"{_three_digits(bytes_per_second / 1e9)}"


def _three_digits(number: float) -> str:
    magnitude = abs(number)
    if magnitude >= 99.95:
        return f"{number:.0f}"
    if magnitude >= 9.995:
        return f"{number:.1f}"
    if magnitude >= 0.9995 or magnitude == 0:
        return f"{number:.2f}"
    return f"{number:.3g}"


def format_ratio(ratio: float) -> str:
    """Format a ratio with three decimals, or a small one with two significant digits: `1.210`, `0.976`, `0.0013`."""
    return f"{ratio:.3f}" if ratio >= 0.0995 else f"{ratio:.2g}"


def first_few(texts: Sequence[str], most: int = FEW, separator: str = ", ") -> str:
    """Join the first of several texts, and state how many more there are: `a, b and 3 more`."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: `1 case`, `2 cases`, `3 launches`."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"


def format_modes(slow_share: float, fast_s: float, slow_s: float) -> str:
    """Format two modes as `39 % of calls take 3.70 ms, others 620 µs`. fast_s, slow_s: mean of each mode."""
    return f"{format_share(slow_share)} of calls take {format_seconds(slow_s)}, others {format_seconds(fast_s)}"


def format_share(share: float, digits: int = 0) -> str:
    """Format a share as `39 %`. digits: number of decimals."""
    return f"{100 * share:.{digits}f} %"
