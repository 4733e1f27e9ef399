"""Run a command on two hosts that are joined by a link of known rate and delay: `python -m tools.two_hosts -- …`.

In: the rate, the one-way delay, and a command that mpirun starts on both hosts, such as `collbench ab …`. Out: the
output and status of the command. The hosts are network namespaces with their own names; Open MPI's mpirun reaches the
second host by `ip netns exec` in place of ssh. Needs Linux, root, iproute2 and `make install-mpi`.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from collbench.machine import host
from collbench.model import units
from collbench.report.notices import sentence
from proof import links

# The program that mpirun calls in place of ssh. Arguments: a name, then the words of a command.
AGENT = """#!/bin/sh
shift
exec ip netns exec {namespace} unshare --uts sh -c 'hostname host1; eval "$0"' "$*"
"""


def main(
    command: Annotated[list[str], typer.Argument(help="What both hosts run, behind --.")],
    rate: Annotated[str, typer.Option(help="Of the link, each way, in bytes a second.")] = "125MB/s",
    delay: Annotated[str, typer.Option(help="From one host to the other.")] = "250us",
) -> None:
    """Run a command on two hosts that are joined by a link."""
    obstacle = links.unsupported_tun()
    if (reason := host.unsupported_mpi()) is not None:
        obstacle = obstacle or sentence(reason)
    if obstacle:
        sys.exit(obstacle)
    bytes_per_s = units.parse_rate(rate)
    with links.delayed_pair(units.parse_seconds(delay), bytes_per_s) as network, tempfile.TemporaryDirectory() as place:
        agent = Path(place, "agent")
        agent.write_text(AGENT.format(namespace=network.namespaces[1]), encoding="utf-8")
        agent.chmod(0o700)
        first, second = network.addresses
        started = subprocess.run(
            [
                *("ip", "netns", "exec", network.namespaces[0], "unshare", "--uts"),
                *("sh", "-c", 'hostname host0; exec "$0" "$@"', str(host.mpirun())),
                *("--host", f"{first}:1,{second}:1", "-n", "2", "--bind-to", "none", "-x", f"MASTER_ADDR={first}"),
                *("--prtemca", "plm_ssh_agent", str(agent), *command),
            ],
            env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            check=False,
        )
    sys.exit(started.returncode)


if __name__ == "__main__":
    typer.run(main)
