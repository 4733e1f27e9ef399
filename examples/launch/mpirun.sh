#!/bin/sh
# CollBench with Open MPI, hosts: 2, ranks per host: 8. On the first host:
#   sh FILE HOSTFILE     one line per host, such as: node1 slots=8
# All hosts must see this folder and the environment of collbench at the same paths. Results are in results/ on the
# first host.
# MPI only starts the processes. They need not be bound: a rank on one core is slower, with gloo ten times.
set -eu
hosts=${1:?usage: sh $0 HOSTFILE}
head=$(awk '/^[^#]/ { print $1; exit }' "$hosts")
# Processes on several hosts know each other by a secret.
export COLLBENCH_SECRET="${COLLBENCH_SECRET:-$(head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n')}"
exec mpirun --hostfile "$hosts" -n 16 --map-by ppr:8:node --bind-to none -x MASTER_ADDR="$head" \
  -x COLLBENCH_SECRET \
  "$(command -v collbench)" run nccl
