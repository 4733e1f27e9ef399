"""A process finds its place in a job by variables of launchers; copies that do not know each other are refused."""

import pytest

from collbench.launch.job import detect
from collbench.model.errors import JobError

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x",
}  # fmt: skip
KUBEFLOW_V1 = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
SLURM_JOB = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "gpu[07-10]"}
SLURM_STEP = SLURM_JOB | {
    "SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[08-09]",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-h-1@1", "PMIX_RANK": "1",
}  # fmt: skip
BY_HAND = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}


@pytest.mark.parametrize(
    ("variables", "launcher", "rank", "size", "local_rank", "address", "one_host"),
    [
        (TORCHRUN, "torchrun", 3, 4, 1, "a", False),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, "torchrun", 3, 4, 1, "127.0.0.1", True),
        (TORCHRUN | {"MASTER_ADDR": "localhost"}, "torchrun", 3, 4, 1, "localhost", True),
        (TORCHRUN | {"MASTER_ADDR": "[fe80::1]"}, "torchrun", 3, 4, 1, "fe80::1", False),
        (KUBEFLOW_V1, "RANK and WORLD_SIZE", 1, 2, 0, "job-master-0", False),
        (KUBEFLOW_V1 | {"PET_NPROC_PER_NODE": "auto"}, "RANK and WORLD_SIZE", 1, 2, 0, "job-master-0", False),
        (TORCHRUN | {"RAY_JOB_ID": "01"}, "torchrun", 3, 4, 1, "a", False),
        (KUBEFLOW_V1 | {"RAY_JOB_ID": "01", "LOCAL_RANK": "1"}, "Ray Train", 1, 2, 1, "job-master-0", False),
        (SLURM_STEP, "srun", 2, 4, 0, "gpu08", False),
        (SLURM_STEP | {"SLURM_STEP_NUM_NODES": "1"}, "srun", 2, 4, 0, "127.0.0.1", True),
        (SLURM_STEP | {"MASTER_ADDR": "gpu08-ib"}, "srun", 2, 4, 0, "gpu08-ib", False),
        (OPEN_MPI, "mpirun (Open MPI)", 1, 2, 1, "127.0.0.1", True),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "MASTER_ADDR": "a"},
         "mpirun (Open MPI)", 1, 2, 0, "a", False),
        (HYDRA, "mpirun (Hydra)", 1, 2, 1, "127.0.0.1", True),
    ],
)  # fmt: skip
def test_each_launcher_is_understood(variables, launcher, rank, size, local_rank, address, one_host):
    place = detect(variables)
    assert (place.launcher, place.rank, place.world_size) == (launcher, rank, size)
    assert (place.local_rank, place.address, place.one_host) == (local_rank, address, one_host)
    assert len(place.ports) == 10 and "29500" not in map(str, place.ports)


def test_outside_a_step_the_size_of_the_allocation_is_ignored():
    older = {name: value for name, value in SLURM_STEP.items() if name != "SLURM_STEP_NUM_TASKS"}
    assert detect(older).world_size == 4
    assert detect({name: value for name, value in older.items() if name != "SLURM_STEP_ID"}) is None


@pytest.mark.parametrize(
    ("variables", "starter", "words"),
    [
        ({"RANK": "0"}, "", "RANK is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "", "WORLD_SIZE is set, but RANK is not"),
        (TORCHRUN | {"RANK": "4"}, "", "RANK=4, but WORLD_SIZE=4: ranks count from 0 to 3"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, "", "LOCAL_RANK=2, but LOCAL_WORLD_SIZE=2"),
        (TORCHRUN | {"RANK": "one"}, "", "RANK='one' is not a whole number"),
        (TORCHRUN | {"WORLD_SIZE": "-4"}, "", "WORLD_SIZE='-4' is not a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "", "host of rank 0"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "", "-x MASTER_ADDR"),
        ({}, "orted", "started by orted, which sets no rank"),
        (SLURM_JOB, "prterun", "started by prterun, which sets no rank"),
        ({}, "slurmstepd", "started by slurmstepd, which sets no rank"),
        ({"PMIX_RANK": "0"}, "prterun", "PMIX_RANK is set"),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "0"}, "", "must be torchrun --no-python collbench run"),
        (KUBEFLOW_V1 | {"PET_NPROC_PER_NODE": "8"}, "", "RANK counts pods"),
        (SLURM_STEP | TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, "", "srun started 4 torchruns"),
        (SLURM_STEP | {"SLURM_DISTRIBUTION": "arbitrary"}, "", "export MASTER_ADDR"),
        (OPEN_MPI | TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, "", "(Open MPI) started 2 torchruns"),
        (SLURM_STEP | BY_HAND | {"WORLD_SIZE": "4"}, "", "contradict srun"),  # one RANK for all tasks
        (SLURM_STEP | BY_HAND | {"RANK": "1"}, "", "contradict srun"),  # left in the shell that called srun
        (OPEN_MPI | BY_HAND, "", "contradict mpirun (Open MPI)"),
        (HYDRA | BY_HAND, "", "contradict mpirun (Hydra)"),
        (TORCHRUN | {"MASTER_PORT": "65535"}, "", "MASTER_PORT"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "", "MASTER_PORT"),
        (TORCHRUN | {"MASTER_ADDR": "tcp://node1"}, "", "MASTER_ADDR"),
    ],
)
def test_contradictions_are_reported_in_one_line(variables, starter, words):
    with pytest.raises(JobError) as caught:
        detect(variables, starter)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


# ── variables that contradict each other ─────────────────────────────────────────────────────────
def test_ports_end_at_the_largest_port_number():
    for port, count in (("65534", 1), ("65530", 5), ("0", 10)):
        ports = detect(TORCHRUN | {"MASTER_PORT": port}).ports
        assert len(ports) == count and max(ports) < 2**16
