"""Check in ten minutes what only a GPU can show: fifteen steps, each with the expected and the measured value.

`make gpu-check` runs them and writes results/gpu-check.md, and gpu-check.log with the output of the commands. Steps
on a `Device` also run on a simulated device in tests; the other steps run CollBench's own commands. Names of steps may
follow the command: `python -m tools.gpu_check calibration`.
A failed step does not prevent the next steps. Exit code: 0 if all results are as expected, 1 if one is not, 3 without a
GPU.
"""

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from collbench.launch import launcher
from collbench.machine import gpus, host
from collbench.model.notices import kind_named
from collbench.model.records import Case, Machine, Samples
from collbench.packages.training.operation import OPERATION
from collbench.rank import torch_names
from collbench.rank.collectives import Call, rest
from collbench.rank.device import Action, Device, cycles_a_ns, device_of
from collbench.rank.timing import CaseTimer
from collbench.rank.workload import Workload
from collbench.report.notices import sentence
from collbench.store import folders

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "results" / "gpu-check.md"
LOG = PAGE.with_suffix(".log")
MIB = 2**20
# Share of the memory's peak bandwidth that a copy of large buffers reaches.
SHARE_OF_PEAK = (0.7, 1.02)
# Allowed ratio of CaseTimer to a bare loop of the same calls; calls of each; warm-up calls.
RATIO, CALLS, WARMUP = (0.97, 1.03), 40, 5
# Calibrations of one GPU differ at most by this share, after work and after idling, too.
CALIBRATIONS_AGREE = 0.05
# Most time between two events that follow other work, with nothing between them.
MOST_EMPTY_PAIR_NS = 5_000
# Result of cuDeviceGetCount in a process that has not initialised CUDA.
NOT_INITIALIZED = "3"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the page; `good` is None if the step could not be tried."""

    step: str
    expected: str
    measured: str
    good: bool | None


# What a step measured, and whether this is as expected.
Answer = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Rig:
    """A device, and its functions for steps."""

    device: Device
    # Keep the stream busy for a number of cycles; return a call that copies a number of bytes; enqueue arithmetic.
    sleep: Callable[[int], object]
    copy: Callable[[int], Call]
    work: Action
    # Seconds of idling before the last calibration.
    rest_s: float
    memory_bytes_per_s: float


class _Calls(Workload):
    def __init__(self, call: Call) -> None:
        self._call = call

    def prepare(self) -> Call:
        return self._call


# ── steps on a device ────────────────────────────────────────────────────────────────────────────
def calibration(rig: Rig) -> Answer:
    """Calibrate at once, after work and after idling."""
    rates = []
    for before in (rest, rig.work, lambda: time.sleep(rig.rest_s)):
        before()
        rig.device.synchronize()
        rates.append(cycles_a_ns(rig.device, rig.sleep))
    return ", ".join(f"{rate:.3f}" for rate in rates), max(rates) <= (1 + CALIBRATIONS_AGREE) * min(rates)


def empty_pairs(rig: Rig) -> Answer:
    """Time two events with nothing between them: on an idle stream, and after other work."""
    before, after, idle_ns = rig.device.event(), rig.device.event(), []
    for _ in range(CALLS):
        rig.device.synchronize()
        before.record()
        after.record()
        rig.device.synchronize()
        idle_ns.append(after.ns_since(before))
    idle, behind = statistics.median(idle_ns), _timer(rig, rest).cost_ns()
    good = behind <= MOST_EMPTY_PAIR_NS and behind <= max(idle, 1_000)
    return f"idle {idle / 1e3:.2f} µs, behind work {behind / 1e3:.2f} µs", good


def copy(rig: Rig, nbytes: int) -> Answer:
    """Time a copy: its time follows from the memory's bandwidth, as it reads and writes every byte."""
    share = 2 * nbytes / _timed_ns(rig, rig.copy(nbytes)) * 1e9 / rig.memory_bytes_per_s
    return f"{share:.1%} of {rig.memory_bytes_per_s / 1e9:.0f} GB/s", SHARE_OF_PEAK[0] <= share <= SHARE_OF_PEAK[1]


def bare_loop(rig: Rig) -> Answer:
    """Compare the suite's time of a call with a bare loop of the same calls between two events."""
    before, after, call = rig.device.event(), rig.device.event(), rig.copy(256 * MIB)
    for _ in range(WARMUP):
        call()
    before.record()
    for _ in range(CALLS):
        call()
    after.record()
    rig.device.synchronize()
    ratio = _timed_ns(rig, call) / (after.ns_since(before) / CALLS)
    return f"{ratio:.3f}", RATIO[0] <= ratio <= RATIO[1]


def _timer(rig: Rig, call: Call) -> CaseTimer:
    case = Case("all_reduce", "nccl", 1, "float32", 4096)
    return CaseTimer(_Calls(call), case, rest, rest, rig.device, rest)


def _timed_ns(rig: Rig, call: Call) -> float:
    """Return the suite's mean ns per call, without calls that are bound by dispatching."""
    timings = _timer(rig, call).measure(WARMUP + CALLS)
    bound = timings.get("dispatch_bound", [False] * (WARMUP + CALLS))
    timed = list(zip(timings["duration_ns"], bound, strict=True))[WARMUP:]
    return statistics.fmean(ns for ns, late in timed if not late)


# ── steps that run commands ──────────────────────────────────────────────────────────────────────
class Measured(NamedTuple):
    """What `run` left behind."""

    code: int
    text: str
    samples: list[Samples]
    launches: list[Any]

    @property
    def sound(self) -> bool:
        return self.code == 0 and bool(self.samples) and not any(sample.failure for sample in self.samples)


class Commands:
    """Run CollBench's commands in their own folder. log: the file for their output."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder, self.log = folder, log
        log.parent.mkdir(exist_ok=True)
        log.write_text("")

    def __call__(self, *arguments: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        return self.python(str(ROOT / "run_bench.py"), *arguments, folder=self.folder, seconds=seconds)

    def python(self, *arguments: str, folder: Path = ROOT, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Run this Python with arguments in a folder."""
        command = [sys.executable, *arguments]
        with self.log.open("a") as log:
            log.write(f"\n$ {shlex.join(command)}\n")
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
            log.write(f"{done.stdout}{done.stderr}exit code {done.returncode}\n")
        return done

    def measured(self, name: str, *lines: str, ranks: int = 1) -> Measured:
        """Run a configuration with one launch."""
        usual = ["backends: [nccl]", "launches: 1", "sampling: {warmup: 2, iterations: 20}", f"world_sizes: [{ranks}]"]
        (self.folder / f"{name}.yaml").write_text("\n".join([*usual, *lines, ""]))
        done = self("run", f"{name}.yaml", "--no-plots")
        text = done.stdout + done.stderr
        paths = [path for path in folders.runs(self.folder / "results") if path.name.endswith(name)]
        if not paths:
            return Measured(done.returncode, text, [], [])
        run = folders.read(paths[-1])
        launches = [launch for session in run.environment for launch in session.get("launches", [])]
        return Measured(done.returncode, text, run.samples, launches)


def ended(done: subprocess.CompletedProcess[str]) -> Answer:
    """Return whether a command ended with 0, and its last line."""
    last = done.stdout.strip().rpartition("\n")[2] or done.stderr.strip()[-80:]
    return f"{done.returncode}: {last}", done.returncode == 0


def uuids(commands: Commands) -> Answer:
    """Check that CUDA uses the GPU that NVML reports."""
    launches = commands.measured("uuids", "operations: [all_reduce]", "sizes: [4KiB]").launches
    cuda, nvml = launches[0]["ranks"][0]["device_uuid"] if launches else None, host.gpu_uuid(0)
    code = commands("doctor").returncode
    return f"{code}; {cuda} and {nvml}", cuda == nvml and code == 0


def fork(commands: Commands) -> Answer:
    """Check that the modules of the fork server do not initialise CUDA, which does not survive a fork."""
    done = commands.python("-c", fork_program())
    printed = done.stdout.strip() or done.stderr.strip()[-80:]
    return printed, printed == NOT_INITIALIZED


def fork_program() -> str:
    """Return a program that loads the fork server's modules, and prints whether CUDA has been initialised."""
    return f"""
import ctypes
from collbench.machine import environment
environment.prepare_process()
import {", ".join([launcher.FIRST, launcher.LAST, OPERATION.rank.module])}
print(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())))
"""


def refused(commands: Commands) -> Answer:
    """Check that a rank without its own GPU is refused."""
    wanted = host.machine().gpus + 1
    run = commands.measured("refused", "operations: [all_reduce]", "sizes: [4KiB]", ranks=wanted)
    reason = sentence(kind_named("too-few-gpus")(ranks=wanted, gpus=wanted - 1))
    shown = next((line for line in run.text.splitlines() if reason in line), run.text.strip()[-80:])
    return f"{run.code}: {shown}", run.code == 3 and reason in shown


def shared(commands: Commands) -> Answer:
    """Run two ranks on one GPU: results are right."""
    lines = ("operations: [all_reduce]", "sizes: [4KiB, 1MiB]", "oversubscribe_gpu: true")
    run = commands.measured("shared", *lines, ranks=2)
    return f"{run.code}: {len(run.samples)} cases", run.sound and len(run.samples) == 2


def waiting(commands: Commands) -> Answer:
    """Check that operations that wait on the host have host times only, without delay before them."""
    run = commands.measured("waiting", "operations: [barrier, new_group]", "sizes: [4KiB]")
    timed = [sample.timed for sample in run.samples if sample.timed is not None]
    unbound = all(sample.usage is not None and sample.usage.dispatch_bound is None for sample in run.samples)
    good = run.code == 0 and len(timed) == 2 and unbound and all(timings.host_ns is None for timings in timed)
    return f"{run.code}: {len(timed)} cases", good


def health(commands: Commands) -> Answer:
    """Check that NVML is sampled while ranks run."""
    lines = ("operations: [all_reduce]", "sizes: [256MiB]", "metrics: [pipelined]")
    launches = commands.measured("health", *lines).launches
    counts = launches[0].get("health", {}) if launches else {}
    return json.dumps(counts)[:120], any(part.get("gpus") for part in counts.values())


def training_step(commands: Commands) -> Answer:
    """Run a step of training with one rank on the GPU."""
    run = commands.measured("step", "training: {models: [tiny], strategies: [flat, ddp], rounds: 4}")
    return f"{run.code}: {f'{len(run.samples)} cases' if run.sound else run.text.strip()[-120:]}", run.sound


# Name of a step → what is expected, and the step.
SHARES = "{:.0%} to {:.0%} of the memory's bandwidth".format(*SHARE_OF_PEAK)
ONE_RANK = ("run", "nccl", "--set", "world_sizes=[1]", "--set", "launches=2", "--no-plots")
ON_DEVICE: dict[str, tuple[str, Callable[[Rig], Answer]]] = {
    "calibration": (f"cycles a ns at once, after work, after idling: within {CALIBRATIONS_AGREE:.0%}", calibration),
    "empty event pairs": (f"behind work at most {MOST_EMPTY_PAIR_NS // 1000} µs, and not more than idle", empty_pairs),
    "copy of 256 MiB": (SHARES, lambda rig: copy(rig, 256 * MIB)),
    "copy of 1 GiB": (SHARES, lambda rig: copy(rig, 1024 * MIB)),
    "bare loop": ("suite / bare loop, a copy of 256 MiB: {} to {}".format(*RATIO), bare_loop),
}
BY_COMMANDS: dict[str, tuple[str, Callable[[Commands], Answer]]] = {
    "doctor and UUIDs": ("exit code 0; CUDA has the GPU that NVML names", uuids),
    "fork and CUDA": (f"cuDeviceGetCount gives {NOT_INITIALIZED} after the fork server's imports", fork),
    "bench-nccl at one rank": ("exit code 0", lambda commands: ended(commands(*ONE_RANK))),
    "a rank without a GPU": ("exit code 3 and a sentence", refused),
    "ranks that share a GPU": ("right results", shared),
    "tests on a GPU": (
        "all pass",
        lambda commands: ended(commands.python("-m", "pytest", "tests/test_gpu.py", "-m", "gpu", seconds=1200)),
    ),
    "operations that wait on the host": ("host times only", waiting),
    "health": ("something counted", health),
    "equivalence": ("exit code 0", lambda commands: ended(commands("equivalence", seconds=600))),
    "a training step": ("right results", training_step),
}


def checked(rig: Callable[[], Rig | None], commands: Commands | None, only: Collection[str] = ()) -> Iterator[Outcome]:
    """Run all fifteen steps, or those in `only`. Steps that lack a rig or commands report that they need a GPU.

    rig: makes the rig, after the commands have ended: a GPU in exclusive mode is available to one process only.
    """
    tables: tuple[tuple[dict[str, Any], Callable[[], Any]], ...] = ((BY_COMMANDS, lambda: commands), (ON_DEVICE, rig))
    for table, make in tables:
        means: Any = NotImplemented
        for name, (expected, step) in table.items():
            if only and name not in only:
                continue
            try:
                means = make() if means is NotImplemented else means
                answer = step(means) if means is not None else ("needs a GPU", None)
            except Exception as error:  # such as a GPU that another process uses; other steps still give results
                answer = f"{type(error).__name__}: {error}"[:200], False
            yield Outcome(name, expected, *answer)


def page(outcomes: list[Outcome], facts: str) -> str:
    """Return the page in Markdown."""
    words = {True: "as expected", False: "**NOT as expected**", None: "not tried"}
    rows = [(line.step, line.expected, line.measured.replace("|", "/"), words[line.good]) for line in outcomes]
    table = tabulate(rows, ["step", "expected", "measured", ""], tablefmt="github")
    return f"# What a GPU says\n\nWritten by `make gpu-check`. {facts}.\n\n{table}\n"


def rig_of(machine: Machine) -> Rig | None:
    """Return a rig on the first GPU of this machine; None without a GPU that torch can use."""
    if "nccl" in machine.backends_missing:
        return None
    import torch

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    made = device_of(device)

    def copy(nbytes: int) -> Call:
        source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    matrix = torch.ones(4096, 4096, device=device)

    def work() -> None:
        for _ in range(20):
            matrix.mm(matrix)

    peak = gpus.memory_bytes_per_s(host.visible_gpus()[0])
    return Rig(made, torch_names.private("torch.cuda", "_sleep"), copy, work, 3.0, peak)


def main(only: Sequence[str]) -> int:
    """Run all steps, or those with these names; print the results and write the page."""
    if unknown := set(only) - {*BY_COMMANDS, *ON_DEVICE}:
        names = ", ".join([*BY_COMMANDS, *ON_DEVICE])
        print(f"no such step: {', '.join(unknown)}; the steps: {names}", file=sys.stderr)
        return 2
    machine = host.machine()
    able = "nccl" not in machine.backends_missing
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        outcomes = []
        commands = Commands(Path(folder), LOG) if able else None
        for outcome in checked(lambda: rig_of(machine), commands, only):
            outcomes.append(outcome)
            print(f"{outcome.step}: {outcome.measured}", flush=True)
    PAGE.parent.mkdir(exist_ok=True)
    names = ", ".join(sorted({str(gpus.facts(gpu)["name"]) for gpu in host.visible_gpus()})) or "No GPU"
    PAGE.write_text(page(outcomes, f"{names}; {host.measured_with()}"))
    print(PAGE)
    return 3 if not able else int(not all(outcome.good for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
