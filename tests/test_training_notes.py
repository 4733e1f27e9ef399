"""Notes of `plan`: a setting that measures something else is named with its remedy, and a sound one is not."""

import pytest

from bench.model.capabilities import Machine
from bench.training.config import parse
from bench.training.plan import expand, notes

HOST = Machine("h", 4, 2**34, 2**25, 0, {})


def notes_on(text: str, cores: int = 4) -> list[str]:
    raw = f"benchmark: training\nmodels: [nano]\n{text}".encode()
    return notes(expand(parse(raw, "x.yaml", [], "x"), HOST, 1), cores)


@pytest.mark.parametrize(
    ("trap", "said", "sound"),
    [
        ("strategies: [{ddp: {cap: 25MiB}}]", "not torch's default", "strategies: [ddp, {ddp: {cap: 10MiB}}]"),
        ("strategies: [{ddp: {cap: 25MB}}]", "drops the first bucket", "strategies: [{overlap_bucket: {cap: 25MB}}]"),
        ("strategies: [ddp]\nthreads: 4", "2 ranks of 4 computing threads on 4", "strategies: [ddp]\nthreads: 2"),
        ("strategies: [ddp]\nthreads: 4", "lower threads", "strategies: [naive, flat]\nthreads: 4"),
        ("strategies: [ddp]\nthreads: 4", "no core", "strategies: [naive_async, zero1]\nthreads: 4"),
        ("strategies: [ddp]\nthreads: 4", "emulated link", "strategies: [ddp]\nthreads: 4\nlinks: [1ms+1GB/s]"),
        ("strategies: [ddp]\nsteps: 1", "write steps: 2", "strategies: [ddp]\nsteps: 2"),
    ],
)
def test_a_trap_is_named_and_a_sound_setting_is_not(trap, said, sound):
    (note,) = notes_on(trap)
    assert said in note
    assert notes_on(sound) == []


def test_plan_prints_them(warm):
    (warm.folder / "one.yaml").write_text("benchmark: training\nmodels: [nano]\nstrategies: [ddp]\nsteps: 1\n")
    done = warm("plan", "one.yaml")
    assert done.returncode == 0 and "\nnote: steps: 1 puts one step" in done.stdout
