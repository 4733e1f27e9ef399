"""Write the file that starts a run on several hosts with torchrun, Slurm, Kubernetes, Ray or mpirun.

In: a `JobSpec`. Out: text. The files in `examples/launch/` are made by this module too; a test keeps them equal.
`launch.job` reads what a launcher tells each process, and how the processes find each other.
"""

import json
import math
import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from string import Template

# Time limit of a job: estimates are rough, so twice the estimate, and some minutes to start on many hosts.
TIME_FACTOR, EXTRA_MINUTES = 2, 10
# Between a scheduler's signal and its kill: enough to stop in order, so that the run can be resumed.
WARNING_S = 60


class JobVerb(StrEnum):
    """Verbs that a job can be started with."""

    RUN = "run"
    GATE = "gate"


class LauncherName(StrEnum):
    """Launchers that can start the processes of a job."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    RAY = "ray"
    MPIRUN = "mpirun"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """`verb` with `config` (and its `--set` overrides), for `each` ranks on each of `nodes` hosts.

    gpus: whether each rank needs one. largest: the largest world size that is asked for. seconds: estimated duration.
    """

    name: str
    config: str
    sets: tuple[str, ...]
    nodes: int
    each: int
    gpus: bool
    largest: int
    seconds: float
    verb: JobVerb = JobVerb.RUN

    @property
    def ranks(self) -> int:
        return self.nodes * self.each

    @property
    def arguments(self) -> list[str]:
        """The arguments of run_bench.py."""
        return [self.verb.value, self.config, *(part for text in self.sets for part in ("--set", text))]


def launch_file(launcher: LauncherName, job: JobSpec) -> str:
    """The file for one launcher."""
    note = ""
    if job.largest > job.ranks:
        note = f"# World sizes above {job.ranks} will be skipped: the largest asked for is {job.largest}.\n"
    elif job.largest < job.ranks:
        idle = job.ranks - job.largest
        note = f"# The largest world size asked for is {job.largest}: {idle} of the {job.ranks} ranks will wait.\n"
    limits = ("          resources:", "            limits:", f"              nvidia.com/gpu: {job.each}", "")
    gpus = {LauncherName.SLURM: f"#SBATCH --gpus-per-node={job.each}\n", LauncherName.KUBERNETES: "\n".join(limits)}
    arguments = ["run_bench.py", *job.arguments]
    return Template(_TEMPLATES[launcher]).substitute(
        nodes=job.nodes,
        each=job.each,
        ranks=job.ranks,
        note=note,
        # The name with only those characters that Kubernetes allows.
        job="collbench-" + re.sub(r"[^a-z0-9-]+", "-", job.name.lower()).strip("-"),
        command=shlex.join(arguments),
        arguments=json.dumps(job.arguments),
        # Every JSON string is a valid YAML string.
        items="\n".join(f"            - {json.dumps(part)}" for part in arguments),
        gpus=gpus.get(launcher, "") if job.gpus else "",
        uses_gpus=job.gpus,
        # Each rank sees all GPUs of its host, or NCCL cannot use the links between them.
        bind="--gpu-bind=none " if job.gpus else "",
        minutes=math.ceil(TIME_FACTOR * job.seconds / 60) + EXTRA_MINUTES,
        warning=WARNING_S,
        **_WORDS[job.verb],
    )


# What the files say of each verb. A gate goes on without a node that fails, if its scheduler lets it.
_WORDS = {
    JobVerb.RUN: {
        "results": "results are in results/",
        "end": "# The signal ends the run in order before its time is over; go on with: run --resume.",
        "survive": "",
        "keep": "",
    },
    JobVerb.GATE: {
        "results": "gate.json and taint.txt are in results/",
        "end": "# Status 0: every node passed; 1: some fail, their names are in taint.txt; 3: undecided.",
        "survive": "#SBATCH --no-kill\n",
        "keep": "--no-kill ",
    },
}
# ── one for each launcher ────────────────────────────────────────────────────────────────────────
_TEMPLATES = {
    LauncherName.TORCHRUN: """\
#!/bin/sh
# CollBench on $nodes hosts, $each ranks on each, with torchrun. Start it on every host, in the folder of CollBench:
#   sh torchrun.sh NODE HEAD     NODE: 0 on the first host, 1 on the next, ...; HEAD: address of the first host
# The results are in results/ on the first host. If the hosts do not share this folder, they need a common secret, the
# same on all of them: export COLLBENCH_SECRET=...
${note}set -eu
usage="usage: sh torchrun.sh NODE HEAD"
exec .venv/bin/torchrun --nnodes=$nodes --node-rank="$${1:?$$usage}" --nproc-per-node=$each \\
  --master-addr="$${2:?$$usage}" --master-port=29400 $command
""",
    LauncherName.SLURM: """\
#!/bin/bash
# CollBench on $nodes hosts, $each ranks on each, with Slurm: sbatch slurm.sbatch, in the folder of CollBench.
# That folder must be at the same place on all hosts, with its .venv; $results.
$end
${note}#SBATCH --job-name=$job
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$each
${gpus}#SBATCH --exclusive
${survive}#SBATCH --time=$minutes
#SBATCH --signal=TERM@$warning
#SBATCH --output=%x-%j.log
srun --cpu-bind=none ${bind}${keep}--kill-on-bad-exit=0 .venv/bin/python $command
""",
    LauncherName.KUBERNETES: """\
# CollBench on $nodes pods, $each ranks in each, on any Kubernetes: kubectl apply -f kubernetes.yaml
# To be replaced: the image (CollBench in /collbench, with its packages) and the claim that keeps the results.
# Pods that do not share the claim know each other by a secret; make one, and delete it afterwards:
#   kubectl create secret generic collbench --from-literal=secret="$$(openssl rand -hex 32)"
# With Kubeflow Trainer, the command of a TrainJob is the same torchrun, without its options: Trainer sets them.
${note}apiVersion: v1
kind: Service
metadata:
  name: $job
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    job-name: $job
---
apiVersion: batch/v1
kind: Job
metadata:
  name: $job
spec:
  completions: $nodes
  parallelism: $nodes
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      subdomain: $job
      restartPolicy: Never
      terminationGracePeriodSeconds: $warning
      containers:
        - name: collbench
          image: collbench:latest
          workingDir: /collbench
          env:
            - name: PET_NODE_RANK
              valueFrom:
                fieldRef:
                  fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
            - name: COLLBENCH_SECRET
              valueFrom:
                secretKeyRef:
                  name: collbench
                  key: secret
                  optional: true
          command:
            - torchrun
            - --nnodes=$nodes
            - --nproc-per-node=$each
            - --master-addr=$job-0.$job
            - --master-port=29400
$items
${gpus}          volumeMounts:
            - name: results
              mountPath: /collbench/results
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: results
          persistentVolumeClaim:
            claimName: collbench-results
        - name: shared-memory
          emptyDir:
            medium: Memory
""",
    LauncherName.RAY: '''\
"""CollBench with $ranks ranks in a Ray Train job: python ray_train.py, in the folder of CollBench.

That folder must be at the same place on all hosts; results are in results/ on the host of rank 0.
"""

import secrets
import sys
from os import chdir, environ
from pathlib import Path

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

${note}ARGUMENTS = $arguments


def measure(settings: dict[str, str]) -> None:
    """What each Ray worker does: all of them together are one run."""
    chdir(settings["folder"])
    environ.setdefault("COLLBENCH_SECRET", settings["secret"])
    sys.path.insert(0, settings["folder"])
    import run_bench

    status = run_bench.main(ARGUMENTS)
    if status:
        raise RuntimeError(f"run_bench.py ended with status {status}")


if __name__ == "__main__":
    scaling = ScalingConfig(num_workers=$ranks, use_gpu=$uses_gpus)
    settings = {"folder": str(Path.cwd()), "secret": secrets.token_hex(32)}
    TorchTrainer(measure, train_loop_config=settings, scaling_config=scaling).fit()
''',
    LauncherName.MPIRUN: """\
#!/bin/sh
# CollBench on $nodes hosts, $each ranks on each, with Open MPI. On the first host, in the folder of CollBench:
#   sh mpirun.sh HOSTFILE     a line for each host, such as: node1 slots=$each
# That folder must be at the same place on all hosts, with its .venv; results are in results/ on the first host.
# MPI only starts the processes. They need not be bound: a rank on one core is slower, with gloo ten times.
${note}set -eu
hosts=$${1:?usage: sh mpirun.sh HOSTFILE}
head=$$(awk '/^[^#]/ { print $$1; exit }' "$$hosts")
# Processes on several hosts know each other by a secret.
export COLLBENCH_SECRET="$${COLLBENCH_SECRET:-$$(head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \\n')}"
exec mpirun --hostfile "$$hosts" -n $ranks --map-by ppr:$each:node --bind-to none -x MASTER_ADDR="$$head" \\
  -x COLLBENCH_SECRET \\
  .venv/bin/python $command
""",
}
