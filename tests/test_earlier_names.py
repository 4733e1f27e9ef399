"""Names of earlier versions are read as today's, with one note each; today's names pass unchanged."""

import pytest

from bench.config import earlier_names
from bench.config.models import parse
from bench.model.errors import ConfigError
from bench.training import config as training

COLLECTIVES = b"{backends: [gloo], world_sizes: [4], sizes: [1KiB], operations: [%s], groups: [%s]}"
TRAINING = b"{benchmark: training, models: [nano], strategies: [{overlap_bucket: {cap: 1MiB, %s: before}}], %s: 10%%}"


def test_old_operations_and_divisions_mean_the_same():
    old = parse(COLLECTIVES % (b"ring, exchange", b"'contiguous:2:one'"), "x")
    assert old == parse(COLLECTIVES % (b"sendrecv_ring, sendrecv_pair", b"'contiguous:2:serial'"), "x")


def test_old_keys_of_training_mean_the_same():
    old = training.parse(TRAINING % (b"closes", b"foreign"), "x", ["ladder.parameters=10"], "x")
    assert old == training.parse(
        TRAINING % (b"bucket_boundary", b"max_foreign_cpu"), "x", ["call_sizes.parameters=10"], "x"
    )


def test_an_old_key_beside_the_new_one_is_refused():
    with pytest.raises(ConfigError, match="foreign: unknown key"):
        training.parse(TRAINING % (b"closes", b"foreign"), "x", ["max_foreign_cpu=0.1"], "x")


@pytest.mark.parametrize(
    ("data", "notes"),
    [
        ({"operations": ["ring", "all_reduce"], "groups": ["strided:2:one"]}, ["'ring'", "':one'"]),
        ({"operations": ["sendrecv_ring"], "groups": ["world"]}, []),
        ({"benchmark": "training", "strategies": ["flat", {"ddp": {"cap": 1}}], "foreign": 0.1}, ["'foreign'"]),
        ({"operations": "ring", "strategies": 3, "benchmark": 7}, []),
    ],
)
def test_each_old_name_is_one_note(data, notes):
    changed, said = earlier_names.configuration(data)
    assert [note.split()[0] for note in said] == notes
    assert earlier_names.configuration(changed)[1] == []
