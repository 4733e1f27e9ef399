"""The code of examples/notebook.ipynb runs in order, from its folder, and gives the outputs in the file.

`jupyter nbconvert --to notebook --execute --inplace examples/notebook.ipynb` makes the outputs again.
"""

import ast
import json
import shutil

import matplotlib.pyplot as plt

from collbench.notebook import load_run
from conftest import ROOT

NOTEBOOK = ROOT / "examples/notebook.ipynb"


def test_the_notebook_runs_and_has_the_outputs_that_it_gives(monkeypatch):
    monkeypatch.chdir(NOTEBOOK.parent)
    plt.switch_backend("agg")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    for number, cell in enumerate(cells, 1):
        exec("".join(cell["source"]), names)
        assert cell["outputs"] and cell["execution_count"] == number
    summary, warnings = (["".join(cell["outputs"][-1]["data"]["text/plain"]) for cell in cells])[:2]
    assert ast.literal_eval(warnings) == list(names["run"].warnings)
    assert len(names["run"].summary) == 20 and len(plt.get_fignums()) == 2
    assert all(f" {value:.6f} " in summary for value in names["run"].summary.time_s)
    assert len(names["slowest"].columns) == names["run"].summary.launches.max()
    assert sum("image/png" in output["data"] for cell in cells for output in cell["outputs"]) == 2
    plt.close("all")


def test_a_run_without_a_result_has_the_columns(tmp_path):
    for name in ("before", "training"):
        path = shutil.copytree(ROOT / "docs/example" / name, tmp_path / name)
        full = load_run(path)
        (path / "samples.jsonl").write_bytes(b"")
        run = load_run(path)
        assert len(run.summary) == len(run.samples) == 0
        assert set(full.summary.columns) <= set(run.summary.columns)
        assert list(full.samples.columns) == list(run.samples.columns)
