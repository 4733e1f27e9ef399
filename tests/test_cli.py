"""The commands as a user types them: exit codes, one-line errors, and no heavy import where none is needed."""

import shutil
import subprocess
import sys

import pytest

from bench import store
from conftest import ROOT, TINY


def one_line(done, code: int, *words: str) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    for word in words:
        assert word in done.stderr


@pytest.fixture
def example(cli):
    shutil.copytree(ROOT / "docs/example", cli.folder / "example")
    return cli


@pytest.mark.parametrize(
    "verb", [["--help"], ["plan", "tiny.yaml"], ["list"], ["list", "operations"], ["list", "backends"]]
)
def test_light_verbs_load_nothing_heavy(cli, verb):
    cli.config()
    code = f"import sys; sys.argv = ['run_bench.py', *{verb!r}]; import run_bench\n"
    code += "try: run_bench.main()\nexcept SystemExit as e: assert not e.code, e.code\n"
    code += "heavy = {'torch', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules); assert not heavy, heavy"
    environment = {**cli.environment, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=cli.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not (cli.folder / "results").exists()


def test_usage_errors_exit_with_2(cli):
    assert cli("nonsense").returncode == 2
    assert cli("plan").returncode == 2
    assert cli("list", "everything").returncode == 2
    one_line(cli("run"), 2, "--resume")
    one_line(cli("run", "a.yaml", "--resume", "x"), 2, "not both")
    one_line(cli("run", "no.yaml"), 2, "no.yaml")
    one_line(cli("run", cli.config("a: 1")), 2, "unknown key")
    one_line(cli("run", cli.config(), "--set", "launches=0"), 2, "--set: launches")
    assert not (cli.folder / "results").exists()


def test_what_cannot_be_measured_exits_with_3_and_leaves_nothing(cli):
    config = cli.config(TINY.replace("[gloo]", "[nccl]").replace("world_sizes: [2]", "world_sizes: [4096]"))
    done = cli("run", config)
    one_line(done, 3, "nothing can be measured here")
    assert not (cli.folder / "results").exists() and not (cli.folder / "plots").exists()
    assert cli("plan", config).returncode == 3


def test_a_run_ends_with_table_report_and_plots(cli):
    done = cli("run", cli.config())
    assert done.returncode == 0, done.stderr
    run = cli.only_run()
    assert "|" in done.stdout and "How measured: isolated" in done.stdout
    for name in ("report.md", "report.html", "summary.csv"):
        assert str((run.path / name).relative_to(cli.folder)) in done.stdout
    pictures = sorted(path.name for path in (cli.folder / "plots" / run.name).iterdir())
    assert "time.png" in pictures and "time.svg" in pictures
    for link in ("time.png", "over-time.png"):
        assert f"../../plots/{run.name}/{link}" in (run.path / "report.md").read_text()
    assert "data:image/png" in (run.path / "report.html").read_text()
    assert run.name in cli("list").stdout and "GB/s" in cli("list").stdout
    again = cli("run", "--resume", run.name, "--no-plots")
    assert again.returncode == 0 and len(cli.only_run().samples) == 2


def test_report_and_plots_rebuild_everything_from_the_samples(example):
    folder = example.folder / "example" / "before"
    text = (folder / "report.md").read_text() if (folder / "report.md").exists() else ""
    for name in ("report.md", "report.html", "summary.csv"):
        (folder / name).unlink(missing_ok=True)
    assert example("report", "example/before").returncode == 0
    assert text in {"", (folder / "report.md").read_text()}
    assert example("plots", "example/before").returncode == 0
    assert (example.folder / "plots/before/time.png").is_file()
    for form, start in (("csv", "key,"), ("json", "["), ("markdown", "# gloo")):
        assert example("report", "example/before", "--format", form).stdout.startswith(start)


def test_two_runs_are_compared(example):
    done = example("compare", "example/before", "example/after")
    assert done.returncode == 0 and "after / before" in done.stdout
    assert (example.folder / "plots/before-vs-after/comparison.png").is_file()
    assert example("plots", "example/before", "example/after").returncode == 0
    assert example("compare", "example/before", "example/after", "--format", "json").stdout.startswith("[")


def test_broken_runs_are_one_line(example):
    one_line(example("report", "nothing"), 2, "no such run")
    one_line(example("report"), 2, "no runs here yet")
    one_line(example("report", "."), 2, "not a run folder")
    folder = example.folder / "example" / "before"
    store.update_manifest(folder, schema=99)
    one_line(example("report", str(folder)), 2, "schema 99", "up to 1")
    store.update_manifest(folder, schema=1)
    samples = folder / "samples.jsonl"
    lines = samples.read_bytes().split(b"\n")
    samples.write_bytes(b"\n".join([lines[0], lines[1][:100], *lines[2:]]))
    one_line(example("compare", str(folder), "example/after"), 2, "line 2: damaged")
    (folder / "plan.json").unlink()
    one_line(example("plots", str(folder)), 2, "plan.json")


def test_a_reader_that_leaves_early_is_no_error(example):
    command = f"{sys.executable} {ROOT / 'run_bench.py'} report example/before --format csv | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=example.folder, capture_output=True, text=True)
    assert done.stdout.startswith("key,") and "Traceback" not in done.stderr


def test_the_doctor_says_what_can_be_measured(cli):
    done = cli("doctor")
    assert done.returncode == 0, done.stdout
    for word in (
        "torch",
        "gloo",
        "nccl",
        "cores",
        "memory",
        "governor",
        "load",
        "shared memory",
        "open files",
        "trial",
    ):
        assert word in done.stdout
    assert "summed 4 KiB correctly" in done.stdout


def test_the_schema_is_printed(cli):
    assert '"backends"' in cli("schema").stdout
