"""All problems of a file are reported at once, each in one line of our own words, with the place in the file."""

import json
import re

import pytest

from collbench.config import models
from collbench.config.fields import fields_of
from collbench.config.names import near
from collbench.model.errors import ConfigError
from collbench.packages.gate import config as expected
from tools import configuration_page as page

GOOD = "backends: [gloo]\nworld_sizes: [2, 4]\noperations: [all_reduce]\nsizes: [1KiB]\n"
TRAINING = "backends: [gloo]\nworld_sizes: [2]\ntraining:\n  models: [nano]\n  strategies: [flat]\n"
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


def test_every_problem_is_a_line_in_the_order_of_the_file():
    dtypes = ", ".join(config_names("dtypes"))
    problems = lines("launches: 0\ndtypes: [float32, fp32]\nsampling:\n  warmup: many\n" + GOOD)
    assert problems == [
        "c.yaml:1:11: launches: 0: at least 1",
        f"c.yaml:2:19: dtypes[1]: unknown dtype fp32; did you mean 'float32'? allowed: {dtypes}",
        "c.yaml:4:11: sampling.warmup: 'many': a whole number",
    ]  # fmt: skip


def config_names(key: str) -> tuple[str, ...]:
    return page.names(fields_of(models.Config)[key])


def test_missing_keys_have_an_example_and_problems_of_file_and_override_are_distinguished():
    assert lines("operations: [all_reduce]\nfaults: [{rank: 1}]") == [
        "c.yaml:2:10: faults[0].do: missing; this key is required, such as hang",
        "c.yaml: sizes: missing; write message sizes, such as {from: 4KiB, to: 64MiB}",
        "c.yaml: backends: missing; this key is required, such as [gloo, nccl]",
    ]
    assert lines(GOOD + "launches: 0\nseed: x", models.parse, ["seed=-1", "sampling.warmup=y"]) == [
        "c.yaml:5:11: launches: 0: at least 1",
        "--set sampling.warmup=y: sampling.warmup: 'y': a whole number",
        "--set seed=-1: seed: -1: at least 0",
    ]


def test_settings_of_a_strategy_have_the_path_of_the_file():
    wrong = "\n  - ddp: {capp: 1MiB}\n  - flat: {cap: 1MiB}\n  - ddp:\n      cap: 1M"
    text = TRAINING.replace("[flat]", wrong)
    problems = lines(text)
    unknown = "unknown key; did you mean 'cap'? allowed: cap, buckets, options, accumulate"
    assert problems[0] == f"c.yaml:6:11: training.strategies[0].ddp.capp: {unknown}"
    assert problems[1] == "c.yaml:7:17: training.strategies[1].flat.cap: flat does not take cap; it takes accumulate"
    assert problems[2].startswith("c.yaml:9:12: training.strategies[2].ddp.cap: '1M' is ambiguous")


def test_usual_other_names_and_parts_of_names_are_recognised():
    for written, key, name in (
        ("fp32", "dtypes", "float32"),
        ("allreduce", "operations", "all_reduce"),
        ("reduce-scatter", "operations", "reduce_scatter"),
        ("NCCL", "backends", "nccl"),
        ("mean", "reduce_ops", "avg"),
        ("latency", "metrics", "isolated"),
    ):
        assert near(written, config_names(key)) == [name]
    assert near("xl", ("tiny", "xl-2025", "xl-2026")) == ["xl-2025", "xl-2026"]


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
