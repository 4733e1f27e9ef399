"""Use the virtual GPU in tests and claims: set a rule, run commands by it, and compute times of calls by it."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from collbench.model.records import Run
from collbench.store import folders

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-cuda"
PYTHON = ENVIRONMENT / "bin" / "python"
LIBRARIES = ENVIRONMENT / "lib" / "virtual_gpu"


def missing() -> str | None:
    """Return why nothing can be run on virtual GPUs here; None if it is possible."""
    built = (LIBRARIES / "libvirtual_gpu.so").exists()
    return None if built else "virtual GPUs are not built: make virtual-gpu"


def variables(folder: Path, rule: Mapping[str, object]) -> dict[str, str]:
    """Write the rule into a folder; return the environment of a process that follows this rule.

    rule: lines of `rule.hpp`, such as {"gpus": 4, "bus_gbps@1": 100}.
    """
    path = folder / "rule"
    path.write_text("".join(f"{name} {value}\n" for name, value in rule.items()))
    # Without PYTHONSAFEPATH: `run_bench.py` finds the package in its own folder.
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
        "VIRTUAL_GPU_RULE": str(path),
        "LD_PRELOAD": str(LIBRARIES / "libvirtual_gpu.so"),
        "LD_LIBRARY_PATH": str(LIBRARIES),
    }


def run(
    folder: Path, rule: Mapping[str, object], *command: object, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a command of CollBench on virtual GPUs, two unless the rule has another number; return its result."""
    environment = variables(folder, {"gpus": 2, **rule}) | {"PYTHONPATH": str(folder)}
    words = [str(PYTHON), str(ROOT / "run_bench.py"), *map(str, command)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    clean()
    return done


def measured(
    folder: Path, rule: Mapping[str, object], text: str, *more: str, code: int = 0, timeout: float = 600
) -> tuple[Run, str]:
    """Run a configuration on virtual GPUs; return run and output. Raises AssertionError for another exit code."""
    (folder / "c.yaml").write_text(text)
    done = run(folder, rule, "run", "c.yaml", "--no-plots", *more, timeout=timeout)
    assert done.returncode == code, done.stdout + done.stderr
    (path,) = folders.runs(folder / "results")
    return folders.read(path), done.stdout + done.stderr


def missing_hosts() -> str | None:
    """Return why several hosts are impossible on this machine; None if they are possible."""
    try:
        renamed = subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        renamed = False
    return missing() or (None if renamed else "hosts with names of their own need root, and unshare")


def on_hosts(
    folder: Path, rules: Sequence[Mapping[str, object]], *command: object, timeout: float = 900
) -> subprocess.CompletedProcess[str]:
    """Run a command under torchrun on hosts, each with its own name and rule; return the result on the first host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for number, rule in enumerate(rules):
        own = folder / f"host{number}"
        own.mkdir()
        words = [
            PYTHON, "-m", "torch.distributed.run", "--nnodes", len(rules), "--node-rank", number,
            "--nproc-per-node", rule["gpus"], "--master-addr", "127.0.0.1", "--master-port", port,
            ROOT / "run_bench.py", *command,
        ]  # fmt: skip
        script = f"hostname virtual-{number} && exec {shlex.join(map(str, words))}"
        command_line = ["unshare", "--uts", "sh", "-c", script]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(
            subprocess.Popen(command_line, cwd=folder, env=variables(own, rule), start_new_session=True, **pipes)
        )
    try:
        with ThreadPoolExecutor(len(started)) as threads:  # all pipes are read, or a process would wait
            texts = [text for text, _ in threads.map(lambda process: process.communicate(timeout=timeout), started)]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        clean()
    return subprocess.CompletedProcess(started[0].args, started[0].returncode, texts[0], "".join(texts[1:]))


def clean() -> None:
    """Remove files that killed processes left in shared memory."""
    for path in Path("/dev/shm").glob("virtual-gpu-*"):
        path.unlink(missing_ok=True)


def wire_bytes(operation: str, size_bytes: float, ranks: int) -> float:
    """Return the bytes that a rank sends on a ring. size_bytes: as defined in `collbench.catalog.collectives`."""
    shares = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), (ranks - 1) / ranks)
    return size_bytes * (shares | {"all_reduce": 2 * (ranks - 1) / ranks}).get(operation, 1.0)


def collective_us(operation: str, size_bytes: int, ranks: int, rule: Mapping[str, float]) -> float:
    """Return the time of one call by the rule, in microseconds."""
    return rule["latency_us"] + wire_bytes(operation, size_bytes, ranks) / (rule["bus_gbps"] * 1e3)
