"""Every key of a configuration is explained with a valid example, and docs/configuration.md is made from them."""

import re
from typing import Annotated

from pydantic import create_model

from collbench.config import models
from collbench.config.fields import Strict, fields_of
from collbench.packages.gate import config as expected
from conftest import ROOT
from tools import configuration_page as page

SECTIONS = [model for group in (page.OF_CONFIGURATIONS, page.OF_TABLES) for _, model in group.values()]
# A line's options have the same keys as a configuration, so the page does not explain them twice.
KEYS = [(model, key) for model in (*SECTIONS, expected.Options) for key in fields_of(model)]


def test_each_key_is_explained_with_valid_examples():
    for model, key in KEYS:
        field = fields_of(model)[key]
        assert field.description and field.description[-1] == "." and field.examples, key
        section = create_model("One", __base__=Strict, key=(Annotated[field.annotation, *field.metadata, "a key"], ...))
        for example in field.examples:
            section.model_validate({"key": example})


def test_the_examples_of_pages_are_valid():
    texts = [path.read_text() for path in (page.PAGE, ROOT / "docs/training.md")]
    collectives, training = (re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0].encode() for text in texts)
    assert models.parse(collectives, "page").name == "nightly"
    assert len(models.parse(training, "page").training.strategies) == 4
