"""Compute bounds of bandwidth from the hardware that a run found: NVLink, PCIe, InfiniBand.

In: the environment of a run. Out: bounds for the report and plots, and a warning for each case that exceeds what is
possible, because then the measurement (or a size) is wrong. Rates are bytes/s in one direction, those of the standards
after encoding; the overhead of protocols is not subtracted.
"""

import re
from collections.abc import Iterable, Sequence

from bench.analyze.sessions import places_of
from bench.catalog.backends import BACKENDS
from bench.catalog.operations import OPERATIONS, ranks_together
from bench.model.conclusions import Bound, Summary
from bench.model.records import Json, Run
from bench.model.units import format_bytes, format_rate

# NVLink: one link, one direction. Version → bytes/s (NVIDIA's data sheets: P100 4 × 20, V100 6 × 25, A100 12 × 25,
# H100 18 × 25, B200 18 × 50 GB/s).
NVLINK = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
# PCIe: one lane, one direction. Generation → bytes/s (8b/10b up to 2, 128b/130b up to 5, 242/256 in 6).
PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# A rate is impossible only if it exceeds the bound by this factor, because clocks differ between cards.
TOLERANCE = 1.02


def hardware_bounds(run: Run, summaries: Sequence[Summary]) -> list[Bound]:
    """What the links between the GPUs, and between the hosts, can carry, for each backend and world size of a run."""
    gpu, fabric = gpu_rate(_host(run)), infiniband_rate(_host(run))
    places = places_of(run)
    measured = {(s.case.backend, s.case.world_size) for s in summaries if s.case.world_size > 1 and s.busbw is not None}
    found = []
    for backend, n in sorted(measured):
        if gpu is not None and BACKENDS[backend].device == "cuda":
            found.append(Bound(backend, n, gpu[0], gpu[1]))
        h = places[backend, n].hosts if (backend, n) in places else 1
        if fabric is not None and h > 1:
            # If each host reduces first, 2(h-1)/h of the data cross a host's ports, which is less than 2(n-1)/n.
            most = fabric * ((n - 1) / n) / ((h - 1) / h)
            found.append(Bound(backend, n, f"InfiniBand between {h} hosts", most))
    return found


def impossible(run: Run, summaries: Sequence[Summary]) -> Iterable[str]:
    """One warning for each case that is faster than the hardware can be."""
    rate = gpu_rate(_host(run))
    for summary in summaries if rate is not None else ():
        case = summary.case
        if BACKENDS[case.backend].device != "cuda" or summary.time_s is None or ranks_together(case) < 2:
            continue
        needed = _least_bytes(summary) / summary.time_s.value
        if rate is not None and needed > TOLERANCE * rate[1]:
            yield (
                f"{case.op} of {format_bytes(case.size_bytes)} on {case.world_size} ranks would need "
                f"{format_rate(needed)} GB/s into one GPU, but {rate[0]} carries {format_rate(rate[1])}: "
                "do not believe this number"
            )


def _least_bytes(summary: Summary) -> float:
    """Bytes that one GPU must receive at least, even when switches reduce and copy on the way."""
    case = summary.case
    factor, n = OPERATIONS[case.op].bus_factor, ranks_together(case)
    if factor is None:
        return 0.0
    return case.size_bytes * (1.0 if case.op.startswith("all_reduce") else factor(n))


def gpu_rate(host: Json) -> tuple[str, float] | None:
    """Name and rate of the fastest way into the first GPU of a host; None where it was not read."""
    gpus = host.get("gpus") or []
    if not gpus:
        return None
    gpu = gpus[0]
    links = [NVLINK[version] for version in gpu.get("nvlinks") or [] if version in NVLINK]
    if links:
        return f"NVLink ({len(links)} links)", sum(links)
    generation, width = gpu.get("pcie_generation"), gpu.get("pcie_width")
    if generation in PCIE_LANE and isinstance(width, int):
        return f"PCIe {generation} × {width}", PCIE_LANE[generation] * width
    return None


def infiniband_rate(host: Json) -> float | None:
    """Bytes/s of all active InfiniBand ports of a host together; None where there is none."""
    rates = []
    for port in host.get("infiniband") or []:
        match = re.match(r"\s*([\d.]+)\s*Gb", str(port.get("rate")))
        if match and "ACTIVE" in str(port.get("state")).upper():
            rates.append(float(match[1]) * 1e9 / 8)
    return sum(rates) or None


def _host(run: Run) -> Json:
    session = run.environment[0] if run.environment else {}
    host: Json = session.get("host", {})
    return host
