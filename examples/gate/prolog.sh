#!/bin/sh
# Prolog of Slurm (slurm.conf: Prolog=/etc/slurm/prolog.sh): refuses a node that the newest gate named in taint.txt, which
# drains the node. Slurm's node names have to be the host names.
! grep -qxF "$(hostname)" /shared/taint.txt 2>/dev/null
