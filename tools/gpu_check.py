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

from tabulate import tabulate

from collbench.launch import launcher
from collbench.machine import gpus, host
from collbench.model.notices import SkipNotice, notice
from collbench.model.records import Case, Machine, Samples
from collbench.packages.training.operation import RANK_MODULES
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
SHORT = "sampling={warmup: 2, iterations: 20}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the page; `good` is None if the step could not be tried."""

    step: str
    expected: str
    measured: str
    good: bool | None


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
def calibration(rig: Rig) -> Outcome:
    """Calibrate at once, after work and after idling."""
    rates = [cycles_a_ns(rig.device, rig.sleep)]
    rig.work()
    rig.device.synchronize()
    rates.append(cycles_a_ns(rig.device, rig.sleep))
    time.sleep(rig.rest_s)
    rates.append(cycles_a_ns(rig.device, rig.sleep))
    good = max(rates) <= (1 + CALIBRATIONS_AGREE) * min(rates)
    shown = ", ".join(f"{rate:.3f}" for rate in rates)
    expected = f"at once, after work, after idling: within {CALIBRATIONS_AGREE:.0%}"
    return Outcome("calibration, cycles a ns", expected, shown, good)


def empty_pairs(rig: Rig) -> Outcome:
    """Time two events with nothing between them: on an idle stream, and after other work."""
    device = rig.device
    before, after = device.event(), device.event()
    idle = []
    for _ in range(CALLS):
        device.synchronize()
        before.record()
        after.record()
        device.synchronize()
        idle.append(after.ns_since(before))
    behind = CaseTimer(_Calls(rest), _case(), rest, rest, device, rest).cost_ns()
    shown = f"idle {statistics.median(idle) / 1e3:.2f} µs, behind work {behind / 1e3:.2f} µs"
    expected = f"behind work at most {MOST_EMPTY_PAIR_NS / 1e3:g} µs, and not more than idle"
    good = behind <= MOST_EMPTY_PAIR_NS and behind <= max(statistics.median(idle), 1_000)
    return Outcome("two events, nothing between", expected, shown, good)


def copy_of(nbytes: int) -> Callable[[Rig], Outcome]:
    """Return the step for one size."""

    def step(rig: Rig) -> Outcome:
        """Time a copy: its time follows from the memory's bandwidth, as it reads and writes every byte."""
        low, high = SHARE_OF_PEAK
        share = 2 * nbytes / _timed_ns(rig, rig.copy(nbytes)) * 1e9 / rig.memory_bytes_per_s
        expected = f"{low:.0%} to {high:.0%} of {rig.memory_bytes_per_s / 1e9:.0f} GB/s"
        return Outcome(f"copy of {nbytes // MIB} MiB", expected, f"{share:.1%}", low <= share <= high)

    return step


def bare_loop(rig: Rig) -> Outcome:
    """Compare the suite's time of a call with a bare loop of the same calls between two events."""
    device, call = rig.device, rig.copy(256 * MIB)
    before, after = device.event(), device.event()
    for _ in range(WARMUP):
        call()
    before.record()
    for _ in range(CALLS):
        call()
    after.record()
    device.synchronize()
    ratio = _timed_ns(rig, call) / (after.ns_since(before) / CALLS)
    low, high = RATIO
    return Outcome("suite / bare loop, a copy of 256 MiB", f"{low} to {high}", f"{ratio:.3f}", low <= ratio <= high)


def _case() -> Case:
    return Case("all_reduce", "nccl", 1, "float32", 4096)


def _timed_ns(rig: Rig, call: Call) -> float:
    """Return the suite's mean ns per call, without calls that are bound by dispatching."""
    timer = CaseTimer(_Calls(call), _case(), rest, rest, rig.device, rest)
    timings = timer.measure(WARMUP + CALLS)
    bound = timings.get("dispatch_bound", [False] * (WARMUP + CALLS))
    return statistics.fmean(
        ns for ns, late in list(zip(timings["duration_ns"], bound, strict=True))[WARMUP:] if not late
    )


# ── steps that run commands ──────────────────────────────────────────────────────────────────────
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

    def measured(self, name: str, *lines: str) -> tuple[int, str, list[Samples], list[dict[str, object]]]:
        """Run a configuration; return its exit code, output, samples and launches."""
        path = self.folder / f"{name}.yaml"
        path.write_text("\n".join(["backends: [nccl]", "launches: 1", SHORT.replace("=", ": ", 1), *lines, ""]))
        done = self("run", str(path), "--no-plots")
        runs = [run for run in folders.runs(self.folder / "results") if run.name.endswith(name)]
        run = folders.read(runs[-1]) if runs else None
        launches = [launch for session in (run.environment if run else []) for launch in session.get("launches", [])]
        return done.returncode, done.stdout + done.stderr, run.samples if run else [], launches


def uuids(commands: Commands) -> Outcome:
    """Check that CUDA uses the GPU that NVML reports."""
    _, _, _, launches = commands.measured("uuids", "world_sizes: [1]", "operations: [all_reduce]", "sizes: [4KiB]")
    cuda = launches[0]["ranks"][0]["device_uuid"] if launches else None  # type: ignore[index]
    nvml = host.gpu_uuid(0)
    doctor = commands("doctor")
    good = cuda == nvml and doctor.returncode == 0
    return Outcome("doctor, and UUIDs", f"exit code 0; CUDA has {nvml}", f"{doctor.returncode}; {cuda}", good)


def fork(commands: Commands) -> Outcome:
    """Check that the modules of the fork server do not initialise CUDA, which does not survive a fork."""
    done = commands.python("-c", fork_program())
    printed = done.stdout.strip() or done.stderr.strip()[-80:]
    return Outcome("fork server", f"cuDeviceGetCount gives {NOT_INITIALIZED}", printed, printed == NOT_INITIALIZED)


def fork_program() -> str:
    """Return a program that loads the fork server's modules, and prints whether CUDA has been initialised."""
    return f"""
import ctypes
from collbench.machine import environment
environment.prepare_process()
import {", ".join([launcher.FIRST, launcher.LAST, *RANK_MODULES])}
print(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())))
"""


def one_rank(commands: Commands) -> Outcome:
    """Run the default sweep with one rank."""
    done = commands("run", "nccl", "--set", "world_sizes=[1]", "--set", "launches=2", "--no-plots")
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-80:]]
    return Outcome("bench-nccl with 1 rank", "exit code 0", f"{done.returncode}: {last[0]}", done.returncode == 0)


def refused(commands: Commands) -> Outcome:
    """Check that a rank without its own GPU is refused."""
    wanted = host.machine().gpus + 1
    lines = (f"world_sizes: [{wanted}]", "operations: [all_reduce]", "sizes: [4KiB]")
    code, text, _, _ = commands.measured("refused", *lines)
    reason = sentence(notice(SkipNotice.TOO_FEW_GPUS, ranks=wanted, gpus=wanted - 1))
    shown = next((line for line in text.splitlines() if reason in line), text.strip()[-80:])
    good = code == 3 and reason in shown
    return Outcome(f"{wanted} ranks", "exit code 3 and a sentence", f"{code}: {shown}", good)


def shared(commands: Commands) -> Outcome:
    """Run two ranks on one GPU: results are right."""
    lines = ("world_sizes: [2]", "operations: [all_reduce]", "sizes: [4KiB, 1MiB]", "oversubscribe_gpu: true")
    code, _, samples, _ = commands.measured("shared", *lines)
    good = code == 0 and len(samples) == 2 and not any(sample.failure for sample in samples)
    return Outcome("2 ranks on one GPU", "right results", f"{code}: {len(samples)} cases", good)


def gpu_tests(commands: Commands) -> Outcome:
    """Run the tests on a GPU, as `make test-gpu` does."""
    done = commands.python("-m", "pytest", "tests/test_gpu.py", "-m", "gpu", seconds=1200)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-80:]]
    return Outcome("tests on a GPU", "all pass", last[0], done.returncode == 0)


def waiting(commands: Commands) -> Outcome:
    """Check that operations that wait on the host have host times only, without delay before them."""
    lines = ("world_sizes: [1]", "operations: [barrier, new_group]", "sizes: [4KiB]")
    code, _, samples, _ = commands.measured("waiting", *lines)
    timed = [sample.timed for sample in samples if sample.timed is not None]
    unbound = all(sample.usage is not None and sample.usage.dispatch_bound is None for sample in samples)
    good = code == 0 and len(timed) == 2 and unbound and all(timings.host_ns is None for timings in timed)
    return Outcome("operations that wait on the host", "host times only", f"{code}: {len(timed)} cases", good)


def health(commands: Commands) -> Outcome:
    """Check that NVML is sampled while ranks run."""
    lines = ("world_sizes: [1]", "operations: [all_reduce]", "sizes: [256MiB]", "metrics: [pipelined]")
    _, _, _, launches = commands.measured("health", *lines)
    counts = launches[0].get("health", {}) if launches else {}
    good = isinstance(counts, dict) and any(part.get("gpus") for part in counts.values())
    return Outcome("health of a launch", "something counted", json.dumps(counts)[:120], good)


def equivalence(commands: Commands) -> Outcome:
    """Run `equivalence` with one rank on the GPU: all strategies train the same model."""
    done = commands("equivalence", seconds=600)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-80:]]
    return Outcome("equivalence", "exit code 0", f"{done.returncode}: {last[0]}", done.returncode == 0)


def training_step(commands: Commands) -> Outcome:
    """Run a step of training with one rank on the GPU."""
    lines = ("world_sizes: [1]", "training: {models: [tiny], strategies: [flat, ddp], rounds: 4}")
    code, text, samples, _ = commands.measured("step", *lines)
    good = code == 0 and bool(samples) and not any(sample.failure for sample in samples)
    shown = f"{code}: {len(samples)} cases" if good else f"{code}: {text.strip()[-120:]}"
    return Outcome("a training step on one GPU", "exit code 0", shown, good)


ON_DEVICE: dict[str, Callable[[Rig], Outcome]] = {
    "calibration": calibration,
    "empty event pairs": empty_pairs,
    "copy of 256 MiB": copy_of(256 * MIB),
    "copy of 1 GiB": copy_of(1024 * MIB),
    "bare loop": bare_loop,
}
BY_COMMANDS: dict[str, Callable[[Commands], Outcome]] = {
    "doctor and UUIDs": uuids,
    "fork and CUDA": fork,
    "bench-nccl at one rank": one_rank,
    "a rank without a GPU": refused,
    "ranks that share a GPU": shared,
    "tests on a GPU": gpu_tests,
    "operations that wait on the host": waiting,
    "health": health,
    "equivalence": equivalence,
    "a training step": training_step,
}


def checked(rig: Callable[[], Rig | None], commands: Commands | None, only: Collection[str] = ()) -> Iterator[Outcome]:
    """Run all fifteen steps, or those in `only`. Steps that lack a rig or commands report that they need a GPU.

    rig: makes the rig, after the commands have ended: a GPU in exclusive mode is available to one process only.
    """
    for table, make in ((BY_COMMANDS, lambda: commands), (ON_DEVICE, rig)):
        means, failed = None, ""
        steps = {name: step for name, step in table.items() if not only or name in only}
        try:
            means = make() if steps else None
        except Exception as error:  # such as a GPU that another process uses exclusively
            failed = f"{type(error).__name__}: {error}"[:200]
        for name, step in steps.items():
            about = (step.__doc__ or "").strip()
            if means is None:
                yield Outcome(name, about, failed or "needs a GPU", False if failed else None)
                continue
            try:
                yield step(means)  # type: ignore[operator]
            except Exception as error:  # other steps still give results
                yield Outcome(name, about, f"{type(error).__name__}: {error}"[:200], False)


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
        print(
            f"no such step: {', '.join(unknown)}; the steps: {', '.join([*BY_COMMANDS, *ON_DEVICE])}", file=sys.stderr
        )
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
    if not able:
        return 3
    return 0 if all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
