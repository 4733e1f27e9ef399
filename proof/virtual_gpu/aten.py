"""Compute torch's operations on a virtual GPU by the CPU's kernels, on the same memory, with times by rule.

`install` overrides every operation of ATen that has a kernel for CUDA. A call becomes an operation of its stream: it is
computed by the thread of the stream, after all earlier operations, and takes the time of the rule (`kernel_us`, or
`copy_us` and `copy_gbps` if it only moves bytes). Sizes of results come from torch's meta kernels. An operation that
has no meta kernel, resizes its result, or copies to or from the host is computed at once, after the bytes before it.

Left out: views, which compute nothing; attention in one kernel (the composite form is used); cuBLAS, cuDNN and other
libraries, which are never called.
"""

import ctypes
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

C = ctypes.CDLL(None)
COMPUTE = ctypes.CFUNCTYPE(None, ctypes.c_longlong)
ENQUEUE, WAIT, CAPTURING, RULE = (
    C.virtual_gpu_enqueue,
    C.virtual_gpu_wait_for_bytes,
    C.virtual_gpu_is_capturing,
    C.virtual_gpu_rule,
)
ENQUEUE.argtypes = [ctypes.c_void_p, COMPUTE, ctypes.c_longlong, ctypes.c_longlong]
WAIT.argtypes = CAPTURING.argtypes = [ctypes.c_void_p]
RULE.argtypes, RULE.restype = [ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p], ctypes.c_double
# Operations that only move bytes.
MOVES = {"copy_", "fill_", "zero_", "clone", "cat", "_foreach_copy_", "_chunk_cat", "split_with_sizes_copy"}
# Operations whose CUDA kernels are only bookkeeping, and run as they are.
KEPT = {
    "empty.memory_format", "empty_strided", "as_strided", "view", "set_.source_Storage", "set_.source_Tensor", "set_",
    "set_.source_Storage_storage_offset", "resize_", "record_stream", "_reshape_alias", "alias",
    "unfold", "is_set_to", "_pin_memory", "is_pinned", "view_as_real", "view_as_complex", "_copy_from",
}  # fmt: skip
# Number of a call → the function that computes it. Calls of a captured graph are kept, because it is replayed.
CALLS: dict[int, Callable[[], object]] = {}
STAYING: set[int] = set()
NUMBERS = itertools.count(1)
GENERATORS: dict[int, tuple[torch.Generator, torch.Generator]] = {}
ONE_THREAD = threading.local()
LIBRARY = torch.library.Library("aten", "IMPL")


@COMPUTE
def _compute(number: int) -> None:
    """Compute a call; the thread of a stream calls this."""
    if not hasattr(ONE_THREAD, "set"):
        torch.set_num_threads(1)  # with more threads, sums would not always be split in the same way
        ONE_THREAD.set = True
    try:
        (CALLS[number] if number in STAYING else CALLS.pop(number))()
    except BaseException as error:  # no caller could catch it
        os.write(2, f"virtual GPU: an operation of torch failed: {error!r}\n".encode())
        os.abort()


def nanoseconds(operation: str, args: tuple[Any, ...], device: int) -> int:
    """Return the time of an operation by rule."""
    base = operation.partition(".")[0]
    if base in MOVES and (first := next((t for t in tensors(args) if t.is_cuda), None)) is not None:
        rule = [RULE(name, device, base.encode()) for name in (b"copy_us", b"copy_gbps")]
        return int(1000 * rule[0] + first.nbytes / rule[1])
    return int(1000 * RULE(b"kernel_us", device, base.encode()))


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in arguments or results."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors(value)
    elif isinstance(values, dict):
        yield from tensors(list(values.values()))


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the CPU on the same memory."""
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes()
    if nbytes == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    raw = torch.frombuffer((ctypes.c_char * nbytes).from_address(storage.data_ptr()), dtype=torch.uint8)
    host = torch.empty(0, dtype=tensor.dtype)
    host.set_(raw.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    host = torch._conj(host) if tensor.is_conj() else host
    return torch._neg_view(host) if tensor.is_neg() else host


def mapped(value: Any, tensor: Callable[[torch.Tensor], torch.Tensor], device: str) -> Any:
    """Return arguments with every CUDA tensor, device and generator replaced by one of another device."""
    if isinstance(value, torch.Tensor):
        return tensor(value) if value.is_cuda else value
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device(device)
    if isinstance(value, torch.Generator) and value.device.type == "cuda":
        if id(value) not in GENERATORS:  # keep the original, too, so that no other generator gets its id
            GENERATORS[id(value)] = torch.Generator().manual_seed(value.initial_seed()), value
        return GENERATORS[id(value)][0]
    if isinstance(value, list | tuple):
        return type(value)(mapped(part, tensor, device) for part in value)
    if isinstance(value, dict):
        return {name: mapped(part, tensor, device) for name, part in value.items()}
    return value


def without_data(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape on the device `meta`."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def on_cpu(operation: Any) -> Callable[..., Any]:
    """Return the operation on the CPU, or its decomposition if it has no CPU kernel."""
    other: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if other:
            return other[0](*args, **kwargs)
        try:
            return operation(*args, **kwargs)
        except NotImplementedError:
            from torch._decomp import get_decompositions

            decomposed = get_decompositions([operation])
            if operation not in decomposed:
                raise
            other.append(decomposed[operation])
            return other[0](*args, **kwargs)

    return call


class Override:
    """The replacement for the CUDA kernel of one operation."""

    def __init__(self, name: str, operation: Any) -> None:
        self.name, self.operation, self.compute = name, operation, on_cpu(operation)
        schema = operation._schema
        # Arguments that are tensors in the schema, but may arrive as plain numbers.
        self.places = {
            i for i, argument in enumerate(schema.arguments) if str(argument.type) in {"Tensor", "Optional[Tensor]"}
        }
        self.in_place = name.partition(".")[0].endswith("_")
        self.resizes = not self.in_place and any(
            argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        first = next((tensor for tensor in tensors([args, kwargs]) if tensor.is_cuda), None)
        requested = kwargs.get("device")
        if isinstance(requested, torch.device) and requested.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device() if requested.index is None else requested.index)
        else:
            device = first.device if first is not None else torch.device("cuda", torch.cuda.current_device())
        args = tuple(self._tensor(value, first) if i in self.places else value for i, value in enumerate(args))
        stream = torch.cuda.current_stream(device).cuda_stream
        takes = nanoseconds(self.name, args, device.index)
        # It is computed at once if it copies to or from the host, or may resize an argument.
        at_once = self.resizes or any(not tensor.is_cuda and tensor.dim() for tensor in tensors([args, kwargs]))
        results = None if at_once else self._results(args, kwargs, device)
        if results is None:
            return self._computed_at_once(args, kwargs, device, stream, takes)
        host_args, host_kwargs = mapped(args, on_host, "cpu"), mapped(kwargs, on_host, "cpu")
        targets = [] if self.in_place else [on_host(result) for result in tensors(results)]

        def compute() -> None:
            computed = tensors(self.compute(*host_args, **host_kwargs))
            for target, values in zip(targets, computed, strict=False):
                target.copy_(values)

        self._enqueue(compute, stream, takes)
        return results if self.operation._schema.returns else None

    @staticmethod
    def _tensor(value: Any, first: torch.Tensor | None) -> Any:
        if not isinstance(value, bool | int | float | complex):
            return value
        fits = first is not None and (
            isinstance(value, bool | int) or first.dtype.is_floating_point or first.dtype.is_complex
        )
        return torch.scalar_tensor(value, dtype=first.dtype if fits else None)

    def _results(self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
        """Return empty results of the right sizes, the first argument if in place, or None if the sizes are unknown."""
        if self.in_place:
            return args[0] if self.operation._schema.returns else ()
        try:
            shapes = self.operation(*mapped(args, without_data, "meta"), **mapped(kwargs, without_data, "meta"))
        except (NotImplementedError, RuntimeError, TypeError, ValueError, AssertionError):
            return None
        if any(not tensor.is_meta for tensor in tensors(shapes)):
            return None

        def empty(values: Any) -> Any:
            if isinstance(values, torch.Tensor):
                return torch.empty_strided(values.size(), values.stride(), dtype=values.dtype, device=device)
            return type(values)(map(empty, values)) if isinstance(values, list | tuple) else values

        return empty(shapes)

    def _computed_at_once(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, stream: int, takes: int
    ) -> Any:
        WAIT(stream)
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

        def recorded(tensor: torch.Tensor) -> torch.Tensor:
            pairs.append((tensor, on_host(tensor)))
            return pairs[-1][1]

        host_args, host_kwargs = mapped(args, recorded, "cpu"), mapped(kwargs, recorded, "cpu")
        results = self._on_device(self.compute(*host_args, **host_kwargs), pairs, device)

        def recompute() -> None:  # a graph calls it at each replay
            for result, values in zip(tensors(results), tensors(self.compute(*host_args, **host_kwargs)), strict=False):
                if result.is_cuda and on_host(result).data_ptr() != values.data_ptr():
                    on_host(result).copy_(values)

        self._enqueue(recompute if CAPTURING(stream) else lambda: None, stream, takes)
        # Results on the host are waited for, like a copy to pageable memory. The wait is here, because C++ would hold
        # the lock of Python while it waits, and the computation needs this lock.
        to_host = self.name == "copy_" and not args[0].is_cuda
        waits = to_host and not kwargs.get("non_blocking") and not (len(args) > 2 and args[2])
        if waits or self.name == "_local_scalar_dense":
            torch.cuda.current_stream(device).synchronize()
        return results

    def _on_device(self, values: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> Any:
        """Return results as tensors of the device: the given tensors, or new tensors."""
        if isinstance(values, list | tuple):
            return type(values)(self._on_device(value, pairs, device) for value in values)
        if not isinstance(values, torch.Tensor):
            return values
        for given, host in pairs:
            if host is values:
                if given.size() != values.size():
                    given.resize_(values.size())
                    WAIT(torch.cuda.current_stream(device).cuda_stream)
                    on_host(given).copy_(values)
                return given
        if values.device.type != "cpu" or (self.name == "copy_" and values.numel()):
            return values
        result = torch.empty_strided(values.size(), values.stride(), dtype=values.dtype, device=device)
        WAIT(torch.cuda.current_stream(device).cuda_stream)  # torch may fill new memory, to reveal reads before a write
        if values.numel():
            on_host(result).copy_(values)
        return result

    @staticmethod
    def _enqueue(compute: Callable[[], object], stream: int, takes: int) -> None:
        number = next(NUMBERS)
        CALLS[number] = compute
        if CAPTURING(stream):
            STAYING.add(number)
        ENQUEUE(stream, _compute, number, takes)


def install() -> None:
    """Override the operations, and force the attention kernel, because torch's choice depends on the device."""
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for full_name in torch._C._dispatch_get_all_op_names():
            namespace, _, name = full_name.partition("::")
            if namespace != "aten" or name in KEPT:
                continue
            # copy_ is registered under another dispatch key than CUDA.
            if name != "copy_" and not torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "CUDA"):
                continue
            base, _, overload = name.partition(".")
            try:
                operation = getattr(getattr(torch.ops.aten, base), overload or "default")
            except AttributeError:  # exists only in TorchScript
                continue
            if any(
                result.alias_info is not None and not result.alias_info.is_write for result in operation._schema.returns
            ):
                continue  # a view
            LIBRARY.impl(full_name, Override(name, operation), "CUDA")
