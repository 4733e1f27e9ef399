#!/bin/sh
# CollBench with torchrun, hosts: 2, ranks per host: 8. On every host:
#   sh FILE NODE HEAD     NODE: 0 on the first host, 1 on the next, ...; HEAD: address of the first host
# The results are in results/ on the first host. Hosts that do not share this folder need a common secret, the same on
# all of them: export COLLBENCH_SECRET=...
set -eu
usage="usage: sh $0 NODE HEAD, with NODE below 2"
[ "${1:?$usage}" -lt 2 ] || { echo "$usage" >&2; exit 2; }
# torchrun waits for all hosts for five minutes.
exec torchrun --nnodes=2 --node-rank="$1" --nproc-per-node=8 --rdzv-conf=timeout=300 \
  --master-addr="${2:?$usage}" --master-port=29400 --no-python collbench run nccl
