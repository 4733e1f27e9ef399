"""The JSON Schema for editors accepts configurations that `plan` accepts: shipped files, and examples of the pages."""

import json
import re

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from collbench.config.models import Config, parse
from collbench.model.errors import ConfigError
from conftest import ROOT

VALIDATOR = Draft202012Validator(Config.model_json_schema())
SHIPPED = sorted(path for path in (ROOT / "configs").glob("*.yaml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
]


def complaints(text: str) -> list[str]:
    document = YAML(typ="safe", pure=True).load(text)
    return [f"{list(error.path)}: {error.message:.200}" for error in VALIDATOR.iter_errors(document)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration(path):
    assert complaints(path.read_text()) == []


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_that_can_be_planned(text):
    try:
        parse(text.encode(), "example", default_name="example")
    except (ConfigError, YAMLError):
        pytest.skip("a part of a configuration, or another file")
    assert complaints(text) == []


WRITTEN = {
    "by name": "[flat, ddp]",
    "with settings": "[{ddp: {cap: 1MiB}}, {overlap_bucket: {cap: [1MiB, 4MiB]}}, {flat: {accumulate: 4}}]",
    "the user's": "[{import: 'my_strategies:mine'}]",
    "in full": "[{name: ddp, cap: 1MiB}]",
}


@pytest.mark.parametrize("strategies", WRITTEN)
def test_every_way_to_write_a_strategy(strategies):
    text = f"backends: [gloo]\ntraining: {{models: [tiny], strategies: {WRITTEN[strategies]}}}"
    parse(text.encode(), "it", default_name="it")
    assert complaints(text) == []


@pytest.mark.parametrize(
    "strategies", ["[flatt]", "[{ddp: {capp: 1MiB}}]", "[{flat: {cap: 1MiB}}]", "[{flat: {}, ddp: {}}]", "flat"]
)
def test_strategies_that_plan_refuses_are_refused(strategies):
    text = f"backends: [gloo]\ntraining: {{models: [tiny], strategies: {strategies}}}"
    with pytest.raises(ConfigError):
        parse(text.encode(), "it", default_name="it")
    assert complaints(text)


def test_the_kept_file_is_the_schema_of_the_model():
    assert json.loads((ROOT / "configs" / "schema.json").read_text()) == json.loads(
        json.dumps(Config.model_json_schema())
    )
