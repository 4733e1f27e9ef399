"""All problems of a file are reported at once, each in one line of our own words, with the place in the file."""

import json
import re

import pytest

from collbench.config import models
from collbench.config.fields import fields_of
from collbench.model.errors import ConfigError
from collbench.packages.gate import config as expected
from tools import configuration_page as page

GOOD = "backends: [gloo]\nworld_sizes: [2, 4]\noperations: [all_reduce]\nsizes: [1KiB]\n"
# Words of libraries that are unclear to users.
FOREIGN = re.compile(r"Input|Value error|extra_forbidden|None|True|False|datetime|pydantic")
WRONG = (
    *("x", "", "'2'", "5%", "null", "true", "-1", "1e400", ".nan", "99999999999999999999"),
    *("[]", "[[]]", "[x]", "[null]", "{}", "{x: 1}", "[{x: 1}]", "2020-01-01"),
)  # fmt: skip


def lines(text: str, parse=models.parse, *more) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parse(text.encode(), "c.yaml", *more)
    return str(error.value).split("\n")


def _cases():
    for start, group, parse in ((GOOD, page.OF_CONFIGURATIONS, models.parse), ("", page.OF_TABLES, expected.parse)):
        for heading, (_, model) in group.items():
            for key in fields_of(model):
                yield start, heading, str(key), parse


def _text(start: str, heading: str, key: str, value: str) -> str:
    """Return a file in which only this key of this section is wrong."""
    wrong = f"{{{key}: {value}}}"
    steps = {"models": "[nano]", "strategies": "[flat]"}
    if heading == "training":
        line = f"training: {_flow(steps | {key: value})}"
    elif heading.startswith("models"):
        line = f"training: {_flow(steps | {'models': f'[{wrong}]'})}"
    elif heading == "strategies":
        line = f"training: {_flow(steps | {'strategies': f'[ddp: {wrong}]'})}"
    else:
        lists = {"splits": f"splits: [{wrong}]", "faults": f"faults: [{wrong}]", "expect": f"expect: [{wrong}]"}
        sections = {"sizes": f"sizes: {wrong}", "sampling": f"sampling: {wrong}"}
        line = (lists | sections).get(heading, f"{key}: {value}")
    first = line.split(":")[0]
    return "".join(f"{text}\n" for text in start.splitlines() if text.split(":")[0] != first) + line


def _flow(section: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in section.items()) + "}"


def test_every_wrong_value_of_every_key_is_a_line_in_plain_words():
    for start, heading, key, parse in _cases():
        for value in WRONG:
            text = _text(start, heading, key, value)
            try:
                parse(text.encode(), "c.yaml")
            except ConfigError as error:
                for line in str(error).split("\n"):
                    message = line.replace(json.dumps(value), "")
                    assert line.startswith("c.yaml") and not FOREIGN.search(message), (key, value, line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n\tb: 2", "c.yaml:2:1: there is a tab here; indent with spaces"),
        ("a: 1\nb [2]\nc: 3", "c.yaml:2:1: a colon is missing; write key: value, or '- value' in a list"),
        ("a: [1, 2\nb: 3", "c.yaml:1:4: a comma or ] is missing here"),
        ("a: {b: 2\nc: 3", "c.yaml:1:4: a comma or } is missing here"),
        ("a: 'x\nb: 3", "c.yaml:1:4: this quote is not closed"),
        ("a: b: c", "c.yaml:1:5: a colon is not expected here; indent all keys"),
        ("a: 1\n b: 2", "c.yaml:2:3: a colon is not expected here"),
        ("a:\n  b: 1\n c: 2", "c.yaml:3:2: this line does not fit the lines above"),
        ("a: @x", "c.yaml:1:4: found character '@' that cannot start any token"),
        ("a: 1\nb: \x00", "c.yaml:2:4: there is an unprintable character here"),
        ("a: 1\n---\nb: 2", "c.yaml:2:1: but found another document"),
        ('a: "\\q"', "c.yaml:1:6: found unknown escape character 'q'"),
    ],
)
def test_mistakes_of_syntax_have_line_column_and_plain_words(text, message):
    (line,) = lines(text)
    assert line.startswith(message)
