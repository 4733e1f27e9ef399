"""An imported file is a run like any other: every verb works on it, and states which tool measured."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import foreign
from collbench.analyze import compare
from collbench.analyze.summaries import headlines, summarize
from collbench.model.records import Aggregate, Case, Run, Samples
from collbench.packages.gate.analyze import tables
from collbench.packages.gate.config import Expectation, Expectations
from collbench.packages.interop.importers import assembly, nccl_tests
from collbench.packages.interop.importers.assembly import REPEATED_CASES
from collbench.packages.interop.importers.readings import Options, read_source
from conftest import invented_run

CASE = Case("all_reduce", "nccl", 4, "float32", 1048576, metric="pipelined", depth=20)
WORDS = "mean of 20 calls back to back, averaged over ranks"


def aggregated(*times_s: float, case: Case = CASE) -> Run:
    """Return a run as `import` makes it."""
    launches = [Samples(case, k, 0.0, aggregate=Aggregate(t, WORDS, 20)) for k, t in enumerate(times_s, 1)]
    run = invented_run(launches, launches=len(times_s))
    facts = {"tool": ["nccl-tests 2.17.8"], "statistic": [WORDS], "verified": {"right": len(times_s)}, "files": []}
    return Run(Path("imported"), {**run.manifest, "imported": facts}, run.plan, [], launches)


# ── intervals of one number and of several ───────────────────────────────────────────────────────
def test_one_number_has_no_interval_and_decides_nothing():
    (summary,) = summarize(aggregated(1e-3))
    assert summary.time_s is not None and summary.time_s.value == 1e-3
    assert summary.time_s.kind == "none" and not summary.time_s.known
    assert summary.busbw == pytest.approx(1048576 / 1e-3 * 1.5)
    assert (summary.scatter, summary.reached, summary.skew_s, summary.imported) == (None, None, None, WORDS)
    old, new = aggregated(1e-3), aggregated(2e-3)
    both = headlines(old), headlines(new)
    undecided = compare.compare(old, new, *both)
    assert undecided.verdict == "INCONCLUSIVE" and not undecided.changes[0].ratio.known
    assert compare.compare(old, new, *both, noise_floor=0.1).verdict == "SLOWER"
    usual = {"operation": "all_reduce", "backend": "nccl", "world_size": 4, "size": 1048576, "metric": "pipelined"}
    expected = Expectations(expect=[Expectation(busbw="1 GB/s", **usual)])
    assert [c.verdict for c in tables.check(expected, headlines(old)).checks] == ["INCONCLUSIVE"]
    assert [c.verdict for c in tables.check(expected, headlines(aggregated(*[1e-3] * 4))).checks] == ["PASS"]


# ── files to a run ───────────────────────────────────────────────────────────────────────────────
def read(folder: Path, *texts: str):
    files = []
    for number, text in enumerate(texts):
        path = folder / f"all_reduce.{number}.txt"
        path.write_text(text)
        source = read_source(path)
        files.append((source, nccl_tests.read(source, Options())))
    return assembly.assemble("nccl-tests", "x", files)


def test_files_that_differ_in_other_text_only_are_launches_and_repeats_are_reported(tmp_path):
    texts = [f"{day}\n$ ./all_reduce_perf -b 1K > {day}.log\n{foreign.nccl()}" for day in ("monday", "tuesday")]
    assert read(tmp_path, *texts).plan.launches == 2
    assert read(tmp_path, foreign.nccl(), texts[0]).plan.launches == 2  # of one file no command is known
    with pytest.raises(assembly.ForeignError, match=r"all_reduce.1.txt: the same output as .*all_reduce.0.txt"):
        read(tmp_path, foreign.nccl(), foreign.nccl())
    rows = "\n".join(foreign.nccl_rows())
    imported = read(tmp_path, foreign.nccl().replace(rows, f"{rows}\n{rows}"))
    assert imported.plan.launches == 2
    values = {"count": 8, "operation": "all_reduce", "size_bytes": 1024}
    assert {"kind": REPEATED_CASES, "values": values} in imported.facts["notices"]


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────
def test_every_verb_works_on_an_imported_run(warm):
    (warm.folder / "all_reduce 4 GPUs.txt").write_text(foreign.nccl())
    done = warm("import", "nccl-tests", "all_reduce 4 GPUs.txt")
    assert done.returncode == 0 and not done.stderr, done.stderr
    first, *_ = done.stdout.splitlines()
    assert first == "imported all_reduce 4 GPUs.txt (nccl-tests 2.17.8): 4 rows → 8 results of 8 cases in 1 launch"
    (path,) = warm.runs()
    assert path.name.endswith("Z-all_reduce-4-GPUs") and f"results/{path.name}\n" in done.stdout
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["status"] == "complete" and manifest["imported"]["files"][0]["name"] == "all_reduce 4 GPUs.txt"
    assert (path / "config.yaml").read_text().startswith("# imported from nccl-tests 2.17.8")

    shown = warm("report", "--no-plots")
    assert shown.returncode == 0 and shown.stdout.split("report: results/")[0] in done.stdout
    rows = list(csv.DictReader(io.StringIO(warm("report", "--format", "csv").stdout)))
    assert {row["interval"] for row in rows} == {"none"} and {row["time_low_s"] for row in rows} == {""}
    for arguments, words in (
        (["report", "--plots"], "plots/"),
        (["diagnose"], "no rank can be named"),
        (["list"], "all_reduce, 4 ranks"),
        (["compare", path.name, path.name, "--format", "json", "--undecided", "pass"], '"verdict": "INCONCLUSIVE"'),
    ):
        other = warm(*arguments)
        assert other.returncode == 0 and words in other.stdout, other.stdout + other.stderr
    assert not list((warm.folder / "plots" / path.name).glob("modes*"))


def test_a_late_rank_of_real_ranks_is_named_from_the_file_of_another_tool(warm):
    """The file has durations of 4 ranks on gloo in the layout of nccl-tests -I 1 -z 3; rank 2 calls 40 ms late."""
    late = "faults=[{do: late, rank: 2, delay: 40ms}]"
    settings = ["world_sizes=[4]", "sizes=[4KiB]", "sampling.iterations=15", late]
    warm("run", warm.config(), "--no-plots", *(word for setting in settings for word in ("--set", setting)))
    (measured,) = warm.only_run().samples
    each = (measured.timed.duration_ns.T / 1e3).tolist()
    document = json.loads(foreign.nccl_json(ranks=4, args=["./all_reduce_perf", "-I", "1", "-z", "3"]))
    document["config"] |= {"per_iter_timing": "true", "blocking_collectives": "true"}
    del document["results"][1:]
    times = {"times_us": np.max(each, axis=0).tolist(), "per_process_max_times_us": each}
    document["results"][0] |= {"out_of_place_per_iter": times, "in_place_per_iter": times}
    (warm.folder / "x.json").write_text(json.dumps(document))
    assert warm("import", "nccl-tests", "x.json", "--name", "foreign").returncode == 0
    (path,) = (path for path in warm.runs() if path.name.endswith("foreign"))
    (finding,) = json.loads(warm("diagnose", path.name, "--format", "json").stdout)["findings"]
    assert (finding["kind"], finding["rank"]) == ("late rank", 2)


def test_a_run_on_the_hardware_of_a_table_is_checked_against_it(warm):
    """The run has four outputs at 10 GB/s, of 8 GPUs of a kind in the table and at the message size of the table."""
    sizes = (2**20, 2**34)
    text = foreign.nccl(ranks=8, sizes=sizes).replace("Example GPU", "NVIDIA H100 80GB HBM3")
    names = [f"{number}.txt" for number in range(4)]
    for number, name in enumerate(names):
        (warm.folder / name).write_text(text + "\n" * number)
    assert warm("import", "nccl-tests", *names, "--name", "h100").returncode == 0
    (path,) = warm.runs()
    held = warm("check", "azure", path.name)
    assert held.returncode == 1 and "other hardware" in held.stdout and "nd96isr_h100_v5.conf" in held.stdout
    other = warm("check", "google-cloud", path.name)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1), other.stderr
    assert "this is 8×NVIDIA H100 80GB HBM3 on nccl" in other.stderr


def test_wrong_results_are_kept_as_failures(warm):
    (warm.folder / "x.txt").write_text(foreign.nccl(wrong="5"))
    done = warm("import", "nccl-tests", "x.txt", "--name", "broken")
    assert done.returncode == 1 and "4 of 8 measurements failed" in done.stderr
    assert "nccl-tests counted 5 wrong elements" in (warm.runs()[0] / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nccl-tests", "missing.txt"], "missing.txt: no such file"),
        (["nccl-tests", "good.txt", "bad.txt"], "bad.txt: no table of results"),
        (["nccl-tests", "good.txt", "--name", "a/b"], "--name 'a/b'"),
        (["nccl-tests", "good.txt", "--operation", "allreduce"], "no such operation; allowed: all_reduce"),
        (["osu", "good.txt"], "no table of results of the OSU"),
    ],
)
def test_a_fault_is_one_line_and_leaves_nothing(warm, arguments, words):
    (warm.folder / "good.txt").write_text(foreign.nccl())
    (warm.folder / "bad.txt").write_text("hello\n")
    done = warm("import", *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr
    assert not (warm.folder / "results").exists()
