"""A case in few words: for table rows, plot titles and the progress line. Loads nothing."""

from bench.records import Case
from bench.units import format_bytes


def label(case: Case) -> str:
    """Such as `all_reduce · gloo · float32 · 4 ranks · 1 MiB`; what is not at its default follows."""
    words = [case.op, case.backend, case.dtype, f"{case.world_size} ranks", format_bytes(case.size_bytes)]
    return " · ".join([*words, *extras(case)])


def family(case: Case) -> str:
    """What a series of sizes has in common, but for the world size: `all_reduce gloo float32`, and extras."""
    return " ".join([case.op, case.backend, case.dtype, *extras(case)])


def metric_name(case: Case) -> str:
    """Such as `isolated`, or `pipelined (20 back to back)`."""
    return case.metric if case.depth == 1 else f"{case.metric} ({case.depth} back to back)"


def extras(case: Case) -> list[str]:
    """What of a case differs from the defaults, such as `reduce_op=max`."""
    return case.extras
