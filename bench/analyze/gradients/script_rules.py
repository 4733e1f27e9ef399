"""Which traps a Python file runs into: one function for each G1xx of `traps.TRAPS`, each of a `Script`.

A rule speaks only where the file itself shows the trap. What another file decides (a backend from the command line,
say) is not guessed at: better a trap missed than an alarm nobody trusts.
"""

import ast
import re
from collections.abc import Callable, Iterator

from bench.analyze.gradients.script import Script, keyword, own
from bench.analyze.gradients.timers import unsynchronised
from bench.gradients.traps import Hit

# torch's default, in MiB.
DEFAULT_CAP = 25
# Times within what _get_ddp_logging_data() returns; sizes and names in it are as good as any.
LOGGED_TIME = re.compile(r"(comm|overlap)\w*_time|comm_comp_overlap")
LAUNCHERS = ("isend", "irecv")
# Words of a file that divides the data over ranks in its own way.
OWN_SHARDING = ("Subset", "random_split", "split_dataset_by_node", "shard")

Found = Iterator[tuple[ast.AST, str]]


def default_cap(script: Script) -> Found:
    """G101."""
    for call in script.wrappers:
        if script.value(keyword(call, "bucket_cap_mb")) == DEFAULT_CAP:
            yield call, "bucket_cap_mb=25"


def logged_times(script: Script) -> Found:
    """G102."""
    if any(isinstance(node, ast.Attribute) and node.attr == "_get_ddp_logging_data" for node in script.nodes):
        for text in script.texts:
            if LOGGED_TIME.fullmatch(str(text.value)) or LOGGED_TIME.search(str(text.value).removeprefix("avg_")):
                yield text, str(text.value)


def bf16_on_gloo(script: Script) -> Found:
    """G103."""
    if script.backends == {"gloo"}:
        for node in script.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and script.last(node).startswith("bf16_compress"):
                yield node, script.last(node)


def average_on_gloo(script: Script) -> Found:
    """G104."""
    if script.backends == {"gloo"}:
        for node in script.nodes:
            if isinstance(node, ast.Attribute) and script.name(node).endswith("ReduceOp.AVG"):
                yield node, "ReduceOp.AVG"


def unawaited(script: Script) -> Found:
    """G105."""
    for scope in script.scopes:
        nodes = list(own(scope))
        # A closure may wait for what its function launched, so names are looked for in all of the scope.
        read = {node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        for node in nodes:
            if not isinstance(node, ast.Expr | ast.Assign) or not _launches(script, node.value):
                continue
            names = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
            if isinstance(node, ast.Expr) or (names and not read & set(names)):
                yield node, script.last(node.value)


def _launches(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return script.value(keyword(node, "async_op")) is True or script.last(node) in LAUNCHERS


def frozen_epoch(script: Script) -> Found:
    """G107."""
    epochs = any(isinstance(loop, ast.For) and "epoch" in ast.unparse(loop.target).lower() for loop in script.loops)
    if epochs and not script.calls("set_epoch"):
        for call in script.calls("DistributedSampler"):
            if script.value(keyword(call, "shuffle")) is not False:
                yield call, "DistributedSampler"


def synchronised_accumulation(script: Script) -> Found:
    """G108."""
    words = {node.attr for node in script.nodes if isinstance(node, ast.Attribute)}
    if not script.wrappers or words & {"no_sync", "require_backward_grad_sync", "set_requires_gradient_sync"}:
        return
    lines = set()
    for loop in script.loops:
        for call in script.calls("backward", within=loop):
            if call.lineno not in lines and (_steps_now_and_then(script, loop) or _divided(script, loop, call)):
                lines.add(call.lineno)
                yield call, ast.unparse(call)


def _steps_now_and_then(script: Script, loop: ast.AST) -> bool:
    """Whether the optimizer steps only in every k-th turn of the loop."""
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and any(isinstance(leaf, ast.Mod) for leaf in ast.walk(node.test)):
            steps = [call for part in node.body for call in script.calls("step", within=part)]
            if any("sched" not in script.name(call.func).lower() for call in steps):
                return True
    return False


def _divided(script: Script, loop: ast.AST, call: ast.Call) -> bool:
    """Whether the loop adds up gradients of a divided loss and the step comes after it."""
    if script.calls("step", "all_reduce", within=loop) or not isinstance(call.func, ast.Attribute):
        return False
    loss = call.func.value
    if isinstance(loss, ast.Name):
        divided = {
            ast.unparse(node.target if isinstance(node, ast.AugAssign) else node.targets[0])
            for node in ast.walk(loop)
            if (isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div))
            or (isinstance(node, ast.Assign) and _is_division(node.value))
        }
        return loss.id in divided
    return _is_division(loss)


def _is_division(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def shuffle_and_sampler(script: Script) -> Found:
    """G109."""
    loaders = script.calls("DataLoader")
    samplers = script.calls("DistributedSampler")
    sampled = any(keyword(call, "sampler") or keyword(call, "batch_sampler") for call in loaders)
    for call in loaders:
        if script.value(keyword(call, "shuffle")) is not True:
            continue
        sampler = keyword(call, "sampler")
        given = sampler is not None and not (isinstance(sampler, ast.Constant) and sampler.value is None)
        if given or (samplers and not sampled):
            yield call, "DataLoader(shuffle=True)"


def undivided_data(script: Script) -> Found:
    """G110."""
    sliced = any(isinstance(node, ast.Slice) and node.step is not None for node in script.nodes)
    if not script.wrappers or script.calls("DistributedSampler") or script.calls(*OWN_SHARDING) or sliced:
        return
    for call in script.calls("DataLoader"):
        own_sampler = keyword(call, "sampler") or keyword(call, "batch_sampler")
        if script.value(keyword(call, "shuffle")) is True and not own_sampler:
            yield call, "DataLoader(shuffle=True)"


def unused_parameters(script: Script) -> Found:
    """G111."""
    for call in script.wrappers:
        if script.value(keyword(call, "find_unused_parameters")) is True:
            yield call, "find_unused_parameters=True"


def wrapped_state(script: Script) -> Found:
    """G112."""
    for save in script.calls("save"):
        for call in script.calls("state_dict", within=save):
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in script.wrapped:
                yield call, ast.unparse(call)


def summed_loss(script: Script) -> Found:
    """G113."""
    products = [ast.unparse(n) for n in script.nodes if isinstance(n, ast.BinOp | ast.AugAssign)]
    scaled = any(re.search(r"world|num_?ranks|n_?ranks|get_world_size", product) for product in products)
    if not script.wrappers or scaled:
        return
    for node in script.nodes:
        if isinstance(node, ast.Call) and script.value(keyword(node, "reduction")) == "sum":
            yield node, 'reduction="sum"'


def bypassed(script: Script) -> Found:
    """G114."""
    for call in script.calls("module"):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in script.wrapped:
            yield call, ast.unparse(call.func)


def shared_device(script: Script) -> Found:
    """G115."""
    text = " ".join(str(node.value) for node in script.texts)
    chosen = script.calls("set_device", "set_device_index") or "CUDA_VISIBLE_DEVICES" in text
    inits = script.calls("init_process_group")
    if script.backends != {"nccl"} or not inits or chosen or any(keyword(call, "device_id") for call in inits):
        return
    for call in script.calls("cuda", "to"):
        plain = not call.args and not call.keywords if script.last(call) == "cuda" else False
        if plain or (script.last(call) == "to" and call.args and script.value(call.args[0]) == "cuda"):
            yield call, ast.unparse(call)
            return


RULES: dict[str, Callable[[Script], Found]] = {
    "G101": default_cap,
    "G102": logged_times,
    "G103": bf16_on_gloo,
    "G104": average_on_gloo,
    "G105": unawaited,
    "G106": unsynchronised,
    "G107": frozen_epoch,
    "G108": synchronised_accumulation,
    "G109": shuffle_and_sampler,
    "G110": undivided_data,
    "G111": unused_parameters,
    "G112": wrapped_state,
    "G113": summed_loss,
    "G114": bypassed,
    "G115": shared_device,
}


def hits(script: Script) -> list[Hit]:
    """All traps of a file, by line."""
    found = [
        Hit(code, getattr(node, "lineno", 1), " ".join(about.split())[:80])
        for code, rule in RULES.items()
        for node, about in rule(script)
    ]
    return sorted(found, key=lambda hit: (hit.line, hit.code))
