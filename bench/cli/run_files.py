"""Write the report of a run: documents into the run's folder, pictures below plots/."""

from pathlib import Path
from typing import Any

from bench import store
from bench.cli.app import PLOTS
from bench.cli.benchmarks import Benchmark
from bench.report.pictures import Catalogue


def write_report(benchmark: Benchmark, run: Any, analysis: Any, plots: bool) -> list[Path]:
    """Write the documents, with pictures if `plots` or if some exist. Returns their paths and the pictures' folder."""
    # A side of a run has a name with a colon, which is no name for a folder everywhere.
    folder = PLOTS / (run.name.replace(":", "-") if "side" in run.manifest else run.path.resolve().name)
    catalogue: Catalogue = benchmark.pictures.value
    pictures = catalogue.draw(run, analysis, folder) if plots else catalogue.drawn(folder)
    written = benchmark.documents(run, analysis, pictures, folder)
    for name, content in written.items():
        store.write(run.path / name, content)
    return [*(run.path / name for name in written), *([folder] if pictures else [])]
