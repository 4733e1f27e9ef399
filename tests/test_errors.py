"""A user's mistake is answered by one line: the mistaken input, the allowed input, and the command to type."""

import shutil
import unicodedata

import pytest

from collbench.cli.app import VERBS
from collbench.store import folders
from conftest import ROOT
from test_cli import one_line


@pytest.fixture
def kept(warm):
    """Return a command line with a run named `kept` in results/."""
    shutil.copytree(ROOT / "docs/example/before", warm.folder / "results/20260101T000000Z-kept")
    return warm


def test_without_words_the_help_is_shown(warm):
    done = warm()
    assert (done.returncode, done.stderr) == (0, "") and all(verb in done.stdout for verb in VERBS)


def test_a_folder_that_is_no_run_is_found_and_says_what_it_lacks(kept):
    (kept.folder / "results/half").mkdir()
    (kept.folder / "results/half/plan.json").write_text("{}")
    for name in ("half", "results/half"):
        one_line(kept("report", name), 2, "results/half: not a run folder", "no manifest.json, environment.json")
    assert "half: not a run folder: it has no manifest.json" in kept("list").stdout


@pytest.mark.parametrize("broken", ["manifest.json", "plan.json", "environment.json"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": 1,\n "b": ', "2:7: damaged JSON: Expecting value"),
        ('{"a": 1', "damaged JSON: Expecting ',' delimiter"),
        ("{", "damaged JSON: Expecting property name"),
        ('{"a": "b', "damaged JSON: Unterminated string"),
    ],
)
def test_damaged_json_is_named_by_line_and_by_what_is_missing(kept, broken, content, words):
    (kept.only_run().path / broken).write_text(content)
    one_line(kept("report", "kept"), 2, f"{broken}:", words)


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


def test_a_run_in_place_of_a_configuration_leads_to_report(kept):
    one_line(kept("run", "results/20260101T000000Z-kept"), 2, "collbench report results/20260101T000000Z-kept")
    one_line(kept("run", "nosuch"), 2, "no configuration has this name; allowed: bits, ")


def test_names_may_have_letters_of_any_alphabet(warm):
    decomposed = unicodedata.normalize("NFD", "größe")
    done = warm("run", warm.config(name=f"{decomposed}.yaml"), "--no-plots")
    assert done.returncode == 0, done.stderr
    assert warm.only_run().manifest["name"] == "größe" and warm("report", "größe").returncode == 0
