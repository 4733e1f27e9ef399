"""What NCCL wrote in a launch of its own becomes a column, and sentences on where its choice changes."""

from dataclasses import replace

import numpy as np

from bench.analyze.analysis import analyze
from bench.analyze.summaries import choice_changes, summarize
from bench.launch import sweep
from bench.launch.supervisor import LaunchOutcome
from bench.model.records import Case, Launch
from bench.report import findings, tables
from bench.report.plots import sizes
from conftest import invented_run, samples

HEAD = "node-1:2041:2113 [0] NCCL INFO "
WAYS = f"{HEAD}Channel 00/24 : 0[0] -> 1[1] via P2P/CUMEM\n"
CASES = tuple(Case("all_reduce", "nccl", 8, "float32", 2**k) for k in (10, 20, 21))


def line(size, algorithm, protocol, channels):
    return (
        f"{HEAD}AllReduce: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..{channels - 1}}}\n"
    )


def measured():
    return invented_run([samples(case, 1, np.full((8, 8), 100_000)) for case in CASES])


def told():
    texts = (WAYS, line(2**10, "RING", "LL", 1), line(2**20, "NVLS", "SIMPLE", 16), line(2**21, "NVLS", "SIMPLE", 16))
    return sweep._chosen(Launch("nccl", 8, 0, CASES), LaunchOutcome(chosen=texts))


def test_the_last_call_of_each_case_counts():
    found = told()
    assert found[CASES[0].key]["algorithm"] == "RING" and found[CASES[0].key]["channels"] == 1
    assert found[CASES[2].key]["transports"] == ["P2P/CUMEM"]


def test_a_launch_that_told_nothing_chooses_nothing():
    assert sweep._chosen(Launch("nccl", 8, 0, CASES), LaunchOutcome()) == {}


def test_one_launch_of_each_kind_is_probed_and_only_where_nccl_tells():
    launches = [Launch(backend, 2, number, CASES) for backend in ("gloo", "nccl") for number in (1, 2)]
    (probed,) = sweep._to_probe(launches)
    assert (probed.backend, probed.number, probed.cases) == ("nccl", 0, CASES)
    barrier = replace(CASES[0], op="barrier", size_bytes=0)
    assert sweep._to_probe([Launch("nccl", 2, 1, (barrier,))]) == []


def test_the_report_says_what_was_chosen_and_where_that_changes():
    run = measured()
    run.environment[:] = [{"launches": [{"chosen": told()}]}]
    summaries = summarize(run)
    assert [one.chosen for one in summaries] == ["RING LL, 1 channel", *["NVLS SIMPLE, 16 channels"] * 2]
    assert "NVLS SIMPLE, 16 channels" in tables.details(summaries)
    (sentence,) = choice_changes(summaries)
    assert sentence == (
        "all_reduce float32 8 ranks: RING LL, 1 channel from 1 KiB on; NVLS SIMPLE, 16 channels from 1 MiB on"
    )


def test_a_picture_marks_where_the_choice_changes():
    run = measured()
    analysis = analyze(run)
    texts = ("RING LL, 1 channel", *["NVLS SIMPLE, 16 channels"] * 2)
    told = [replace(one, chosen=text) for one, text in zip(analysis.summaries, texts, strict=True)]
    (figure,) = sizes.time_against_size(run, replace(analysis, summaries=told))
    assert [note.get_text() for note in figure.axes[0].texts] == ["RING LL", "NVLS SIMPLE"]
    (plain,) = sizes.time_against_size(run, analysis)
    assert not plain.axes[0].texts


def test_without_nccl_there_is_no_column():
    run = measured()
    assert "NCCL chose" not in tables.details(summarize(run)) and choice_changes(summarize(run)) == []
    assert "What NCCL chose" not in "".join(findings.folded(analyze(run)))
