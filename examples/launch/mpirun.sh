#!/bin/sh
# CollBench on 2 hosts, 8 ranks on each, with Open MPI. On the first host, in the folder of CollBench:
#   sh mpirun.sh HOSTFILE     a line for each host, such as: node1 slots=8
# That folder must be at the same place on all hosts, with its .venv; results are in results/ on the first host.
# MPI only starts the processes. They need not be bound: a rank on one core is slower, with gloo ten times.
set -eu
hosts=${1:?usage: sh mpirun.sh HOSTFILE}
head=$(awk '/^[^#]/ { print $1; exit }' "$hosts")
# Processes on several hosts know each other by a secret.
export COLLBENCH_SECRET="${COLLBENCH_SECRET:-$(head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n')}"
exec mpirun --hostfile "$hosts" -n 16 --map-by ppr:8:node --bind-to none -x MASTER_ADDR="$head" \
  -x COLLBENCH_SECRET \
  .venv/bin/python run_bench.py run configs/nccl.yaml
