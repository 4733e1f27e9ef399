"""Files shipped with CollBench can be printed, and shells complete names."""

import json
from pathlib import Path
from urllib.parse import unquote

import pytest

from collbench.__main__ import main
from collbench.cli.shipped import PAGES
from collbench.model import pages
from conftest import ROOT


def test_a_configuration_that_is_printed_can_be_planned(warm):
    text = warm("show", "smoke").stdout
    schema = Path(unquote(text.splitlines()[0].partition("$schema=file://")[2]))
    assert schema.read_bytes() == (ROOT / "configs/schema.json").read_bytes()
    assert text.splitlines()[1:] == (ROOT / "configs/smoke.yaml").read_text().splitlines()[1:]
    assert warm("plan", warm.config(text, "my.yaml")).returncode == 0
    assert warm("show", "my.yaml").stdout == text
    assert json.loads(warm("schema").stdout) == json.loads((ROOT / "configs/schema.json").read_text())


def test_pages_are_listed_and_printed(warm):
    listed = warm("docs").stdout.splitlines()
    assert {"operators", "gloo-stalls", "reading"} <= {line.split()[0] for line in listed}
    assert all(len(line.split()) > 1 for line in listed)
    for name in ("gloo-stalls", "studies/gloo-stalls.md"):
        assert warm("docs", name).stdout == (ROOT / "docs/studies/gloo-stalls.md").read_text()


def test_pages_that_messages_name_exist(monkeypatch):
    for path in ROOT.glob("bench/collbench/**/*.py"):
        for part in path.read_text().split("page('")[1:] + path.read_text().split('page("')[1:]:
            name = part.split("'")[0].split('"')[0]
            if name.replace("/", "").replace("-", "").isalpha():
                assert (PAGES / f"{name}.md").exists(), f"{path.name}: {name}"
    docs = "https://localhost/docs/"
    for address, named in (("", "collbench docs gloo-stalls"), (docs, f"{docs}studies/gloo-stalls/")):
        monkeypatch.setattr(pages, "ADDRESS", address)
        assert pages.page("studies/gloo-stalls") == named


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("collbench run glo", {"gloo", "gloo-mpi", "gloo-stalls"}),
        ("collbench plan my", {"my.yaml"}),
        ("collbench report 2026", {"20261128T000000Z-tiny"}),
        ("collbench sch", {"schema"}),
        ("collbench check az", {"azure"}),
        ("collbench docs oper", {"operators"}),
        ("collbench advise --model xl", {"xl-2025", "xl-2026"}),
    ],
)
def test_shells_complete_configurations_runs_and_verbs(tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").touch()
    run = Path("results/20261128T000000Z-tiny")
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    monkeypatch.setenv("_COLLBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        main([])
    assert set(capsys.readouterr().out.split()) == expected
