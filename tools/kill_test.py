"""Kill or stop each process of a run and of an `ab`, or interrupt runs at random; check remains and a resume.

    python -m tools.kill_test --kills 10 --stops 2 --interrupts 50

In: numbers of trials. Out: a table with a row per killed (SIGKILL) or stopped (SIGSTOP) process, and for Ctrl-C: exit
codes; remaining processes, shared memory and temporary files; and whether a resume measured exactly the missing cases.
Exit code 1 if anything remains or a resume did otherwise. As root, it uses its own /dev/shm; else new files of other
programs there count, too.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tabulate import tabulate

from collbench.model.records import Samples
from collbench.store import folders

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path("/dev/shm")
OWN_SHARED = "COLLBENCH_KILL_TEST"
CONFIG = """
backends: [gloo]
world_sizes: [{ranks}]
launches: 4
operations: [all_reduce]
sizes: [4KiB, 64KiB]
sampling: {{warmup: 1, warmup_seconds: 0, iterations: {iterations}}}
timeout: 20s
seed: 1
"""
RUN = ("run", "short.yaml", "--no-plots")
# Sides with different variables run in separate processes.
AB = ("ab", "short.yaml", "--b", "OMP_NUM_THREADS=2", "--budget", "40s", "--undecided", "pass")
# Seconds after which a run counts as hung; seconds that killed processes may take to free gigabytes and end.
END_WAIT_S = 300.0
GONE_WAIT_S = 20.0
# Seconds for which the measuring process is stopped; other processes are stopped until the run ends.
STOPPED_S = 5.0


@dataclass
class Outcomes:
    """The outcomes of all trials of one kind; `wrong` has the errors of commands and resumes."""

    codes: Counter[int] = field(default_factory=Counter)
    processes: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    # Names of temporary files that were left before a resume, and after it.
    left: Counter[str] = field(default_factory=Counter)
    kept: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    exact: int = 0


class Trial:
    """A folder in which one command runs, with a place for temporary files."""

    def __init__(self, ranks: int, iterations: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ck-"))
        self.temporary = self.folder / "t"
        self.temporary.mkdir()
        (self.folder / "short.yaml").write_text(CONFIG.format(ranks=ranks, iterations=iterations))
        self.shared = {path.name for path in SHARED.iterdir()}

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, str(ROOT / "run_bench.py"), *words], cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.temporary)}, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self) -> Path | None:
        return next(folders.runs(self.folder / "results"), None)

    def lines(self) -> bytes:
        """Return the complete lines of samples.jsonl."""
        run = self.run()
        content = (run / folders.SAMPLES).read_bytes() if run else b""
        return content[: content.rfind(b"\n") + 1]

    def processes(self) -> list[psutil.Process]:
        """Return the processes that work in the folder."""
        here = []
        for process in psutil.process_iter():
            try:
                if Path(process.cwd()) == self.folder and process.status() != psutil.STATUS_ZOMBIE:
                    here.append(process)
            except psutil.Error:
                continue
        return here


def ended(trial: Trial, process: "subprocess.Popen[str]", outcomes: Outcomes) -> None:
    """Wait for the end of the command, record its remains, resume the run, and check the resume."""
    try:
        _, err = process.communicate(timeout=END_WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        outcomes.wrong.append("it hung")
    outcomes.codes[process.returncode] += 1
    if "Traceback" in err:
        outcomes.wrong.append("a traceback: " + err.strip().splitlines()[-1])
    deadline = time.monotonic() + GONE_WAIT_S
    while (processes := trial.processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for left in processes:
        outcomes.processes.append(" ".join(left.cmdline()[:3])[:60])
        left.kill()
    outcomes.left.update(path.name.split("-")[0] for path in trial.temporary.iterdir())
    run = trial.run()
    if run is None:
        outcomes.exact += 1  # the command ended before the run began
    else:
        before, kept = samples_of(run), trial.lines()
        again = trial.start("resume", str(run), "--trust", "--no-plots")
        _, err = again.communicate(timeout=END_WAIT_S)
        problem = differs(before, kept, samples_of(run), trial.lines(), run)
        outcomes.exact += problem is None
        if problem:
            outcomes.wrong.append(f"{problem} (exit code {again.returncode}: {err.strip()[-200:]})")
        outcomes.kept += [path.name for path in trial.temporary.iterdir()]
    outcomes.shared += sorted({path.name for path in SHARED.iterdir()} - trial.shared)
    if outcomes.wrong:
        print(f"kept for a look: {trial.folder}", file=sys.stderr)
    else:
        shutil.rmtree(trial.folder)


def samples_of(run: Path) -> dict[tuple[str, object, int], Samples]:
    """Return the valid samples of a run, by side, case and launch."""
    places = [run / side for side in folders.SIDES] if folders.RunFolder(run).has_sides else [run]
    return {(place.name, s.case, s.launch): s for place in places for s in folders.read(place).samples}


def differs(
    before: dict[tuple[str, object, int], Samples], first: bytes,
    after: dict[tuple[str, object, int], Samples], lines: bytes, run: Path,
) -> str | None:  # fmt: skip
    """Return what a resume did wrong, or None if it kept all samples and measured the missing cases, each once."""
    if not lines.startswith(first):
        return "it changed what was measured"
    missing = {key for key in after if key not in before or not before[key].final}
    measured = lines[len(first) :].count(b"\n")
    if measured != len(missing):
        return f"it measured {measured} cases, and {len(missing)} were missing"
    if not all(samples.final for samples in after.values()):
        return "something is still missing"
    manifest = folders.read_manifest(run)
    if manifest["status"] != "complete":
        return f"the run is {manifest['status']}"
    if "sides" not in manifest and len(after) != folders.read(run).plan.total:
        return f"{len(after)} of {folders.read(run).plan.total} were measured"
    return None


def wait_for_ranks(trial: Trial, process: "subprocess.Popen[str]", dice: random.Random) -> None:
    """Wait until something has been measured, and then for a random time."""
    while process.poll() is None and not trial.lines():
        time.sleep(0.01)
    time.sleep(dice.random())


def parts(main: psutil.Process) -> Iterator[tuple[str, psutil.Process]]:
    """Yield the processes of a run, each with the name of its part."""
    yield "measuring process", main
    sides = iter("AB")  # A is started first
    for child in main.children():
        line = " ".join(child.cmdline())
        if "collbench.cli.side_worker" in line:
            side = f"side {next(sides)}"
            yield f"process of {side}", child
            for name, process in [*parts(child)][1:]:
                yield f"{name} of {side}", process
        elif "forkserver" in line:
            yield "fork server", child
            yield from ((f"rank {number}", rank) for number, rank in enumerate(sorted(child.children(), key=str)))
        elif "resource_tracker" in line:
            yield "resource tracker", child


def kill(
    words: tuple[str, ...], ranks: int, part: str, seed: str, how: signal.Signals = signal.SIGKILL
) -> Callable[[Outcomes], None]:
    """Return a trial that sends a signal to one process of the command; a stopped measuring process continues."""

    def trial(outcomes: Outcomes) -> None:
        dice, place = random.Random(seed), Trial(ranks, iterations=200)
        process = place.start(*words)
        wait_for_ranks(place, process, dice)
        deadline = time.monotonic() + END_WAIT_S
        while process.poll() is None and time.monotonic() < deadline:  # there are no ranks between two launches
            try:
                victim = dict(parts(psutil.Process(process.pid))).get(part)
                if victim is not None:
                    victim.send_signal(how)
                    break
            except psutil.Error:
                continue
        else:
            outcomes.wrong.append(f"there was no {part}")
        if how == signal.SIGSTOP and part == "measuring process":  # nothing else reacts: continue, as after Ctrl-Z
            time.sleep(STOPPED_S)
            victim.send_signal(signal.SIGCONT)
        ended(place, process, outcomes)

    return trial


def interrupt(seconds: float, seed: str) -> Callable[[Outcomes], None]:
    """Return a trial with Ctrl-C after a random part of the time that a run takes."""

    def trial(outcomes: Outcomes) -> None:
        place = Trial(ranks=4, iterations=60)
        process = place.start(*RUN)
        time.sleep(random.Random(seed).random() * seconds)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        ended(place, process, outcomes)
        unexpected = set(outcomes.codes) - {0, 130, -signal.SIGINT}
        outcomes.wrong += [f"exit code {code}" for code in unexpected]

    return trial


def undisturbed_s() -> float:
    """Return the seconds that a run of the trials with Ctrl-C takes without interruption."""
    began, place = time.monotonic(), Trial(ranks=4, iterations=60)
    place.start(*RUN).communicate()
    shutil.rmtree(place.folder)
    return time.monotonic() - began


def in_own_shared_memory() -> None:
    """Restart this program with its own /dev/shm if that is permitted."""
    again = [sys.executable, "-m", "tools.kill_test", *sys.argv[1:]]
    script = f'mount -t tmpfs none {SHARED} || exit 99; exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *again]
    allowed = (
        shutil.which("unshare") and subprocess.run([*command[:5], "sh", "true"], capture_output=True).returncode == 0
    )
    if OWN_SHARED not in os.environ and allowed:
        os.execvpe(command[0], command, {**os.environ, OWN_SHARED: "1"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3, help="of each process")
    parser.add_argument("--stops", type=int, default=0, help="of each process, by SIGSTOP")
    parser.add_argument("--interrupts", type=int, default=3)
    parser.add_argument("--only", choices=["run", "ab"], help="kill processes of this verb only")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    in_own_shared_memory()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes of a shell ignore it
    run_parts = ["measuring process", "fork server", "resource tracker", *(f"rank {rank}" for rank in range(4))]
    side_parts = ["process", "fork server", "resource tracker", "rank 0", "rank 1"]
    ab_parts = ["measuring process", *(f"{part} of side {side}" for side in "AB" for part in side_parts)]
    kinds = [("run", RUN, 4, part) for part in run_parts] + [("ab", AB, 2, part) for part in ab_parts]
    trials = {
        f"{name}: {part}": [kill(words, ranks, part, f"{args.seed} {name} {part} {n}") for n in range(args.kills)]
        for name, words, ranks, part in kinds
        if args.kills and args.only in {None, name}
    }
    trials |= {
        f"{name}: {part}, stopped": [
            kill(words, ranks, part, f"{args.seed} {name} {part} stop {n}", signal.SIGSTOP) for n in range(args.stops)
        ]
        for name, words, ranks, part in kinds
        if args.stops and args.only in {None, name}
    }
    seconds = undisturbed_s() if args.interrupts else 0.0
    trials["run: Ctrl-C"] = [interrupt(seconds, f"{args.seed} {number}") for number in range(args.interrupts)]
    rows, good = [], True
    for kind, kind_trials in trials.items():
        outcomes = Outcomes()
        for trial in kind_trials:
            trial(outcomes)
        codes = ", ".join(f"{code} ({count}×)" for code, count in sorted(outcomes.codes.items()))
        left = ", ".join(f"{name} ({count}×)" for name, count in outcomes.left.items()) or "nothing"
        rows.append(
            [kind, len(kind_trials), codes, outcomes.processes or "none", outcomes.shared or "nothing", left,
             outcomes.kept or "nothing", f"{outcomes.exact} of {len(kind_trials)}"]
        )  # fmt: skip
        print(*rows[-1], *outcomes.wrong, sep=" | ", file=sys.stderr, flush=True)
        good = good and not (outcomes.processes or outcomes.shared or outcomes.kept or outcomes.wrong)
    headers = ["killed", "trials", "exit codes", "processes left", "/dev/shm", "TMPDIR", "TMPDIR after resume",
               "resumed exactly"]  # fmt: skip
    print(tabulate(rows, headers, tablefmt="github"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
