"""Read NCCL's choices from its debug output: algorithm, protocol, channels, transports.

In: text of NCCL_DEBUG=INFO with the subsystems INIT and TUNING. Out: a `Choice` for each call that rank 0 of a
communicator made, and the transports between its ranks. NCCL 2.24 to 2.30 writes, and torch 2.9 needs a newer one:

    NCCL INFO AllReduce: 2097152 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
    NCCL INFO AllReduce [Symmetric]: 2097152 Bytes -> Kernel AllReduce_RSxLDMC_AGxSTMC nchannels 16 …
    NCCL INFO AllGather [Copy Engine]: 2097152 Bytes -> cudaMemcpy; CE synchronization with NVLS
    NCCL INFO AllGather [Hierarchical CE]: 2097152 Bytes -> RMA proxy + CE

Bytes are NCCL's count: one rank's share in all-gather and reduce-scatter. Sends and receives have no such line.
Source: NCCL's enqueue.cc, init.cc and ce_coll.cc, tags v2.24.3 to v2.30.7.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

SYMMETRIC = "SYMMETRIC"
COPY_ENGINES = {"Copy Engine": "CE", "Hierarchical CE": "HIERARCHICAL_CE"}

_CALL = re.compile(
    r"NCCL INFO (?P<operation>\w+)(?: \[(?P<manner>[\w ]+)\])?: (?P<nbytes>\d+) Bytes -> (?P<what>.+)$",
    re.MULTILINE,
)
_CHOSEN = re.compile(
    r"Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)(?:.*channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
_KERNEL = re.compile(r"Kernel (?P<kernel>\S+)(?: nchannels (?P<channels>\d+))?")
_VIA = re.compile(r"NCCL INFO Channel \S+ : \d+\[\w+\] -> \d+\[\w+\] (?:\[\w+\] )?via (?P<transport>\S+)")


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of NCCL for one call."""

    # `operation` and `nbytes` are as NCCL names and counts them.
    operation: str
    nbytes: int
    algorithm: str
    protocol: str
    # None if the log does not report the number of channels.
    channels: int | None
    # Name of a symmetric kernel; empty for all other calls.
    kernel: str = ""


def choices(text: str) -> Iterator[Choice]:
    """Yield the choice for each call, in order."""
    for call in _CALL.finditer(text):
        operation, nbytes, choice_text = call["operation"], int(call["nbytes"]), call["what"]
        if call["manner"] in COPY_ENGINES:
            yield Choice(operation, nbytes, COPY_ENGINES[call["manner"]], "", None)
        elif call["manner"] == "Symmetric":
            if kernel := _KERNEL.match(choice_text):
                channels = int(kernel["channels"]) if kernel["channels"] else None
                yield Choice(operation, nbytes, SYMMETRIC, "", channels, kernel["kernel"])
        elif chosen := _CHOSEN.match(choice_text):
            span = int(chosen["high"]) - int(chosen["low"]) + 1 if chosen["low"] is not None else None
            yield Choice(operation, nbytes, chosen["algorithm"], chosen["protocol"], span)


def transports(text: str) -> list[str]:
    """Return the distinct transports between ranks, such as `P2P/CUMEM`, `SHM/direct`, `NET/IB/0/GDRDMA`."""
    return sorted({way["transport"] for way in _VIA.finditer(text)})
