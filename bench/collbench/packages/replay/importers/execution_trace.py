"""Read PyTorch execution traces (ExecutionTraceObserver), which Chakra calls host traces: schemas 1.0.1 and 1.1.

In: the text of one rank's file. Out: a `RankRecording`. It contains groups, splits and sequence numbers of calls, but
no times and no streams. Only the name of the file contains the rank. gloo has no nodes of its own for calls; the nodes
of torch's dispatcher are read instead, which have no groups and no splits.
"""

import json
import re
from collections import Counter
from dataclasses import replace
from typing import Any

from collbench.model.notices import Notice
from collbench.model.records import Json
from collbench.packages.replay.importers.recordings import (
    DEFAULT_GROUP,
    ROOTED,
    call_in,
    dtype_of,
    entries_in,
    numbers,
    operation_of,
    rank_of,
    ranks_from,
    whole,
)
from collbench.packages.replay.recorded_calls import CALLS_WITHOUT_NAME, RECORDED_LEFT_OUT, RankRecording, RecordedCall

CALL, GROUPS = "record_param_comms", "## process_group:init ##"
WAIT = "wait"
# Bound for ranks: until schema 1.0.1, a node contains the pointer of its group, which is far larger than any rank.
LARGEST_RANK = 2**24
# Dispatcher operators whose tensors are both input and output; for other operators, the first is the output.
_OPERATOR = re.compile(r"^c10d::_?(\w+?)_?$")
_IN_PLACE = {"allreduce", "allreduce_coalesced", "broadcast", "reduce", "send", "recv", "recv_any_source", "barrier"}


def read_execution_trace(name: str, text: str, left_out: Counter[Notice]) -> list[RankRecording]:
    """Return the calls of one rank. left_out: counter of the nodes that move no data."""
    recorded, operators, groups = list[Json](), list[Json](), dict[str, tuple[int, ...]]()
    for node in entries_in(name, text, "nodes", {}):
        if node.get("name") == GROUPS:
            groups |= _groups(node)
        elif node.get("name") == CALL:
            recorded.append(node)
        elif _OPERATOR.match(str(node.get("name"))):
            operators.append(node)

    def number(node: Json) -> int:
        return whole(node.get("id")) or 0

    if recorded:
        nodes = sorted(recorded, key=number)
        calls = [call for node in nodes if (call := _call(node, groups, left_out))]
    else:
        only_group = next(iter(groups.values())) if len(groups) == 1 else None
        calls = [_call_of_operator(node, only_group) for node in sorted(operators, key=number)]
    world = len(groups.get(DEFAULT_GROUP, ())) or None
    return [RankRecording(name, rank_of(name), tuple(calls), by_name=True, stated_world=world)]


def _groups(node: Json) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group; an empty list means the whole world, whose size gives the ranks."""
    ranks_of = {}
    for value in _values(node, "inputs"):
        try:
            groups = json.loads(value) if isinstance(value, str) else []
        except ValueError:  # strings are cut after 8192 characters
            continue
        for group in groups if isinstance(groups, list) else []:
            if isinstance(group, dict) and "pg_name" in group:
                ranks = numbers(group.get("ranks")) or ranks_from(whole(group.get("group_size")) or 0)
                ranks_of[str(group["pg_name"])] = ranks
    return ranks_of


def _call(node: Json, groups: dict[str, tuple[int, ...]], left_out: Counter[Notice]) -> RecordedCall | None:
    """Return the call of a node; None, counted in `left_out`, if the node moves no data."""
    inputs, outputs = (_values(node, side) for side in ("inputs", "outputs"))
    attributes = {
        attribute["name"]: attribute.get("value")
        for attribute in node.get("attrs", [])
        if isinstance(attribute, dict) and "name" in attribute
    }
    words = [value for value in inputs if isinstance(value, str)]
    raw = str(attributes.get("collective_name") or next(iter(words), ""))
    if raw in {WAIT, ""}:
        left_out[RECORDED_LEFT_OUT(what=raw) if raw else CALLS_WITHOUT_NAME()] += 1
        return None
    operation = operation_of(raw)
    lists = [value for value in inputs if isinstance(value, list) and all(isinstance(n, int) for n in value)]
    splits = tuple(lists[0]) if len(lists) >= 2 else ()
    # The sequence number comes first; for a rooted call, the number after the group is the root.
    numbers = [value for value in inputs if whole(value) is not None]
    root = next((value for value in numbers[1:] if 0 <= value < LARGEST_RANK), None)
    pairs = (value for value in inputs if isinstance(value, list) and len(value) == 2)
    named = (first for first, second in pairs if isinstance(first, str) and isinstance(second, str))
    group_name = str(attributes.get("pg_name") or next(named, ""))
    # After the name of the call: splits in, splits out, the group's start, stride and size; since torch 2.13 whether
    # the call was asynchronous. Schema 1.0.1 can end after the splits.
    behind = inputs[inputs.index(raw) + 1 :] if raw in inputs else []
    size = whole(attributes.get("pg_size")) or (whole(behind[4]) if len(behind) > 4 else None)
    asynchronous = behind[5] if len(behind) > 5 and isinstance(behind[5], bool) else None
    return RecordedCall(
        operation=operation,
        dtype=dtype_of(attributes.get("dtype")) or dtype_of(_type(node)),
        elements_in=sum(_tensors(inputs)),
        elements_out=sum(_tensors(outputs)),
        splits_in=splits,
        group=groups.get(group_name),
        group_size=size or len(splits) or None,
        communicator=group_name or None,
        root=root if operation in ROOTED else None,
        asynchronous=asynchronous,
        sequence=numbers[0] if numbers else None,
    )


def _call_of_operator(node: Json, group: tuple[int, ...] | None) -> RecordedCall:
    """Return the call of a dispatcher operator, in the job's only group."""
    match = _OPERATOR.match(str(node.get("name")))
    name = match[1] if match else ""
    values = _values(node, "inputs")
    sizes = [sum(tensors) for value in values if isinstance(value, list) and (tensors := _tensors([value]))]
    first, second = (*sizes, None, None)[:2]
    flags = [value for value in values if isinstance(value, bool)]
    call = call_in(group, operation_of(name), dtype_of(_type(node)), first if name in _IN_PLACE else second, first)
    return replace(call, asynchronous=flags[-1] if flags else None)


def _values(node: Json, side: str) -> list[Any]:
    """Return inputs or outputs: a list in schema 1.0, and under "values" since schema 1.1."""
    values = node.get(side, [])
    return list(values.get("values", [])) if isinstance(values, dict) else list(values)


def _tensors(values: list[Any]) -> list[int]:
    """Return the elements of each tensor; a tensor is [id, storage, offset, elements, bytes each, device]."""
    elements = []
    for value in values:
        if isinstance(value, list) and len(value) >= 5 and isinstance(value[-1], str) and isinstance(value[3], int):
            elements.append(value[3])
        elif isinstance(value, list):
            elements += _tensors([inner for inner in value if isinstance(inner, list)])
    return elements


def _type(node: Json) -> str | None:
    """Return the dtype in the type of the first tensor, such as `GenericList[Tensor(float)]`."""
    inputs = node.get("inputs", {})
    types = inputs.get("types", []) if isinstance(inputs, dict) else node.get("input_types", [])
    tensor = re.search(r"Tensor\(([^)]+)\)", " ".join(map(str, types)))
    return tensor[1] if tensor else None
