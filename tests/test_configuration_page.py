"""Every key of a configuration is explained with a valid example, and docs/configuration.md is made from them."""

import re
from typing import Annotated

from pydantic import create_model

from collbench.config import models
from collbench.config.fields import Strict, fields_of
from collbench.packages.gate import config as expected
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


def test_the_annotated_examples_are_valid():
    collectives, training = re.findall(r"```yaml\n(.*?)```", page.PAGE.read_text(), re.DOTALL)
    assert models.parse(collectives.encode(), "page").name == "nightly"
    assert len(models.parse(training.encode(), "page").training.strategies) == 3
