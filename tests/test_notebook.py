"""The code of examples/notebook.ipynb runs in order, from its folder, on the run that is kept."""

import json

import matplotlib.pyplot as plt

from conftest import ROOT

NOTEBOOK = ROOT / "examples/notebook.ipynb"


def test_the_notebook_runs_and_draws(monkeypatch):
    monkeypatch.chdir(NOTEBOOK.parent)
    plt.switch_backend("agg")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "a notebook is kept without outputs"
            exec("".join(cell["source"]), names)
    assert len(names["run"].summary) == 20 and len(plt.get_fignums()) == 2
    assert len(names["slowest"].columns) == names["run"].summary.launches.max()
    plt.close("all")
