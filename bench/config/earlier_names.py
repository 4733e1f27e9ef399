"""Translate the names of earlier versions in configurations and runs into current names.

In: plain values of a configuration, or of a run of schema 3 or older. Out: the same values under current names; for a
configuration also a note for each name that has changed. Values that already have current names pass unchanged.
"""

from collections.abc import Mapping
from typing import Any

from bench.model.records import Json

OPERATIONS = {"ring": "sendrecv_ring", "exchange": "sendrecv_pair"}
# Suffix of a division into groups, old and current: one group calls after the other.
ONE_BY_ONE, SERIAL = ":one", ":serial"
TRAINING_KEYS = {"foreign": "max_foreign_cpu", "ladder": "call_sizes"}
STRATEGY_KEYS = {"closes": "bucket_boundary"}
# In runs of the training benchmark: kinds of facts, and keys of plans and facts.
KINDS = {
    "Checked": "StrategyChecks",
    "Alone": "CommunicationOnly",
    "Rung": "CallSizePoint",
    "Broken": "LaunchFailure",
}
PLAN_KEYS = {"bouts": "order", "left": "skips", **TRAINING_KEYS}
FACT_KEYS = {"stretches": "blocks", "foreign": "foreign_cpu", "flights": "calls"}


# ── configurations ───────────────────────────────────────────────────────────────────────────────
def configuration(data: Json) -> tuple[Json, list[str]]:
    """A configuration under current names, and a note for each name that has changed."""
    notes: list[str] = []
    if data.get("benchmark") == "training":
        data = _keys(data, TRAINING_KEYS, notes)
        if isinstance(data.get("strategies"), list):
            data["strategies"] = [_strategy(one, notes) for one in data["strategies"]]
        return data, notes
    changed = dict(data)
    for key, renamed in (("operations", _operation), ("groups", _division)):
        if isinstance(data.get(key), list):
            changed[key] = [renamed(value, notes) for value in data[key]]
    return changed, notes


def key(name: str) -> str:
    """The earlier name of a key; the same name if it has always been called so."""
    return next((old for old, new in {**TRAINING_KEYS, **STRATEGY_KEYS}.items() if new == name), name)


def _keys(data: Json, names: Mapping[str, str], notes: list[str]) -> Json:
    for old, new in names.items():
        # A file with both keys is wrong: the old key stays in it and is refused as unknown.
        if old in data and new not in data:
            notes.append(_note(old, new))
            data = {new if key == old else key: value for key, value in data.items()}
    return data


def _strategy(one: Any, notes: list[str]) -> Any:
    if not isinstance(one, dict):
        return one
    return {name: _keys(of, STRATEGY_KEYS, notes) if isinstance(of, dict) else of for name, of in one.items()}


def _operation(name: Any, notes: list[str]) -> Any:
    today = OPERATIONS.get(name, name) if isinstance(name, str) else name
    if today != name:
        notes.append(_note(name, today))
    return today


def _division(text: Any, notes: list[str]) -> Any:
    if not isinstance(text, str) or not text.endswith(ONE_BY_ONE):
        return text
    notes.append(_note(ONE_BY_ONE, SERIAL))
    return text.removesuffix(ONE_BY_ONE) + SERIAL


def _note(old: str, new: str) -> str:
    return f"{old!r} is now called {new!r}; the old name is still read"


def expectation(line: Any) -> Any:
    """A line of a table of expectations under current names."""
    return {**line, "operation": _operation(line.get("operation"), [])} if isinstance(line, dict) else line


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────
def case(data: Json) -> Json:
    """The fields of a `records.Case` under current names."""
    if data["op"] in OPERATIONS:
        data = {**data, "op": OPERATIONS[data["op"]]}
    groups = data.get("groups", "")
    if groups.endswith(ONE_BY_ONE):
        data = {**data, "groups": groups.removesuffix(ONE_BY_ONE) + SERIAL}
    return data


def notes_on_cases(plan: Json) -> tuple[str, ...]:
    """A note for each old name of an operation or a division into groups in a plan.json of collectives."""
    notes: list[str] = []
    for one in plan["cases"]:
        _operation(one["op"], notes)
        _division(one.get("groups"), notes)
    return tuple(dict.fromkeys(f"recorded by an earlier version: {note}" for note in notes))


def notes_on_strategies(plan: Json) -> tuple[str, ...]:
    """A note if the labels of strategies in a plan.json of the training benchmark have changed."""
    strategies = [strategy for launch in plan.get("bouts", []) for strategy in launch["strategies"]]
    if all(strategy.get("closes", "after") == "after" for strategy in strategies):
        return ()
    return (f"recorded by an earlier version: {_note('closes before', _label('closes before'))}",)


def training_plan(data: Json) -> Json:
    """The fields of a `training.records.TrainingPlan` under current names."""
    if "bouts" not in data:
        return data
    plan: Json = _renamed({PLAN_KEYS.get(key, key): value for key, value in data.items()}, STRATEGY_KEYS)
    plan["order"] = [{"number" if key == "launch" else key: v for key, v in one.items()} for one in plan["order"]]
    return plan


def training_fact(data: Json) -> Json:
    """A line of samples.jsonl of the training benchmark, with its kind, under current names."""
    old = {**data, "kind": KINDS.get(data["kind"], data["kind"])}
    strategy = old.get("strategy")
    if isinstance(strategy, str) and "closes before" in strategy:
        old["strategy"] = _label(strategy)
    if "stretches" in old or old["kind"] == "Timeline":
        old = _renamed(old, FACT_KEYS)
    for block in old.get("blocks", ()):
        block["strategy"] = _label(block["strategy"])
    return old


def _label(strategy: str) -> str:
    """The current label of a strategy whose buckets end before the cap."""
    return strategy.replace("closes before", "ends before the cap")


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The same nested lists and objects, with keys renamed at every depth."""
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, names) for inner in value]
    return value
