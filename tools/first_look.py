"""Measure how soon a terminal shows a first number and a whole table: CollBench and its peers, in turns.

`python -m tools.first_look` runs the same three sizes with two gloo ranks: `collbench run`, a plain script under
torchrun, PARAM's comms.py under torchrun, and OSU's osu_allreduce under mpirun. A checkout of PARAM and a built
osu_allreduce are named by options; without these options, their rows are left out. Out: a Markdown table of seconds
from the start of each command, median and range over the rounds.
"""

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
RUN = [sys.executable, str(ROOT / "run_bench.py"), "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
SIZES = (1024, 65536, 2**20)
CONFIG = "backends: [gloo]\nworld_sizes: [2]\noperations: [all_reduce]\nsizes: [1KiB, 64KiB, 1MiB]\n"
ROUNDS = 5
# Seconds after which a command that has not shown both numbers is ended.
LONGEST_S = 120.0
# Seconds in which a command may end by itself: MPICH leaves shared memory behind if it is interrupted.
OWN_END_S = 1.0


@dataclass(frozen=True)
class Watched:
    """A command that shows numbers on a terminal."""

    name: str
    command: Sequence[str]
    # Patterns of the first number, and of the last number in the table.
    first: bytes
    last: bytes
    # Environment variables that the command needs.
    variables: Mapping[str, str] = field(default_factory=dict)


def seen(watched: Watched, folder: Path) -> list[float]:
    """Return the seconds from the start of a command until a terminal of 100 columns shows its first and last number.

    Ends the command then. Raises TimeoutError if they are not shown within LONGEST_S.
    """
    wanted, times, shown = (watched.first, watched.last), dict[bytes, float](), b""
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    variables = os.environ | {"TERM": "xterm-256color"} | dict(watched.variables)
    began = time.perf_counter()
    process = subprocess.Popen(
        watched.command, cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal, env=variables
    )
    os.close(terminal)
    with contextlib.suppress(OSError):  # the other end is closed: the command has ended
        while len(times) < len(wanted) and (left_s := began + LONGEST_S - time.perf_counter()) > 0:
            if not select.select([main], [], [], left_s)[0]:
                break
            shown += os.read(main, 65536)
            for pattern in wanted:
                if pattern not in times and re.search(pattern, shown):
                    times[pattern] = time.perf_counter() - began
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(OWN_END_S)
        process.send_signal(signal.SIGINT)
        while os.read(main, 65536):
            pass
    process.wait()
    os.close(main)
    if len(times) < len(wanted):
        raise TimeoutError(f"{watched.name} never showed {wanted}: {shown[-2000:].decode(errors='replace')}")
    return [times[pattern] for pattern in wanted]


def candidates(folder: Path, param: Path | None, osu: Path | None, mpirun: str) -> list[Watched]:
    """Return the commands of CollBench and of the peers that are available."""
    (folder / "three.yaml").write_text(CONFIG)
    sizes = [str(size) for size in SIZES]
    watched = [
        Watched("collbench run", [*RUN, "three.yaml"], rb"1 KiB +\d", rb"1 MiB +\d"),
        Watched(
            "a plain script, torchrun",
            [*TORCHRUN, str(ROOT / "tools/plain_loop.py"), *sizes],
            rb" 1024 bytes",
            rb" 1048576 bytes",
        ),
    ]
    if param is not None:
        (folder / "param_bench").symlink_to(param.resolve())  # the name by which its modules import each other
        words = ["--master-ip", "127.0.0.1", "--ss", ",".join(sizes), "--num_iters", "20", "--w", "5", "--z", "1"]
        words += ["--collective", "all_reduce", "--backend", "gloo", "--device", "cpu"]
        script = str(param.resolve() / "train/comms/pt/comms.py")
        line = rb"COMMS-RES-all_reduce-float32 +%s "
        watched.append(
            Watched(
                "PARAM, torchrun",
                [*TORCHRUN, script, *words],
                line % b"1024",
                line % b"1048576",
                {"PYTHONPATH": str(folder)},
            )
        )
    if osu is not None:
        command = [mpirun, "-n", "2", str(osu.resolve()), "-m", str(SIZES[-1])]
        watched.append(Watched("OSU (MPI, compiled), mpirun", command, rb"\n1024 +\d", rb"\n1048576 +\d"))
    return watched


def compared(watched: Sequence[Watched], folder: Path, rounds: int = ROUNDS) -> dict[str, list[list[float]]]:
    """Run the commands in turns; return name → per round, the seconds until the first number and until the table."""
    times: dict[str, list[list[float]]] = {candidate.name: [] for candidate in watched}
    for number in range(rounds):
        for candidate in watched[number % len(watched) :] + watched[: number % len(watched)]:  # each is first in turn
            times[candidate.name].append(seen(candidate, folder))
    return times


def spread(times: Sequence[float]) -> str:
    """Return median and range, such as `3.1 s (2.9 – 3.4)`."""
    return f"{statistics.median(times):.1f} s ({min(times):.1f} – {max(times):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--param", type=Path, help="a checkout of PARAM")
    parser.add_argument("--osu", type=Path, help="a built osu_allreduce")
    parser.add_argument("--mpirun", default="mpirun", help="starts it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-look-") as name:
        folder = Path(name)
        times = compared(candidates(folder, args.param, args.osu, args.mpirun), folder, args.rounds)
    rows = [(label, *(spread(each) for each in zip(*rounds, strict=True))) for label, rounds in times.items()]
    print(tabulate(rows, ["command", "first number", "table of three sizes"], "github", disable_numparse=True))


if __name__ == "__main__":
    main()
