"""Write docs/develop/architecture.md: the flow of data, and every module with the first sentence of its docstring.

`make docs` runs it.
"""

import ast
import sys
from pathlib import Path

from tools import rooms

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "develop" / "architecture.md"
BENCH = ROOT / "bench" / "collbench"

FLOW = """# Architecture

```text
    configs/x.yaml   a job's recording   other tools' output
          │ config        │ replay              │ interop
          ▼               ▼                     │
        Config ─ planning ▶ Plan ── store ─▶ results/<run>/
                            │
               launch       │  parent processes: no torch, never inside a timing
          (fork server; torchrun, srun, mpirun, Ray, Kubernetes)
                            ▼
                rank × world_size: torch, buffers, barriers, stamps
                            │  one line a case and launch, appended and synced
                            ▼
        results/<run>/samples.jsonl       the facts; never rewritten
    ────────────────────────┼──────────── what is above never imports what is below
                            ▼
         Run ── analyze ─▶ Summary, Fit, Finding, Comparison (conclusions)
                            ▼
               report: View ─▶ terminal, documents, CSV, JSON …, pictures (results/<run>/, plots/<run>/)
```

A room says in which process its lines run, and what they may import:

| room | holds | runs in | may import |
|---|---|---|---|
| `model/` | the data: facts, conclusions, errors, units | anywhere | nothing |
| `catalog/` | tables of what exists: operations, strategies, dtypes, backends, metrics | anywhere | `model/` |
| `stats/` | intervals and verdicts: numbers in, numbers out | anywhere | `model/` |
| `config/` | YAML to a validated configuration | parents | `model/`, `catalog/` |
| `planning/`, `store/` | the plan of a run; its folder | parents; ranks for footprint and encoding | the rooms above |
| `machine/`, `protocol/` | what this machine is; how parents and ranks talk | both; no torch | `model/`, `catalog/` |
| `launch/` | start ranks, watch and end them | parents; no torch | the rooms above; not `rank/` |
| `rank/` | what one rank does | ranks; loads torch | as `launch/`, but not it |
| `analyze/` | facts to conclusions | the parent, after measuring | the first six |
| `importers/`, in packages | other tools' files to facts | the parent | the first six, and `machine/` |
| `report/` | conclusions to text and pictures | the parent, after measuring | the first six |
| `cli/` | the verbs; the only place that prints and picks exit codes | the parent | everything but `rank/` |

The core measures collectives, compares runs and says who is slow. Each further ability is a package of its own below
`packages/`:

PACKAGES

A package has rooms of the same names, which keep the same law inside. It may use the core, and no other package. The
core knows it only by its record in `packages/__init__.py`, a table that the core reads by name, so that no import runs
upwards: operations, a section of the configuration, planning, analysis, a part of the report, pictures, verbs. The
options of its cases are a value of its own type in `Case.own`.

Facts (`model/records.py`) and conclusions (`model/conclusions.py`) are different types, and facts are kept: everything
below the line can be deleted and made again from `samples.jsonl`. Read `model/records.py` first.

There is one pipeline. A case is an operation with its options: those of the table in `Case` (`model/records.py`), and
the operation's own (`OwnOptions`). Configurations, keys, plans, labels and importers read these tables. A step of
training is a case of the operation `training_step`, whose own options are strategy, model and link. The strategies of a
launch are measured in the same rounds; the parts of a step are the inner times of an iteration, as the calls of a
replayed job are. So every verb that serves cases serves steps of training.

Tables take the place of `if` chains: operations, options, metrics, backends, pictures, importers, strategies, verbs. To
add one is a line in its table and a function; [CONTRIBUTING.md](../../CONTRIBUTING.md) says which files.
`tests/test_architecture.py` keeps all this.

To read the code in the order of the flow: `model/records.py`, `config/models.py`, `planning/plan.py`,
`launch/sweep.py`, `rank/main.py`, `rank/timing.py`, `analyze/summaries.py`, `stats/verdicts.py`, `report/document.py`;
for steps of training also `training/step_records.py`, `training/rank/step.py`, `training/analyze/steps.py`.

## The modules

`make docs` makes this list from the first sentence of each module's docstring.
"""


def first_sentence(path: Path) -> str:
    """Return the first sentence of the module's docstring, on one line and without its full stop."""
    head = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    for end in (". ", "? "):
        head = head.split(end)[0] + (end.strip() if end in head and end == "? " else "")
    return head.rstrip(".")


def page() -> str:
    """Return the whole page."""
    listed = [
        f"| `{name}/` | {first_sentence(rooms.PACKAGE / 'packages' / name / '__init__.py')} |"
        for name in rooms.PACKAGES
    ]
    table = "\n".join(["| package | what it adds |", "|---|---|", *listed])
    lines = [FLOW.replace("PACKAGES", table)]
    folders = sorted({path.parent for path in BENCH.rglob("*.py")}, key=lambda folder: folder.parts)
    for folder in folders:
        name = folder.relative_to(ROOT).as_posix()
        lines.append(f"### {name}/\n\n{first_sentence(folder / '__init__.py')}.\n")
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        lines += [f"- `{path.name}`: {first_sentence(path)}" for path in modules]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
