"""Compute the memory of training steps: of a model, its optimizer and its buckets, from their sizes alone."""

from collections.abc import Sequence

from collbench.catalog.dtypes import DTYPES
from collbench.model.records import Case
from collbench.packages.training.catalog.presets import find, parameters
from collbench.packages.training.catalog.strategies import hooks_of, kind
from collbench.packages.training.synchronisation import Scenario, Strategy, options_of

# Number of parameter-sized tensors that an optimizer keeps.
STATES = {"sgd": 1, "adamw": 2}
# Strategies that send flat tensors of several gradients; the option by which torch's DDP keeps gradients in them.
FLATTENING, WITHOUT_COPY = frozenset({"flat", "overlap_bucket", "plan", "ddp", "local_sgd"}), "gradient_as_bucket_view"


def model_bytes(case: Case) -> int | None:
    """Return the bytes of the parameters of a training step's model; None for a model that is not a preset."""
    preset = find(options_of(case).model) if ":" not in options_of(case).model else None
    return parameters(preset) * DTYPES[case.dtype].itemsize if preset else None


def alone_bytes(case: Case, strategy: Strategy) -> int | None:
    """Return the bytes of a rank that trains with one strategy: parameters, gradients, optimizer states, buckets.

    Activations and temporary allocations of libraries are not included. None if unknown: for a model that is not a
    preset, a user's synchroniser, communication hooks, and fully_shard, whose memory depends on how many parameters it
    gathers ahead.
    """
    model, states, ranks = model_bytes(case), STATES[options_of(case).optimizer], case.world_size
    if model is None or strategy.imported is not None or strategy.name == "fsdp2" or hooks_of(strategy):
        return None
    copies = 2.0 + states
    if strategy.name == "zero1":
        copies = 3 + (2 + states) / ranks  # flat parameters (the model's are views), gradients, flat gradients
    elif strategy.name == "zero_redundancy":
        copies = 3 + states / ranks
    elif strategy.name in FLATTENING and WITHOUT_COPY not in strategy.options:
        copies += 1
    return round(model * copies)


def rank_bytes(scenario: Scenario, strategies: Sequence[Strategy], alone: bool = False) -> int | None:
    """Return the bytes of memory that one rank needs; None for a model that is not a preset.

    Parameters, gradients, optimizer states and buckets are counted; activations, which grow with batch and sequence,
    and torch itself are not. Strategies take turns on one set of tensors (`training/rank/transport.py`); tensors that
    torch's wrappers keep are added. alone: whether the memory of each strategy alone is measured, in addition to the
    tensors that all strategies share.
    """
    case = scenario.case
    model, states, ranks = model_bytes(case), STATES[options_of(case).optimizer], case.world_size
    if scenario.shape is not None or model is None:
        return None
    # One set of parameters, gradients and states, and one set of buckets or one flattened tensor.
    copies = 3.0 + states
    for strategy in strategies:
        if strategy.name == "zero1":
            copies += 2 + (2 + states) / ranks  # flat parameters and gradients, and a rank's share of the rest
        elif strategy.name == "fsdp2":
            copies += (2 + states) / ranks
        elif strategy.name == "zero_redundancy":
            copies += 1 + states / ranks
        elif not kind(strategy).own:
            copies += 1  # the buckets of DistributedDataParallel
    largest_alone = max((alone_bytes(case, strategy) or round(model * copies) for strategy in strategies), default=0)
    return round(model * copies) + (largest_alone if alone else 0)
