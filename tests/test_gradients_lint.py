"""`lint`: every trap is found where it is, and what looks like it is let pass. Files are read, never run."""

import pytest

from bench.analyze.gradients.config_rules import RULES as CONFIG_RULES
from bench.analyze.gradients.lint import lint
from bench.analyze.gradients.script_rules import RULES as SCRIPT_RULES
from bench.cli import call
from bench.gradients.traps import TRAPS

DDP = "from torch.nn.parallel import DistributedDataParallel as Wrap\n"
GLOO = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
NCCL = GLOO.replace("gloo", "nccl")
TIMED = "import time\nt0 = time.time()\nloss.backward()\n{}print(time.time() - t0)\nmodel.cuda()\n"
EPOCHS = "s = DistributedSampler(data)\nfor epoch in range(3):\n    {}\n"
EVERY_K = """model = Wrap(net)
for i, batch in enumerate(loader):
    loss = model(batch) / 4
    {}
    if (i + 1) % 4 == 0:
        optimizer.step()
"""
INNER = "model = Wrap(net)\nfor step in range(9):\n    for micro in micros:\n        {}\n    optimizer.step()\n"

# Code → file that must be found, the line, and a file that must not.
SNIPPETS = {
    "G101": [
        (DDP + "m = Wrap(net, bucket_cap_mb=25)", 2, DDP + "m = Wrap(net, bucket_cap_mb=100)"),
        (DDP + "cap = 25\nm = Wrap(net, bucket_cap_mb=cap)", 3, DDP + "m = Wrap(net, bucket_cap_mb=None)"),
        ("import torch\ntorch.nn.parallel.DistributedDataParallel(n, bucket_cap_mb=25.0)", 2, "f(bucket_cap_mb=25)"),
    ],
    "G102": [
        (
            "d = m._get_ddp_logging_data()\nx = d['avg_backward_comm_time']",
            2,
            "d = m._get_ddp_logging_data()\nx = d['rebuilt_bucket_sizes']",
        ),
    ],
    "G103": [
        (
            GLOO + "m.register_comm_hook(None, hooks.bf16_compress_hook)",
            3,
            NCCL + "m.register(hooks.bf16_compress_hook)",
        ),
        (
            "def f(backend='gloo'):\n    return hooks.bf16_compress_hook",
            2,
            GLOO + "m.register(hooks.fp16_compress_hook)",
        ),
    ],
    "G104": [
        (GLOO + "dist.all_reduce(t, op=dist.ReduceOp.AVG)", 3, NCCL + "dist.all_reduce(t, op=dist.ReduceOp.AVG)"),
        (GLOO + "from torch.distributed import ReduceOp as R\nx = R.AVG", 4, GLOO + "x = dist.ReduceOp.SUM"),
    ],
    "G105": [
        ("dist.all_reduce(t, async_op=True)", 1, "work = dist.all_reduce(t, async_op=True)\nwork.wait()"),
        ("def f():\n    w = dist.isend(t, 1)\n    g()", 2, "works.append(dist.all_reduce(t, async_op=True))"),
        ("w = dist.all_reduce(t, async_op=True)", 1, "dist.all_reduce(t, async_op=False)"),
    ],
    "G106": [
        (TIMED.format(""), 4, TIMED.format("torch.cuda.synchronize()\n")),
        (
            "from time import perf_counter as now\nx.to('cuda:0')\na = now()\noptimizer.step()\nb = now()\nd = b - a",
            5,
            TIMED.format("").replace("model.cuda()", "model.cpu()"),
        ),
        (TIMED.format("h()\n"), 5, TIMED.format("sync()\n") + "def sync():\n    torch.cuda.synchronize()\n"),
    ],
    "G107": [
        (EPOCHS.format("pass"), 1, EPOCHS.format("s.set_epoch(epoch)")),
        (EPOCHS.format("pass"), 1, EPOCHS.format("pass").replace("data)", "data, shuffle=False)")),
    ],
    "G108": [
        (DDP + EVERY_K.format("loss.backward()"), 5, DDP + EVERY_K.format("with model.no_sync(): loss.backward()")),
        (DDP + EVERY_K.format("loss.backward()"), 5, EVERY_K.replace("Wrap", "same").format("loss.backward()")),
        (DDP + INNER.format("(model(micro) / 4).backward()"), 5, DDP + INNER.format("model(micro)")),
        (
            DDP + INNER.format("loss = model(micro) / k; loss.backward()"),
            5,
            DDP + "m = Wrap(n)\nfor b in data:\n    (m(b) / k).backward()\n    optimizer.step()",
        ),
    ],
    "G109": [
        ("DataLoader(d, shuffle=True, sampler=s)", 1, "DataLoader(d, shuffle=False, sampler=s)"),
        (
            "s = DistributedSampler(d)\nx = DataLoader(d, shuffle=True)",
            2,
            "s = DistributedSampler(d)\nx = DataLoader(d, sampler=s)\ny = DataLoader(other, shuffle=True)",
        ),
    ],
    "G110": [
        (DDP + "m = Wrap(n)\nx = DataLoader(d, shuffle=True)", 3, "x = DataLoader(d, shuffle=True)"),
        (
            DDP + "m = Wrap(n)\nx = DataLoader(d, shuffle=True)",
            3,
            DDP + "m = Wrap(n)\nx = DataLoader(d[rank::world], shuffle=True)",
        ),
    ],
    "G111": [
        (DDP + "Wrap(n, find_unused_parameters=True)", 2, DDP + "Wrap(n, find_unused_parameters=False)"),
    ],
    "G112": [
        (
            DDP + "m = Wrap(n)\ntorch.save(m.state_dict(), 'x')",
            3,
            DDP + "m = Wrap(n)\ntorch.save(m.module.state_dict(), 'x')",
        ),
    ],
    "G113": [
        (
            DDP + "m = Wrap(n)\nl = CrossEntropyLoss(reduction='sum')",
            3,
            DDP + "m = Wrap(n)\nl = Loss(reduction='mean')",
        ),
        (
            DDP + "m = Wrap(n)\nl = CrossEntropyLoss(reduction='sum')",
            3,
            DDP + "m = Wrap(n)\nl = Loss(reduction='sum')\nlr = 0.1 * world_size",
        ),
    ],
    "G114": [
        (DDP + "m = Wrap(n)\ny = m.module(x)", 3, DDP + "m = Wrap(n)\ny = m(x)\nz = other.module(x)"),
    ],
    "G115": [
        (NCCL + "x.cuda()", 3, NCCL + "x.cuda()\ntorch.cuda.set_device(local)"),
        (NCCL + "x.to('cuda')", 3, NCCL + "x.to(f'cuda:{local}')"),
        (NCCL + "x.to('cuda')", 3, GLOO + "x.to('cuda')"),
    ],
}
PAIRS = [(code, *snippet) for code, snippets in SNIPPETS.items() for snippet in snippets]

BASE = "benchmark: training\nstrategies: [flat, ddp]\n"
CONFIGS = {
    "G201": [(BASE + "warmup: 1", 3, BASE + "warmup: 2"), (BASE + "# warmup\nwarmup: 0", 4, BASE)],
    "G202": [
        ("strategies:\n- flat\n- {ddp: {cap: 25MB}}", 3, "strategies:\n- {ddp: {cap: 10MB}}"),
        ("strategies: [{name: ddp, cap: [1MiB, 25MiB]}]", 1, "strategies: [{overlap_bucket: {cap: 25MB}}]"),
    ],
    "G203": [
        ("strategies: [{ddp: {options: [bf16]}}]", 1, "strategies: [{ddp: {options: [fp16]}}]"),
        (
            "backends: [nccl, gloo]\nstrategies: [{ddp: {options: [bf16]}}]",
            2,
            "backends: [nccl]\nstrategies: [{ddp: {options: [bf16]}}]",
        ),
    ],
    "G204": [
        (BASE + "threads: 2\nworld_sizes: [2, 4]", 3, BASE + "threads: 2\nworld_sizes: [2]"),
        (BASE + "world_sizes: [8]", 3, BASE + "world_sizes: [8]\nlinks: [2ms + 1GB/s]"),
        (BASE + "world_sizes: [8]", 3, BASE + "world_sizes: [8]\nbackends: [nccl]"),
        (BASE + "world_sizes: [8]", 3, "strategies: [flat]\nworld_sizes: [8]"),
    ],
    "G205": [(BASE + "steps: 1", 3, BASE + "steps: 2")],
}
CONFIG_PAIRS = [(code, *snippet) for code, snippets in CONFIGS.items() for snippet in snippets]
CORES = 4


@pytest.fixture
def found(tmp_path):
    def look(text, name="train.py"):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return [(hit.code, hit.line) for hit in lint(file, CORES)]

    return look


def test_every_trap_has_a_rule_and_a_snippet():
    assert {*SCRIPT_RULES, *CONFIG_RULES} == set(TRAPS) == {*SNIPPETS, *CONFIGS}


@pytest.mark.parametrize(("code", "bad", "line", "good"), PAIRS)
def test_script(found, code, bad, line, good):
    assert (code, line) in found(bad)
    assert code not in {hit for hit, _ in found(good)}


@pytest.mark.parametrize(("code", "bad", "line", "good"), CONFIG_PAIRS)
def test_configuration(found, code, bad, line, good):
    assert (code, line) in found(bad, "c.yaml")
    assert code not in {hit for hit, _ in found(good, "c.yml")}


def test_a_clean_training_script_is_clean(found):
    assert not found(CLEAN)


CLEAN = """
import os, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(Net().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in loader:
            torch.cuda.synchronize()
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            print(time.perf_counter() - start)
        if epoch % 2 == 0:
            torch.save(model.module.state_dict(), "model.pt")
"""


def test_a_line_can_let_a_trap_pass(found):
    assert not found(DDP + "Wrap(n, bucket_cap_mb=25)  # noqa: G101")
    assert found(DDP + "Wrap(n, bucket_cap_mb=25)  # noqa: G102") == [("G101", 2)]


def test_nothing_is_run(found, tmp_path):
    found(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(5)")
    assert not (tmp_path / "ran").exists()


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────
def test_verb_names_line_reason_and_remedy(tmp_path, capsys):
    bad, good = tmp_path / "bad.py", tmp_path / "good.py"
    bad.write_text(DDP + "Wrap(n, bucket_cap_mb=25)\n")
    good.write_text(CLEAN)
    assert call(["lint", str(good)]) == 0 and "nothing found" in capsys.readouterr().out
    assert call(["lint", str(bad), str(good)]) == 1
    out = capsys.readouterr().out
    assert f"{bad}:2: G101" in out and TRAPS["G101"].reason in out and TRAPS["G101"].remedy in out


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.py", b"", "empty"),
        ("a.py", b"def f(:\n", "line 1: not Python"),
        ("a.py", b"\x7fELF\0\0\xff\xfe", "not Python"),
        ("a.py", b"x = " + b"(" * 5000 + b")" * 5000, "not Python"),
        ("a.py", b"x = " + b"-" * 5000 + b"1", "not Python"),
        ("a.yaml", b"strategies: [", "line 1"),
        ("a.yaml", b"\xff\xfe\0", "not text"),
        ("a.yaml", b"operations: [all_reduce]", "no key 'strategies'"),
        ("a.yaml", b"- 1", "expected keys"),
        ("a.csv", b"1,2", "neither Python"),
    ],
)
def test_verb_on_what_cannot_be_read(tmp_path, capsys, name, content, words):
    file = tmp_path / name
    file.write_bytes(content)
    assert call(["lint", str(file)]) == 2
    out, err = capsys.readouterr()
    assert not out and words in err and name in err and err.count("\n") == 1


def test_verb_goes_on_after_a_file_that_is_missing(tmp_path, capsys):
    good = tmp_path / "good.py"
    good.write_text(CLEAN)
    assert call(["lint", str(tmp_path / "none.py"), str(good)]) == 2
    assert "nothing found" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["strategies: 5", "strategies: [1, null, {ddp: 3}, {ddp: {cap: 25M}}]\nsteps: many"])
def test_strange_values_are_left_to_whoever_uses_the_configuration(found, text):
    assert found(text, "c.yaml") == []
