"""NCCL's choices are read from log lines of every generation of NCCL in torch's wheels."""

import pytest

from collbench.machine.nccl_log import Choice, choices, transports

HEAD = "node-1:2041:2113 [0] NCCL INFO "
RECENT = "AllReduce: 2097152 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}"
SYMMETRIC = "AllReduce [Symmetric]: 2097152 Bytes -> Kernel AllReduce_RSxLDMC_AGxSTMC nchannels 16 nthreads 512"
GATHER = "AllGather: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (RECENT, Choice("AllReduce", 2097152, "NVLS", "SIMPLE", 16)),
        (GATHER, Choice("AllGather", 64, "RING", "LL", 1)),
        ("AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpy", Choice("AllGather", 4096, "CE", "", None)),
        ("AllGather [Hierarchical CE]: 64 Bytes -> RMA", Choice("AllGather", 64, "HIERARCHICAL_CE", "", None)),
        (SYMMETRIC, Choice("AllReduce", 2097152, "SYMMETRIC", "", 16, "AllReduce_RSxLDMC_AGxSTMC")),
    ],
)  # fmt: skip
def test_each_generation_of_lines(line, wanted):
    assert list(choices(f"{HEAD}{line}\n")) == [wanted]


def test_calls_are_read_in_order_and_other_lines_are_not_calls():
    text = (
        f"{HEAD}NCCL version 2.27.3+cuda12.9\n{HEAD}Bootstrap: Using eth0:10.0.0.1<0>\n{HEAD}{RECENT}\n\n"
        "[2026-11-22 10:00:00] node-1:2041:2113 [0] enqueue.cc:100 NCCL WARN something\n"
        f"{HEAD}AllReduce: 64 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}\n"
    )
    assert [(choice.nbytes, choice.algorithm) for choice in choices(text)] == [(2097152, "NVLS"), (64, "RING")]


INIT = f"""{HEAD}Channel 00/24 : 0[0] -> 1[1] via P2P/CUMEM
{HEAD}Channel 01/24 : 0[0] -> 1[1] via P2P/CUMEM
{HEAD}Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
{HEAD}Channel 02/0 : 3[3] -> 2[2] via SHM/direct/direct
"""


def test_how_ranks_reach_each_other():
    assert transports(INIT) == ["NET/IB/0/GDRDMA", "P2P/CUMEM", "SHM/direct/direct"]
    assert transports("") == []
