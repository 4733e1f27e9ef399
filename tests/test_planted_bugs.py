"""Each invariant of training finds a mistake that was planted in a copy of the code, and no other invariant fails."""

import shutil
import subprocess
import sys

import pytest

from collbench.packages.training.synchronisation import strategy_in
from collbench.store import folders
from conftest import ROOT

SYNCS, TORCHS, RUNNER = (
    f"packages/training/rank/{name}.py" for name in ("synchronisers", "torch_synchronisers", "runner")
)
DIVIDED = "                self._tensor(at).div_(self._transport.world_size)\n"
FIRST_ONLY = DIVIDED.replace("self._tensor(at).div_(", "self._tensor(at).div_(1 if at else ")
ALONE = "    REFERENCE: lambda build: Synchroniser(build.module),\n"
OVER = "    return transport.future(bucket.buffer())\n"
CAP = "by_caps(nbytes, (strategy.cap_bytes,))"
BACK = "        for tensor, mean in zip(tensors, UNFLATTEN(flat, tensors), strict=True):\n"
BUT_LAST = "            if flat.numel() < 10**6 or tensor is not tensors[-1]:\n    "
KEPT = "            tensor.copy_(mean)\n"
MINE = "        return build_with([self.mine], **settings)\n"
WITH_ALL = (
    MINE.replace("return", "made =")
    + """
        made.state[nn.Parameter(self._flat)] = {"momentum_buffer": torch.zeros_like(self._flat)}
        return made
"""
)
# File, original text, planted text, strategies, models and links, the wrong strategy, invariants that find it.
PLANTED = {
    "the last of large gradients": (
        SYNCS, BACK + KEPT, BACK + BUT_LAST + KEPT,
        "naive, flat", "models: [tiny]", "flat", {"I1"},
    ),
    "only the first bucket": (
        SYNCS, DIVIDED, FIRST_ONLY, "naive, {overlap_bucket: {cap: 1MiB}}", "models: [tiny]", "overlap_bucket", {"I2"},
    ),
    "only the first bucket, a large cap": (
        SYNCS, DIVIDED, FIRST_ONLY, "naive, {overlap_bucket: {cap: 4MiB}}", "models: [tiny]", "overlap_bucket", {"I2"},
    ),
    "no control": (
        SYNCS, ALONE, ALONE.replace("Synchroniser(build.module)", "AfterBackward(build, AfterBackward.naive)"),
        "naive", "models: [nano]", "none", {"I4"},
    ),
    "sent twice": (
        TORCHS, OVER, "    transport.future(bucket.buffer())\n" + OVER,
        "naive, ddp", "models: [nano], links: [1ms + 1GB/s]", "ddp", {"I5"},
    ),
    "half the cap": (
        SYNCS, CAP, CAP.replace("cap_bytes", "cap_bytes // 2"),
        "naive, {overlap_bucket: {cap: 1MiB}}", "models: [tiny]", "overlap_bucket", {"I6"},
    ),
    "a state for all": (TORCHS, MINE, WITH_ALL, "naive, zero1", "models: [nano]", "zero1", {"I12"}),
}  # fmt: skip
CONFIG = """
backends: [gloo]
world_sizes: [2]
launches: 1
training: {MODELS, batch: 2, sequence: 8, rounds: 2, steps: 1, warmup: 3, strategies: [STRATEGIES]}
"""


@pytest.mark.slow
@pytest.mark.parametrize("title", PLANTED)
def test_a_planted_mistake_is_found_by_its_invariant_and_no_other_invariant(tmp_path, title):
    file, right, wrong, strategies, models, culprit, finders = PLANTED[title]
    package = tmp_path / "bench" / "collbench"
    shutil.copytree(ROOT / "bench" / "collbench", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "run_bench.py", tmp_path)
    text = (package / file).read_text()
    assert text.count(right) == 1
    (package / file).write_text(text.replace(right, wrong))
    (tmp_path / "c.yaml").write_text(CONFIG.replace("MODELS", models).replace("STRATEGIES", strategies))
    command = [sys.executable, "run_bench.py", "run", "c.yaml", "--no-plots"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    (path,) = (tmp_path / "results").glob("*-c")
    steps = folders.read(path).samples
    failed = {
        strategy_in(entry.case).name: {check.invariant for check in entry.checks if check.ok is False}
        for entry in steps
    }
    assert {name: names for name, names in failed.items() if names} == {culprit: finders}
