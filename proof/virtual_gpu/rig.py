"""What a test needs of the virtual GPU: a rule, and the environment variables that put a process on it."""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-cuda"
PYTHON = ENVIRONMENT / "bin" / "python"
LIBRARIES = ENVIRONMENT / "lib" / "virtual_gpu"


def missing() -> str | None:
    """Why nothing can be run on virtual GPUs here; None if it can."""
    if not (LIBRARIES / "libvirtual_gpu.so").exists():
        return "virtual GPUs are not built: make virtual-gpu"
    return None


def variables(folder: Path, rule: Mapping[str, object]) -> dict[str, str]:
    """Write the rule into a folder; the environment of a process that is to live by it.

    rule: lines of `rule.hpp`, such as {"gpus": 4, "bus_gbps@1": 100}.
    """
    path = folder / "rule"
    path.write_text("".join(f"{name} {value}\n" for name, value in rule.items()))
    return {
        **os.environ,
        "VIRTUAL_GPU_RULE": str(path),
        "LD_PRELOAD": str(LIBRARIES / "libvirtual_gpu.so"),
        "LD_LIBRARY_PATH": str(LIBRARIES),
    }


def clean() -> None:
    """Remove what killed processes left in shared memory."""
    for path in Path("/dev/shm").glob("virtual-gpu-*"):
        path.unlink(missing_ok=True)


def collective_us(operation: str, size_bytes: int, ranks: int, rule: Mapping[str, float]) -> float:
    """What the rule says of one call, in microseconds. size_bytes: as `bench.catalog.operations` counts it."""
    shares = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "all_gather": (ranks - 1) / ranks,
        "reduce_scatter": (ranks - 1) / ranks,
        "all_to_all": (ranks - 1) / ranks,
    }
    wire_bytes = size_bytes * shares.get(operation, 1.0)
    return rule["latency_us"] + wire_bytes / (rule["bus_gbps"] * 1e3)
