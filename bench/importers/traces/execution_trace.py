"""Read PyTorch execution traces (ExecutionTraceObserver), which Chakra calls host traces: schemas 1.0.1 and 1.1.

In: the text of one rank's file. Out: a `RankRecording`. It has groups, splits and the numbers of calls, and neither
times nor streams. The rank stands only in the name of the file. gloo has no nodes of its own for calls; those of
torch's dispatcher are read, which have no groups and no splits.
"""

import json
import re
from collections import Counter
from typing import Any

from bench.importers.traces.files import LongObject
from bench.importers.traces.names import dtype_of, operation_of, rank_of
from bench.model.recorded_calls import RankRecording, RecordedCall
from bench.model.records import Json

CALL, GROUPS = "record_param_comms", "## process_group:init ##"
WAIT = "wait"
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
# The dispatcher's operators whose only tensors are both sent and received; of all others the first one is received.
_OPERATOR = re.compile(r"^c10d::_?(\w+?)_?$")
_IN_PLACE = {"allreduce", "allreduce_coalesced", "broadcast", "reduce", "send", "recv", "recv_any_source", "barrier"}


def read(name: str, text: str, left_out: Counter[str]) -> RankRecording:
    """The calls of one rank. left_out: counts what moves no data."""
    found, operators, groups = list[Json](), list[Json](), dict[str, tuple[int, ...]]()
    for node in LongObject(name, text, "nodes").entries():
        if node.get("name") == GROUPS:
            groups |= _groups(node)
        elif node.get("name") == CALL:
            found.append(node)
        elif _OPERATOR.match(str(node.get("name"))):
            operators.append(node)
    if not found:
        only = next(iter(groups.values())) if len(groups) == 1 else None
        calls = [_of_operator(node, only) for node in sorted(operators, key=_number)]
    else:
        calls = [call for node in sorted(found, key=_number) if (call := _call(node, groups, left_out))]
    return RankRecording(name, rank_of(name), tuple(calls))


def _number(node: Json) -> int:
    number = node.get("id", 0)
    return number if isinstance(number, int) else 0


def _of_operator(node: Json, group: tuple[int, ...] | None) -> RecordedCall:
    """The call of one of the dispatcher's operators, in the job's only group."""
    match = _OPERATOR.match(str(node.get("name")))
    name = match[1] if match else ""
    values = _values(node, "inputs")
    sizes = [sum(_tensors([value])) for value in values if isinstance(value, list) and _tensors([value])]
    first, second = (*sizes, None, None)[:2]
    flags = [value for value in values if isinstance(value, bool)]
    return RecordedCall(
        operation=operation_of(name),
        dtype=dtype_of(_type(node)),
        elements_in=first if name in _IN_PLACE else second,
        elements_out=first,
        splits_in=None if name.startswith("alltoall") else (),
        splits_out=None if name.startswith("alltoall") else (),
        group=group,
        group_size=len(group) if group else None,
        asynchronous=flags[-1] if flags else None,
    )


def _call(node: Json, groups: dict[str, tuple[int, ...]], left_out: Counter[str]) -> RecordedCall | None:
    inputs, outputs = (_values(node, side) for side in ("inputs", "outputs"))
    attributes = {
        one["name"]: one.get("value") for one in node.get("attrs", []) if isinstance(one, dict) and "name" in one
    }
    words = [value for value in inputs if isinstance(value, str)]
    raw = str(attributes.get("collective_name") or next(iter(words), ""))
    if raw in {WAIT, ""}:
        left_out[raw or "calls without a name"] += 1
        return None
    operation = operation_of(raw)
    lists = [value for value in inputs if isinstance(value, list) and all(isinstance(n, int) for n in value)]
    splits_in, splits_out = (tuple(one) for one in (lists[:2] if len(lists) >= 2 else ([], [])))
    tensors_in, tensors_out = _tensors(inputs), _tensors(outputs)
    number = next((value for value in inputs if isinstance(value, int) and not isinstance(value, bool)), None)
    group_name = str(attributes.get("pg_name") or next((v[0] for v in inputs if _is_pair_of_names(v)), ""))
    size = attributes.get("pg_size")
    return RecordedCall(
        operation=operation,
        dtype=dtype_of(attributes.get("dtype")) or dtype_of(_type(node)),
        elements_in=sum(tensors_in),
        elements_out=sum(tensors_out),
        splits_in=splits_in,
        splits_out=splits_out,
        group=groups.get(group_name),
        group_size=int(size) if isinstance(size, int) else len(splits_in) or None,
        root=_root(inputs, number) if operation in _ROOTED else None,
        sequence=number,
    )


def _values(node: Json, side: str) -> list[Any]:
    """Inputs or outputs, a list in schema 1.0 and below "values" from 1.1 on."""
    found = node.get(side, [])
    return list(found.get("values", [])) if isinstance(found, dict) else list(found)


def _tensors(values: list[Any]) -> list[int]:
    """Elements of each tensor; a tensor is [id, storage, offset, elements, bytes each, device]."""
    found = []
    for value in values:
        if isinstance(value, list) and len(value) >= 5 and isinstance(value[-1], str) and isinstance(value[3], int):
            found.append(value[3])
        elif isinstance(value, list):
            found += _tensors([one for one in value if isinstance(one, list)])
    return found


def _type(node: Json) -> str | None:
    """The dtype in the type of the first tensor, such as `GenericList[Tensor(float)]`."""
    inputs = node.get("inputs", {})
    types = inputs.get("types", []) if isinstance(inputs, dict) else node.get("input_types", [])
    found = re.search(r"Tensor\(([^)]+)\)", " ".join(map(str, types)))
    return found[1] if found else None


def _is_pair_of_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value)


def _root(inputs: list[Any], number: int | None) -> int | None:
    """The whole number that follows the group: of a rooted call it is the root."""
    whole = [value for value in inputs if isinstance(value, int) and not isinstance(value, bool)]
    rest = whole[1:] if number is not None else whole
    # Until schema 1.0.1 the group is a pointer, which is far larger than any rank.
    small = [value for value in rest if 0 <= value < 2**24]
    return small[0] if small else None


def _groups(node: Json) -> dict[str, tuple[int, ...]]:
    """Ranks of each process group; of the whole world, whose list is empty, as many as its size."""
    found = {}
    for value in _values(node, "inputs"):
        try:
            groups = json.loads(value) if isinstance(value, str) else []
        except ValueError:  # strings are cut after 8192 characters
            continue
        for one in groups if isinstance(groups, list) else []:
            if isinstance(one, dict) and "pg_name" in one:
                ranks = one.get("ranks") or range(int(one.get("group_size", 0)))
                found[str(one["pg_name"])] = tuple(int(rank) for rank in ranks)
    return found
