"""Parts of a run of two sides, whose launches are measured one at a time: the plan, facts and cases of a side."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.records import Plan, Samples

if TYPE_CHECKING:
    from bench.analyze.pairs import TimedCase


def one_launch(plan: Any, number: int) -> Any:
    """The plan of one launch."""
    order = tuple(launch for launch in plan.order if launch.number == number)
    return dataclasses.replace(plan, order=order, launches=1)


def facts_of_launch(facts: Sequence[Any], number: int) -> list[Any]:
    """The facts of one launch."""
    return [fact for fact in facts if fact.launch == number]


def of_collectives(facts: Sequence[Samples], plan: Plan) -> "list[TimedCase]":
    """The cases of a side, with the names that tables have for them."""
    from bench.analyze import pairs  # here: loads numpy and scipy
    from bench.report.labels import label

    return pairs.of_collectives(facts, plan.cases, label)
