"""The functions that ranks of a job run, and how their arguments travel: no message can name another function.

In: the name of a function, or of a `Worker`. Out: the `Worker`. A module is imported when its argument is converted.
"""

from dataclasses import dataclass

from bench.model.deferred import Deferred


@dataclass(frozen=True)
class Worker:
    """One of these functions. target: as `Launcher.fork` takes it. to_json, from_json: of its argument.

    imports(argument) → "module:name" of each object of the user that the rank will import. variables(argument) →
    (name, value) of each environment variable that it will set.
    """

    target: str
    to_json: Deferred
    from_json: Deferred
    imports: Deferred
    variables: Deferred


WORKERS = {
    "collectives": Worker(
        "bench.rank.main:main",
        Deferred("store.encoding:job_to_json"),
        Deferred("store.encoding:job_from_json"),
        Deferred("store.encoding:imports_of"),
        Deferred("store.encoding:variables_of"),
    ),
    "training": Worker(
        "bench.training.rank.main:main",
        Deferred("training.encoding:job_to_json"),
        Deferred("training.encoding:job_from_json"),
        Deferred("training.encoding:imports_of"),
        Deferred("training.encoding:variables_of"),
    ),
}


def name_of(target: str) -> str:
    """The name of the worker with this function; raises ValueError if it is none."""
    for name, worker in WORKERS.items():
        if worker.target == target:
            return name
    raise ValueError("a job starts workers only")
