"""The memory of each strategy alone: bytes that torch's allocator gave out, compared with the size of its tensors."""

import threading
from dataclasses import astuple

import pytest
import torch

from collbench.analyze.analysis import analyze
from collbench.model.records import Case
from collbench.packages.training.analyze.steps import _most
from collbench.packages.training.catalog.presets import find, gradients
from collbench.packages.training.conclusions import training_of
from collbench.packages.training.planning.memory import alone_bytes
from collbench.packages.training.rank.memory import peaks
from collbench.packages.training.step_records import RankMemory
from collbench.packages.training.synchronisation import StepOptions, Strategy
from collbench.store import folders
from conftest import CommandLine, with_value

MODEL = sum(gradient.nbytes for gradient in gradients(find("micro")))
CONFIG = """
backends: [gloo]
world_sizes: [1, 2]
launches: 1
training: {models: [micro], batch: 1, sequence: 8, rounds: 2, steps: 1, optimizer: adamw, memory: true, strategies:
  [naive, flat, {overlap_bucket: {cap: 64KiB}}, ddp, zero1, zero_redundancy, fsdp2, {import: "broken_syncs:Hoarding"}]}
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory, launcher):
    warm = CommandLine(tmp_path_factory.mktemp("memory"), launcher)
    done = warm("run", warm.config(CONFIG), "--no-plots")
    assert done.returncode == 0, done.stderr
    (path,) = warm.runs()
    run = folders.read(path)
    return done, run, analyze(run)


def results(measured, ranks=2):
    (scenario,) = [s for s in training_of(measured[2]).scenarios if s.scenario.case.world_size == ranks]
    return {result.label: result for result in scenario.results}


def test_allocations_of_a_function_are_counted_with_released_ones():
    def work(note):
        kept = torch.empty(10**6)
        torch.empty(5 * 10**6)
        note("first")
        kept = torch.cat([kept, kept])
        note("second")
        kept = torch.cat([kept, kept, kept, kept])
        note("third")

    noted = peaks(torch.device("cpu"), work)
    assert list(noted.items()) == [("first", 24 * 10**6), ("second", 24 * 10**6), ("third", 40 * 10**6)]


def test_memory_that_another_thread_releases_makes_the_peaks_unknown():
    def work(note):
        handed = [torch.empty(10**7)]
        thread = threading.Thread(target=handed.clear)
        thread.start()
        thread.join()
        note("end")

    assert peaks(torch.device("cpu"), work) is None


@pytest.mark.slow
def test_peaks_grow_from_the_model_to_the_optimizers_states_and_are_no_less_than_computed(measured):
    by_label = results(measured)
    # If a thread of gloo happens to release memory, the memory of a strategy is unknown.
    memory = {name: result.memory for name, result in by_label.items() if result.memory is not None}
    assert {"none", "naive", "ddp"} <= set(memory)
    naive = memory["naive"]
    assert MODEL <= naive.initial_bytes < 1.1 * MODEL
    assert naive.before_bytes >= 2 * MODEL and naive.after_bytes >= 4 * MODEL
    for name, sizes in memory.items():
        assert list(astuple(sizes)) == sorted(astuple(sizes)), name
        assert 0.99 * (by_label[name].computed_bytes or 0) <= sizes.peak_bytes, name
    assert by_label["fsdp2"].computed_bytes is None
    # A sharded optimizer keeps half of AdamW's two states on each of two ranks.
    assert memory["ddp"].after_bytes - memory["zero_redundancy"].after_bytes == pytest.approx(MODEL, rel=0.2)
    hoarding = memory["broken_syncs:Hoarding"]  # memory that grows from step to step
    assert hoarding.peak_bytes - hoarding.after_bytes > 1.9 * MODEL


@pytest.mark.slow
def test_one_rank_is_the_base_of_others_and_the_tables_of_the_assignment_have_no_second_copies(measured):
    done, run, analysis = measured
    alone = results(measured, ranks=1)
    assert {result.strategy.name for result in alone.values()} == {"none"} and alone["none"].step is not None
    points = {(p.case.own.strategy.name, p.case.world_size): p for p in training_of(analysis).scaling}
    naive = points["naive", 2]
    assert points["none", 1].efficiency is None and naive.base_ranks == 1
    assert naive.efficiency.value == pytest.approx(alone["none"].step.value / naive.step.value)
    assert naive.speed_up == pytest.approx(2 * naive.efficiency.value)
    assert naive.examples_per_s.value == pytest.approx(2 / naive.step.value)
    report = (run.path / "report.md").read_text()
    for text in (done.stdout, report):
        memory = text.split("Memory of a rank\n")[1].partition("\n\n#")[0]
        assert "model made" in memory and "naive" in memory and "none again" not in text and "ddp again" not in text
        assert "Scaling over numbers of ranks\n" in text
    assert "| naive " in report and "± " in report


def test_computed_memory_counts_parameters_gradients_states_and_buckets():
    case = Case("training_step", "gloo", 4, "float32", 0, own=StepOptions(model="micro", optimizer="adamw"))
    copies = {"none": 4, "flat": 5, "overlap_bucket": 5, "ddp": 5, "zero1": 4, "zero_redundancy": 3.5}
    caps = {"overlap_bucket": 2**20}
    assert {name: alone_bytes(case, Strategy(name, cap_bytes=caps.get(name))) / MODEL for name in copies} == copies
    assert alone_bytes(case, Strategy("ddp", options=("gradient_as_bucket_view",))) == 4 * MODEL
    assert alone_bytes(case, Strategy("ddp", options=("fp16",))) is None
    assert alone_bytes(with_value(case, "model", "users_model:build"), Strategy("flat")) is None
    # The rank with most is shown.
    assert _most([RankMemory(1, 5, 6, 7), RankMemory(2, 3, 6, 9)]) == RankMemory(2, 5, 6, 9)
