"""Buffers are filled when the next calls need them, and the data are right whenever they are filled."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from collbench.catalog.dtypes import rounding
from collbench.model.records import Case
from collbench.planning.footprint import calls_between_refills
from collbench.rank.collectives import Subgroup
from collbench.rank.device import Host
from collbench.rank.tensors import SHIFT, Arena, TensorOperation, _difference, _inputs, _reduced

SIZE, SLOTS = 1024, 8
LENGTH = 512  # of the compared results


def alone(case: Case) -> TensorOperation:
    """Return an operation of one rank whose calls do nothing: the sum over one rank is its own data."""
    subgroup = Subgroup(rank=0, size=1, number=0, subgroups=1, handle=None)
    calls = SimpleNamespace(on_buffers={case.op: lambda arguments: lambda: None})
    group = SimpleNamespace(device=Host(), calls=calls, subgroup=lambda case: subgroup)
    return TensorOperation(case, group, Arena(2 * SIZE * SLOTS, group.device.handle), SIZE * SLOTS, seed=1)


@pytest.fixture
def filled(monkeypatch):
    """Return the ranges of filled buffers, in order."""
    ranges: list[tuple[int, int]] = []
    fill = TensorOperation._fill
    monkeypatch.setattr(TensorOperation, "_fill", lambda self, a, b: ranges.append((a, b)) or fill(self, a, b))
    return ranges


def test_only_buffers_that_the_next_calls_use_are_filled(filled):
    operation = alone(Case("all_reduce", "gloo", 1, "float32", SIZE))
    assert filled == []
    operation.reserve(3)
    for _ in range(3):
        operation.prepare()()
    assert filled == [(0, 3)]
    operation.reserve(100)
    assert filled == [(0, 3), (3, SLOTS)]
    assert operation.verify() is None


def test_a_buffer_that_nobody_reserved_is_filled_before_its_call(filled):
    operation = alone(Case("all_reduce", "gloo", 1, "float32", SIZE))
    operation.prepare()()
    assert filled == [(0, 1)] and operation.verify() is None


def test_as_many_buffers_as_were_used_are_filled_again_when_they_are_spent(filled):
    """A reduce in place destroys the input of its root, so each buffer serves one call."""
    case = Case("reduce", "gloo", 1, "float32", SIZE, placement="in")
    assert calls_between_refills(case) == 1
    operation = alone(case)
    for _ in range(2):
        operation.reserve(SLOTS)
        for _ in range(SLOTS):
            operation.prepare()()
    assert filled == [(0, SLOTS), (0, SLOTS)] and operation.verify() is None


@pytest.mark.parametrize(("alignment", "offset"), [("aligned", 0), ("unaligned", 4)])
def test_every_buffer_begins_at_a_multiple_of_512_bytes_or_one_element_further(alignment, offset):
    operation = alone(Case("all_reduce", "gloo", 1, "float32", 100, placement="usual", alignment=alignment))
    operation.reserve(3)
    assert {row.data_ptr() % 512 for row in operation._pool} == {offset}
    for _ in range(3):
        operation.prepare()()
    assert operation.verify() is None


# ── float8 ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("dtype", "reduce_op", "ranks"),
    [
        ("bfloat16", "sum", 512), ("bfloat16", "sum", 1000), ("bfloat16", "avg", 512), ("bfloat16", "avg", 24),
        ("float16", "avg", 256), ("float8_e4m3fn", "sum", 64), ("float8_e5m2", "sum", 64), ("float8_e4m3fn", "avg", 8),
        ("int8", "sum", 512), ("uint8", "sum", 512), ("bfloat16", "premul_sum", 300), ("bfloat16", "avg", 16),
    ],
)  # fmt: skip
def test_results_over_many_ranks_are_exact_in_any_order_and_a_missing_rank_shows(dtype, reduce_op, ranks):
    """Sums are added as by a ring and as by a tree, with 1/n multiplied before or divided after."""
    kind = getattr(torch, dtype)
    inputs = _inputs(5, dtype, reduce_op, ranks)[:]
    own = torch.stack([torch.from_numpy(np.roll(inputs, -SHIFT * rank)[:LENGTH].copy()) for rank in range(ranks)])
    want = _reduced(5, dtype, reduce_op, ranks, torch.device("cpu"))[:LENGTH]
    assert torch.equal(own.to(kind).double(), own.double()), "inputs are exact"

    def added(rows, tree):
        """Return the sum of the rows, rounded to the dtype after each addition."""
        while tree and len(rows) > 1:
            odd = rows[len(rows) // 2 * 2 :]
            rows = torch.cat([(rows[0:-1:2].double() + rows[1::2].double()).to(kind), odd])
        return functools.reduce(lambda a, b: (a.double() + b.double()).to(kind), rows)

    before = {"avg": 1 / ranks, "premul_sum": 2}.get(reduce_op, 1)
    for tree in (False, True):
        got = [added((own * before).to(kind), tree)]
        if reduce_op == "avg":
            got.append((added(own.to(kind), tree).double() / ranks).to(kind))
            got.append(added((own * torch.tensor(1 / ranks).to(kind).double()).to(kind), tree))
        tolerance = rounding(dtype, ranks) if reduce_op == "avg" else 0.0
        assert all(_difference(result[None], want[None], tolerance) is None for result in got)
        missing = added((own[1:] * before).to(kind), tree)
        assert _difference(missing[None], want[None], tolerance) is not None
