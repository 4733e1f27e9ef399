"""A good file gives its values; a bad file gives one line with file, key, value and the allowed values.

Every key is explained with a valid example, and the JSON Schema for editors accepts what `plan` accepts.
"""

import json
import re
from itertools import pairwise
from typing import Annotated

import pytest
from jsonschema import Draft202012Validator
from pydantic import create_model
from ruamel.yaml import YAML

from collbench.config.fields import Strict, fields_of
from collbench.config.models import Config, load, parse
from collbench.model.errors import ConfigError
from collbench.packages.gate import config as expected
from conftest import ROOT
from tools import configuration_page as page

GOOD = "backends: [gloo]\nworld_sizes: [2, 4]\noperations: [all_reduce]\nsizes: {from: 1KiB, to: 64MiB, factor: 4}\n"


def message(extra: str = "", sets=(), base: str = GOOD) -> str:
    with pytest.raises(ConfigError) as error:
        parse((base + extra).encode(), "c.yaml", sets)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("extra", "parts"),
    [
        ("sampling: {warmpu: 3}", ["c.yaml:5:12: sampling.warmpu", "did you mean 'warmup'", "allowed: warmup,"]),
        ("sampling: {iterations: 10, relative_error: 0.1}", ["relative_error would be ignored"]),
        ("timeout: 5M", ["timeout", "unknown unit 'M'"]),
        ("link: 25G", ["link", "bits or bytes a second", "25 Gbit/s or 25 GB/s"]),
        ("faults: [{do: explode, rank: 1}]", ["faults[0].do: unknown fault explode", "raise, exit"]),
        ("launches: 3\nlaunches: 4", ['c.yaml:6:1: key "launches" is there twice']),
        ("x: !!python/object/apply:os.system [ls]", ["c.yaml:5:4", "python/object"]),
        ("? [a, b]\n: 3", ["c.yaml:5:3", "plain word"]),
    ],
)
def test_each_mistake_is_one_line_that_says_how_to_fix_it(extra, parts):
    assert all(part in message(extra) for part in parts), message(extra)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("sizes=[1M]", ["--set", "sizes[0]", "1MB", "1MiB"]),
        ("sizes=[1MB, 1MB]", ["listed twice"]),
        ("sizes={from: 2MiB, to: 1MiB}", ["larger than"]),
        ("sizes={from: 1KiB, to: 4KiB, step: 1KiB, factor: 2}", ["keep only one"]),
        ("sizes={from: 1KiB, to: 1GiB, step: 1KiB}", ["use a larger step"]),
        ("sizes={from: 1KiB, to: 1GiB, factor: 1.01}", ["use a larger factor"]),
        ("a.b=3", ["--set a.b=3: a: unknown key"]),
        ("=3", ["key.path=value"]),
        ("launches.b=3", ["--set"]),
    ],
)
def test_overrides_are_checked_like_the_file(override, parts):
    text = message(sets=[override])
    assert all(part in text for part in parts), text


def test_a_fault_that_does_nothing_on_gpus_is_refused_for_them():
    slow = "faults=[{do: slow, rank: 0}]"
    assert "faults[0].do: slow keeps a core busy" in message(sets=[slow, "backends=[gloo, nccl]"])
    parse(GOOD.encode(), "c", [slow, "backends=[gloo]"])


def test_bombs_and_giants_are_refused_quickly():
    letters = "abcdefghijklmnopqrstu"
    twice = (f"{name}: &{name} [*{before}, *{before}]" for before, name in pairwise(letters))
    assert "aliases" in message(base="\n".join(["a: &a [x, x]", *twice]))
    assert "larger than 64 KiB" in message(base="x: " + "y" * 10_000_000)
    assert "nested too deeply" in message(base="x: " + "[" * 20_000 + "]" * 20_000)
    with pytest.raises(ConfigError, match="UTF-8"):
        parse(b"\xff\xfe", "c")


# ── descriptions and examples ────────────────────────────────────────────────────────────────────
# A line's options have the same keys as a configuration, so the page does not explain them twice.
SECTIONS = [model for group in (page.OF_CONFIGURATIONS, page.OF_TABLES) for _, model in group.values()]


@pytest.mark.parametrize("model", [*SECTIONS, expected.Options], ids=lambda model: model.__name__)
def test_each_key_is_explained_with_valid_examples(model):
    for key, field in fields_of(model).items():
        assert field.description and field.description[-1] == "." and field.examples, key
        section = create_model("One", __base__=Strict, key=(Annotated[field.annotation, *field.metadata, "a key"], ...))
        for example in field.examples:
            section.model_validate({"key": example})


def test_the_examples_of_pages_are_valid():
    texts = [path.read_text() for path in (page.PAGE, ROOT / "docs/training.md")]
    collectives, training = (re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0].encode() for text in texts)
    assert parse(collectives, "page").name == "nightly"
    assert len(parse(training, "page").training.strategies) == 4


# ── the schema ───────────────────────────────────────────────────────────────────────────────────
SCHEMA = Config.model_json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def complaints(text: str) -> list[str]:
    document = YAML(typ="safe", pure=True).load(text)
    return [f"{list(error.path)}: {error.message:.200}" for error in VALIDATOR.iter_errors(document)]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_configuration_is_valid_and_names_its_schema(path):
    config, raw = load(path)
    assert config.name == path.stem
    assert raw.startswith(b"# yaml-language-server: $schema=schema.json") and complaints(raw.decode()) == []


def test_the_kept_file_is_the_schema_of_the_model():
    assert json.loads((ROOT / "configs/schema.json").read_text()) == json.loads(json.dumps(SCHEMA))
