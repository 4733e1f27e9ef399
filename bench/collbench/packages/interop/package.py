"""Define the package `interop`: two verbs, sentences for notices, and formats of reports."""

from collbench.catalog.package import Package, Verb
from collbench.model.deferred import Deferred

INTEROP = Package(
    "interop",
    verbs={
        "perf": Verb(
            "packages.interop.cli.perf:perf",
            "Measure",
            "Measure as nccl-tests does: its flags, its columns line by line, then how far to trust them.",
            "perf all_reduce -b 8 -e 128M -f 2 -g 2 --backend gloo",
        ),
        "import": Verb(
            "packages.interop.cli.import_:import_",
            "Prepare",
            "Make a run from the output of another tool.",
            "import nccl-tests all_reduce_perf.log",
        ),
    },
    formats={
        "nccl-tests": Deferred("packages.interop.report.nccl_tests:document"),
        "nccl-tests-json": Deferred("packages.interop.report.nccl_files:nccl_tests_json"),
        "rccl-tests-json": Deferred("packages.interop.report.nccl_files:rccl_tests_json"),
        "openmetrics": Deferred("packages.interop.report.dashboards:openmetrics"),
        "jsonl": Deferred("packages.interop.report.dashboards:jsonl"),
        "bencher": Deferred("packages.interop.report.dashboards:bencher"),
    },
)
