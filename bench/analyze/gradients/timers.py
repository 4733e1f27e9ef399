"""Where a Python file reads the clock around GPU work without waiting for it. In: a `Script`. Out: the second readings.

A pair of readings is a difference `end - start`, of calls of a clock or of names that hold one. Between the two lines
there must be something that waits for the GPU, here or in a function of this file that is called.
"""

import ast
from collections.abc import Iterator

from bench.analyze.gradients.script import Script, own

CLOCKS = ("time", "perf_counter", "perf_counter_ns", "monotonic", "time_ns", "monotonic_ns")
# Calls that return only when the GPU has done what was queued.
WAITS = ("synchronize", "item", "cpu", "tolist", "numpy", "elapsed_time")
# Calls that queue work on the GPU in a training script.
WORK = ("backward", "step", "all_reduce", "reduce_scatter", "all_gather", "all_gather_into_tensor", "broadcast",
        "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "matmul", "forward")  # fmt: skip


def unsynchronised(script: Script) -> Iterator[tuple[ast.AST, str]]:
    """G106."""
    if not _uses_gpu(script):
        return
    waiting = {*WAITS, *_functions_that_call(script, WAITS)}
    working = {*WORK, *_functions_that_call(script, WORK)}
    for scope in script.scopes:
        nodes = list(own(scope))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        for start, end in _pairs(script, nodes):
            between = {script.last(call) for call in calls if start.lineno <= call.lineno <= end.lineno}
            if between & working and not between & waiting:
                yield end, ast.unparse(end)


def _uses_gpu(script: Script) -> bool:
    texts = any(str(node.value).startswith("cuda") or node.value == "nccl" for node in script.texts)
    return texts or bool(script.calls("cuda"))


def _functions_that_call(script: Script, names: tuple[str, ...]) -> set[str]:
    return {scope.name for scope in script.scopes[1:] if script.calls(*names, within=scope)}  # type: ignore[attr-defined]


def _pairs(script: Script, nodes: list[ast.AST]) -> Iterator[tuple[ast.Call, ast.Call]]:
    """First and second reading of each difference of a scope."""
    held: dict[str, list[ast.Call]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_clock(script, node.value):
            for target in node.targets:
                held.setdefault(ast.unparse(target), []).append(node.value)  # type: ignore[arg-type]
    for node in nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
            continue
        ends = [node.left] if _is_clock(script, node.left) else held.get(ast.unparse(node.left), [])
        for end in ends:
            if isinstance(end, ast.Call) and end.lineno <= node.lineno and not _later(ends, end, node.lineno):
                starts = [call for call in held.get(ast.unparse(node.right), []) if call.lineno < end.lineno]
                if starts:
                    yield max(starts, key=lambda call: call.lineno), end


def _later(ends: list[ast.expr] | list[ast.Call], end: ast.Call, line: int) -> bool:
    """Whether the name was given a later reading before it is used at this line."""
    return any(end.lineno < other.lineno <= line for other in ends)


def _is_clock(script: Script, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and not node.args and script.last(node) in CLOCKS
