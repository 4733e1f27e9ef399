"""Predict the memory that a rank needs for training, before it is tried.

In: a scenario and its strategies. Out: bytes, or None for a model that is not a preset. Counted are parameters,
gradients, states of the optimizer and buckets; not activations, which grow with batch and sequence, nor torch itself.
Strategies take turns on one set of tensors (`rank/shared_tensors.py`); what torch's wrappers keep comes on top.
"""

from collections.abc import Sequence

from bench.catalog.dtypes import DTYPES
from bench.training.presets import find, parameters
from bench.training.records import Scenario, Strategy
from bench.training.strategies import kind

# Tensors of the size of the parameters that the optimizer keeps.
STATES = {"sgd": 1, "adamw": 2}


def rank_bytes(scenario: Scenario, strategies: Sequence[Strategy]) -> int | None:
    """Bytes of one rank."""
    preset = find(scenario.model) if scenario.shape is None and ":" not in scenario.model else None
    if preset is None:
        return None
    model, states = parameters(preset) * DTYPES[scenario.dtype].itemsize, STATES[scenario.optimizer]
    copies = sum(_copies(strategy, scenario.world_size, states) for strategy in strategies)
    # One set of parameters, gradients and states, and one of buckets or of a flattened tensor.
    return round(model * (3 + states + copies))


def _copies(strategy: Strategy, ranks: int, states: int) -> float:
    """What the strategy keeps of its own, in sizes of the model."""
    if strategy.name == "zero1":
        return 2 + (2 + states) / ranks  # flat parameters and gradients, and a rank's share of the rest
    if strategy.name == "fsdp2":
        return (2 + states) / ranks
    if strategy.name == "zero_redundancy":
        return 1 + states / ranks
    return 0 if kind(strategy).own else 1  # the buckets of DistributedDataParallel
