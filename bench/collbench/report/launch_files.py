"""Write the file that starts a run on several hosts with torchrun, Slurm, Kubernetes, Ray or mpirun.

In: a `JobSpec`. Out: text, made from a template in `launch_templates/`. The files in `examples/launch/` are made by
this module too; a test keeps them equal.
`launch.job` reads the variables that a launcher sets for each process, and how the processes find each other.
"""

import json
import math
import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from string import Template

from collbench.catalog.package import JobKind

# Time limit of a job: estimates are rough, so twice the estimate, and some minutes to start on many hosts.
TIME_FACTOR, EXTRA_MINUTES = 2, 10
# Time between a scheduler's signal and its kill: enough to stop in order, so that the run can be resumed.
WARNING_S = 60


class LauncherName(StrEnum):
    """Launchers that can start the processes of a job."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    RAY = "ray"
    MPIRUN = "mpirun"


# Kubernetes allows DNS labels (RFC 1123): 63 characters at most; the name of a pod is the name of the job and a number.
MOST_OF_A_NAME = 63 - len("-99999")
TEMPLATES = Path(__file__).parent / "launch_templates"
FILE_NAMES = {
    LauncherName.TORCHRUN: "torchrun.sh",
    LauncherName.SLURM: "slurm.sbatch",
    LauncherName.KUBERNETES: "kubernetes.yaml",
    LauncherName.RAY: "ray_train.py",
    LauncherName.MPIRUN: "mpirun.sh",
}


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job that runs `verb`, of this `kind`, with `config` (and its `--set` overrides) on several hosts."""

    name: str
    verb: str
    kind: JobKind
    config: str
    sets: tuple[str, ...]
    # Number of hosts (`nodes`), and number of ranks on each of them (`each`).
    nodes: int
    each: int
    # True if each rank needs a GPU.
    gpus: bool
    # Largest world size that is asked for.
    largest: int
    # Estimated duration.
    seconds: float
    # The folder with the programs collbench and torchrun; None if they are on PATH.
    programs: Path | None = None

    @property
    def ranks(self) -> int:
        return self.nodes * self.each

    @property
    def arguments(self) -> list[str]:
        """The arguments of collbench."""
        return [self.verb, self.config, *(part for text in self.sets for part in ("--set", text))]

    def program(self, name: str) -> str:
        """Return a program as a quoted word for a shell."""
        return shlex.quote(str(self.programs / name)) if self.programs else name


def launch_file(launcher: LauncherName, job: JobSpec) -> str:
    """Return the file for one launcher."""
    note = ""
    if job.largest > job.ranks:
        note = f"# World sizes above {job.ranks} will be skipped: the largest asked for is {job.largest}.\n"
    elif job.largest < job.ranks:
        idle = job.ranks - job.largest
        note = f"# The largest world size asked for is {job.largest}: {idle} of the {job.ranks} ranks will wait.\n"
    limits = ("          resources:", "            limits:", f"              nvidia.com/gpu: {job.each}", "")
    gpus = {LauncherName.SLURM: f"#SBATCH --gpus-per-node={job.each}\n", LauncherName.KUBERNETES: "\n".join(limits)}
    template = (TEMPLATES / f"{FILE_NAMES[launcher]}.template").read_text()
    return Template(template).substitute(
        nodes=job.nodes,
        each=job.each,
        ranks=job.ranks,
        note=note,
        job=f"collbench-{re.sub(r'[^a-z0-9-]+', '-', job.name.lower())}"[:MOST_OF_A_NAME].rstrip("-"),
        collbench=job.program("collbench"),
        torchrun=job.program("torchrun"),
        command=shlex.join(job.arguments),
        arguments=json.dumps(job.arguments),
        # Every JSON string is a valid YAML string.
        items="\n".join(f"            - {json.dumps(part)}" for part in job.arguments),
        gpus=gpus.get(launcher, "") if job.gpus else "",
        uses_gpus=job.gpus,
        # Each rank must see all GPUs of its host; otherwise NCCL cannot use the links between them.
        bind="--gpu-bind=none " if job.gpus else "",
        minutes=math.ceil(TIME_FACTOR * job.seconds / 60) + EXTRA_MINUTES,
        warning=WARNING_S,
        results=job.kind.results,
        end=job.kind.end,
        survive="#SBATCH --no-kill\n" if job.kind.survives else "",
        keep="--no-kill " if job.kind.survives else "",
    )
