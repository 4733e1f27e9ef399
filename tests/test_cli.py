"""The commands as a user types them: exit codes, one-line errors, and no heavy import that is not needed."""

import json
import shutil
import subprocess
import sys
import tempfile
import unicodedata

import pytest

from collbench.cli.app import VERBS
from collbench.store import folders
from conftest import ROOT, TINY


def one_line(done, code: int, *words: str) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    for word in words:
        assert word in done.stderr


@pytest.fixture
def example(warm):
    """Return a command line in a folder with the examples, and with `small`: `before` with its first five cases."""
    shutil.copytree(ROOT / "docs/example", warm.folder / "example", ignore=shutil.ignore_patterns("images"))
    small = shutil.copytree(warm.folder / "example/before", warm.folder / "example/small")
    plan = json.loads((small / "plan.json").read_text())
    plan["order"] = [launch for launch in plan["order"] if 0 in launch["cases"]]
    (small / "plan.json").write_text(json.dumps(plan))
    lines = [json.loads(line) for line in (small / "samples.jsonl").read_text().splitlines()]
    write(small, [line for line in lines if line["case"]["world_size"] == 2 and "scheduling" in line["case"]])
    return warm


def write(folder, lines) -> None:
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def in_a_process(cli, code: str) -> subprocess.CompletedProcess:
    environment = {**cli.environment, "PYTHONPATH": str(ROOT / "bench")}
    return subprocess.run([sys.executable, "-c", code], cwd=cli.folder, env=environment, capture_output=True, text=True)


LIGHT = ["--help", "plan tiny.yaml", "list", "list operations", "list backends", "list models"]


LIGHT = ["", "plan tiny.yaml", "list", "list operations", "list backends", "list models"]
ON_RUNS = ["report before --no-plots", "diagnose before", "compare before before --format line"]


def test_light_verbs_load_nothing_heavy_and_verbs_on_runs_load_no_torch(cli):
    cli.config()
    shutil.copytree(ROOT / "docs/example/before", cli.folder / "before")
    code = f"""if True:
        import sys
        from collbench.__main__ import main
        for verbs, heavy in (({LIGHT}, {{'torch', 'pandas', 'matplotlib', 'scipy'}}),
                             ({ON_RUNS}, {{'torch', 'matplotlib'}})):
            for verb in verbs:
                print('verb', verb)
                assert main(verb.split()) == 0
                assert not heavy & set(sys.modules), (verb, heavy & set(sys.modules))
    """
    done = in_a_process(cli, code)
    assert done.returncode == 0, done.stderr
    _, help_, *others = done.stdout.split("verb ")
    assert all(verb in help_ for verb in VERBS)  # without words, the help is shown
    assert all(len(text) > 40 for text in others)
    assert not (cli.folder / "results").exists()


def test_usage_errors_exit_with_2(warm):
    tiny = warm.config()
    assert [warm(*words.split()).returncode for words in ("nonsense", "plan", "list everything", "compare")] == [2] * 4
    for words, *parts in (
        ("run", "CONFIG"),
        ("perf -q", "requires an argument", "(see: collbench perf --help)"),
        ("run x --set", "requires an argument", "(see: collbench run --help)"),
        ("resume x", "no such run"),
        ("run no.yaml", "no.yaml"),
        ("run nosuch", "no configuration has this name; allowed: bits, "),
        (f"run {tiny} --set a=1", "--set a=1: a: unknown key"),
        (f"run {tiny} --set launches=0", "--set launches=0: launches"),
        ("report nothing", "no such run"),
        ("report", "no runs here yet"),
        ("report .", "not a run folder"),
    ):
        one_line(warm(*words.split()), 2, *parts)
    assert not (warm.folder / "results").exists()


def test_an_error_that_nobody_expected_exits_with_70_and_keeps_its_traceback(warm, monkeypatch, tmp_path):
    """The exit code is not 1, which a pipeline reads as slower."""

    def broken(*_):
        raise EOFError("not\nforeseen")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "runs", broken)
    done = warm("list")
    one_line(done, 70, "EOFError", "not foreseen")
    (file,) = tmp_path.glob("collbench-error-*")
    assert str(file) in done.stderr and "in broken" in file.read_text()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    one_line(warm("list"), 70, "EOFError")


@pytest.mark.parametrize("module", ["collbench.cli", "collbench.cli.look"])
def test_ctrl_c_while_packages_are_loaded_exits_with_130_and_says_nothing(cli, module):
    """The import of the module raises KeyboardInterrupt."""
    done = in_a_process(
        cli,
        "import sys, importlib.abc\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from collbench.__main__ import main; sys.exit(main(['list']))\n",
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_what_cannot_be_measured_exits_with_3_and_leaves_nothing(warm):
    config = warm.config(TINY.replace("[gloo]", "[nccl]").replace("world_sizes: [2]", "world_sizes: [4096]"))
    done = warm("run", config)
    one_line(done, 3, "nothing can be measured here")
    assert not (warm.folder / "results").exists() and not (warm.folder / "plots").exists()
    assert warm("plan", config).returncode == 3


def test_a_run_of_any_alphabet_ends_with_table_report_and_plots(warm):
    done = warm("run", warm.config(name=f"{unicodedata.normalize('NFD', 'größe')}.yaml"))
    assert done.returncode == 0, done.stderr
    run = warm.only_run()
    assert run.manifest["name"] == "größe" and warm("report", "größe", "--format", "csv").returncode == 0
    last = done.stdout.rstrip().splitlines()[-3:]
    assert "───" in done.stdout and any(line.startswith("Trust: ") for line in last)
    assert str((run.path / "report.html").relative_to(warm.folder)) in done.stdout
    assert {"report.md", "report.html", "summary.csv"} <= {path.name for path in run.path.iterdir()}
    pictures = sorted(path.name for path in (warm.folder / "plots" / run.name).iterdir())
    assert "time.png" in pictures
    for link in ("time.png", "over-time.png"):
        assert f"../../plots/{run.name}/{link}" in (run.path / "report.md").read_text()
    assert "data:image/png" in (run.path / "report.html").read_text()
    assert run.name in warm("list").stdout and "GB/s" in warm("list").stdout
    folders.update_manifest(run.path, status="interrupted")  # Ctrl-C while the report was written
    again = warm("resume", run.name, "--no-plots")
    assert again.returncode == 0 and len(warm.only_run().samples) == 2
    assert folders.read_manifest(run.path)["status"] == "complete"


@pytest.mark.slow
def test_a_run_goes_into_the_folder_that_is_asked_for(warm):
    config = warm.config()
    folder = warm.folder / "here" / "mine"
    done = warm("run", config, "--output", "here/mine", "--quiet", "--set", "world_sizes=[2]")
    assert done.returncode == 0 and done.stdout.count("\n") == 1 and "with 2 ranks" in done.stdout, done.stderr
    assert done.stderr == "" and not warm.runs()
    assert {"report.md", "report.html", "summary.csv", "plots"} <= {path.name for path in folder.iterdir()}
    assert (folder / "plots/time.png").is_file() and "](plots/time.png)" in (folder / "report.md").read_text()
    (folder / "report.md").unlink()
    assert warm("report", "here/mine", "--no-plots").returncode == 0 and (folder / "report.md").is_file()
    one_line(warm("run", config, "--output", "here/mine"), 2, "here/mine", "not empty")
    samples = folder / folders.SAMPLES
    first, _ = samples.read_bytes().splitlines(keepends=True)
    samples.write_bytes(first)
    assert "\nINCOMPLETE: 1 of 2" in warm("report", "here/mine", "--no-plots").stdout
    done = warm("resume", "here/mine", "--quiet", "--no-plots")
    assert done.returncode == 0 and done.stdout.count("\n") == 1 and "INCOMPLETE" not in done.stdout
    assert len(folders.read(folder).samples) == 2
    # A copy is not the folder that --output named.
    shutil.copytree(folder, warm.folder / "copy")
    (warm.folder / "copy/report.md").unlink()
    assert warm("report", "copy", "--no-plots").returncode == 0 and not (warm.folder / "copy/report.md").exists()


def test_many_runs_on_a_side_have_short_names_and_a_picture_changes_no_exit_code(example):
    names = [[f"2026112{day}T232340Z-nccl-all-reduce-h100-{side}" for day in range(5)] for side in "ab"]
    for name in (name for side in names for name in side):
        shutil.copytree(example.folder / "example/small", example.folder / name)
    command = ["compare", *map(",".join, names), "--undecided", "pass"]
    done = example(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{names[0][0]} and 4 more → {names[1][0]} and 4 more\n")
    assert len([*example.folder.glob("plots/*/comparison.png")]) == 1
    full = example(*command, "--format", "markdown").stdout
    assert all(name in full for side in names for name in side)
    labels = example(*command, "--format", "openmetrics").stdout
    assert 'before="nccl-all-reduce-h100-a and 4 more"' in labels and "T232340Z" not in labels
    shutil.rmtree(example.folder / "plots")
    (example.folder / "plots").touch()
    done = example(*command)
    assert done.returncode == 0 and "\nSAME: 5 cases same" in done.stdout
    assert done.stderr.startswith("note: no pictures: plots/") and done.stderr.count("\n") == 1


def slowed(example, name: str = "slow", factor: float = 2.0, started: str | None = None) -> str:
    """Copy the small example so that every operation took `factor` times as long; return the copy's path."""
    folder = shutil.copytree(example.folder / "example/small", example.folder / "example" / name)
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        line["timed"]["duration_ns"] = [[round(factor * ns) for ns in rank] for rank in line["timed"]["duration_ns"]]
    write(folder, lines)
    if started:
        folders.update_manifest(folder, started=started)
    return f"example/{name}"


def test_a_slower_run_exits_with_1_and_a_faster_one_with_0(example):
    slow = slowed(example)
    done = example("compare", "example/small", slow, "--min-change", "10%", "--format", "markdown")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("SLOWER: 2 times as long")
    assert "smallest change that matters is 10 %" in done.stdout
    assert example("compare", slow, "example/small", "--format", "line").returncode == 0
    starts = {"json": "{", "csv": "key,name,before_s,after_s,verdict", "junit": "<?xml"}
    for form, start in starts.items():
        printed = example("compare", "example/small", slow, "--format", form)
        assert (printed.returncode, printed.stderr) == (1, "") and printed.stdout.startswith(start)
        assert form != "junit" or "<failure" in printed.stdout


def test_a_run_that_lacks_planned_cases_does_not_pass(example):
    path = example.folder / slowed(example, "half", 1.0)
    lines = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    write(path, [line for line in lines if line["case"]["size_bytes"] > 16384])
    done = example("compare", "example/small", "example/half")
    assert done.returncode == 3 and "\nINCOMPLETE: 2 cases" in done.stdout, done.stdout[:300]
    junit = example("compare", "example/small", "example/half", "--format", "junit")
    assert junit.returncode == 3 and junit.stdout.count("only before: not measured yet") == 2


def test_several_runs_make_a_trend(example):
    days = [f"2026-12-{day:02d}T00:00:00+00:00" for day in range(1, 6)]
    later = [slowed(example, f"day{i}", 1 + 0.01 * i, day) for i, day in enumerate(days)]
    done = example("compare", "example/after", *reversed(later), "example/small")
    assert done.returncode == 0, done.stderr
    assert "changed level over 7 runs" in done.stdout.splitlines()[0]
    assert done.stdout.index("day0") < done.stdout.index("day4")
    assert list((example.folder / "plots").glob("*-to-day4/trend.png"))
    for form, start in (("csv", "key,"), ("json", "{")):
        assert example("compare", *later, "--format", form).stdout.startswith(start)
    one_line(example("compare", *later, "--format", "junit"), 2, "trend")
    one_line(example("compare", *later, "--noise-floor", "5%"), 2, "--noise-floor", "two runs")
    one_line(example("compare", *later, later[0]), 2, "named twice: day0")


def test_a_run_is_checked_against_a_table(example):
    line = "{operation: all_reduce, backend: gloo, world_size: 2, size: %s, busbw: %s}"

    def table(*lines):
        return example.config("expect:\n" + "".join(f"  - {text}\n" for text in lines), "table.yaml")

    reached = table(line % ("16MiB", "1 MB/s"))
    done = example("check", reached, "example/before")
    assert done.returncode == 0 and done.stdout.startswith("PASS: before"), done.stderr
    missed = table(line % ("16MiB", "1 MB/s"), line % ("1MiB", "500 GB/s"), line % ("3KiB", "1 MB/s"))
    assert example("check", missed, "example/before", "--undecided", "pass").returncode == 1
    done = example("check", missed, "example/before")
    assert done.returncode == 1 and done.stdout.startswith("FAIL: before, 3 expected: 1 fail, 1 missing, 1 pass")
    for form, start in (("json", "{"), ("csv", "key,verdict"), ("junit", "<?xml")):
        done = example("check", missed, "example/before", "--format", form)
        assert done.returncode == 1 and done.stdout.startswith(start)
    one_line(example("check", table(line % ("3KiB", "1 MB/s")), "example/before"), 3, "no case that")
    one_line(example("check", table(line % ("3KiB", "1M")), "example/before"), 2, "expect[0].busbw")
    networks = table(line % ("16MiB", "1 MB/s, fabric: slow net"), line % ("16MiB", "500 GB/s, fabric: fast net"))
    assert example("check", f"{networks}:slow", "example/before").returncode == 0
    assert example("check", f"{networks}:fast", "example/before").returncode == 1
    one_line(example("check", f"{networks}:other", "example/before"), 2, "slow net", "fast net")


def test_a_table_that_is_neither_met_nor_missed_gives_3_unless_asked_otherwise(example):
    document = json.loads(example("report", "example/before", "--format", "json").stdout)
    (measured,) = (
        line["busbw_bytes_per_s"] / 1e9
        for line in document["cases"]
        if (line["world_size"], line["size_bytes"]) == (2, 16 << 20) and "batch" not in line["key"]
    )
    table = example.config(
        "expect: [{operation: all_reduce, backend: gloo, world_size: 2, size: 16MiB, "
        f"busbw: {measured / 0.9:.4f} GB/s, tolerance: 10%}}]",
        "open.yaml",
    )
    done = example("check", table, "example/before")
    assert done.stdout.startswith("INCONCLUSIVE") and done.returncode == 3, done.stdout
    assert example("check", table, "example/before", "--undecided", "fail").returncode == 1
    junit = example("check", table, "example/before", "--undecided", "pass", "--format", "junit")
    assert junit.returncode == 0 and "<skipped" in junit.stdout and "<failure" not in junit.stdout


def test_what_cannot_be_compared_is_one_line(example):
    before, after = "example/before", "example/after"
    for runs, options, code, *parts in (
        (f"{before},{before} {after}", "", 2, "named twice"),
        (before, "", 2, "nothing to be compared with", "check TABLE RUN"),
        (f"{before} {after}", "--min-change 5", 2, "--min-change", "5%"),
        (f"{before} {after}", "--across size", 2, "--across size"),
        (f"{before} {after}", "--across backend", 2, "same backend"),
        (f"{before} {after}", "--across world_size", 2, "both 2 and 4"),
        (f"{before} {before}", "--across world_size=2,8", 3, "it has 2, 4"),
    ):
        one_line(example("compare", *runs.split(), *options.split()), code, *parts)
    done = example("compare", before, before, "--across", "world_size=2,4")
    assert done.returncode in {0, 1} and "2 ranks → 4 ranks" in done.stdout, done.stderr


def test_runs_that_are_not_ours_are_not_written_to(example):
    """A kept run may be in version control."""
    folder = example.folder / "example/small"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = example("report", "example/small")
    assert done.returncode == 0 and "plots/small/report.html" in done.stdout.split()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert (example.folder / "plots/small/time.png").is_file()
    assert "(./time.png)" in (example.folder / "plots/small/report.md").read_text()
    assert "data:image" in (example.folder / "plots/small/report.html").read_text()


def test_a_reader_that_leaves_early_is_no_error(example):
    command = f"{sys.executable} {ROOT / 'run_bench.py'} report example/before --format csv | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=example.folder, capture_output=True, text=True)
    assert done.stdout.startswith("key,") and "Traceback" not in done.stderr


def test_the_doctor_says_what_can_be_measured(warm):
    done = warm("doctor")
    assert done.returncode == 0, done.stdout
    for word in ("torch", "gloo", "nccl", "mpi", "cores", "memory", "load", "shared memory", "open files"):
        assert word in done.stdout
    assert "summed 4 KiB correctly" in done.stdout


@pytest.fixture
def kept(warm):
    """Return a command line with a run named `kept` in results/."""
    shutil.copytree(ROOT / "docs/example/before", warm.folder / "results/20260101T000000Z-kept")
    return warm


def test_a_folder_that_is_no_run_is_found_and_says_what_it_lacks(kept):
    (kept.folder / "results/half").mkdir()
    (kept.folder / "results/half/plan.json").write_text("{}")
    for name in ("half", "results/half"):
        one_line(kept("report", name), 2, "results/half: not a run folder", "no manifest.json, environment.json")
    assert "half: not a run folder: it has no manifest.json" in kept("list").stdout


def test_a_run_without_a_sample_says_how_to_measure_it(kept):
    path = kept.only_run().path
    hint = "collbench resume results/20260101T000000Z-kept"
    (path / "samples.jsonl").write_bytes(b"")
    done = kept("report", "kept")
    assert done.returncode == 0 and "before its first sample" in done.stdout
    one_line(kept("compare", "kept", "kept"), 3, "before its first sample", hint)
    (path / "samples.jsonl").unlink()
    one_line(kept("report", "kept"), 2, "no samples.jsonl", hint)
    with folders.Journal(path):
        pass  # a resume makes it again
    assert kept("report", "kept").returncode == 0
