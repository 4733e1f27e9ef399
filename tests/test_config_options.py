"""A row of a table of options is enough to make its key: type, description, default, place and messages."""

from dataclasses import dataclass

import pytest

from collbench.config import documents
from collbench.config.fields import Strict, fields_of, key, validate
from collbench.config.options import values_of, with_options
from collbench.model.divisions import WORLD, Division
from collbench.model.errors import ConfigError
from collbench.model.records import ConfigKey, option, options_in


@dataclass
class Tables:
    pace: str = option("steady", "the pace", key=ConfigKey("paces", (["free"],)), names=("steady", "free"))
    order: str = option("up", "the order", key=ConfigKey("order", ("up",), "one", after="first"), names=("up", "down"))
    load: str = option(
        "none", "other work", key=ConfigKey("load", ("full", ["none"]), "either"), names=("none", "full"), noun="kind"
    )
    turn: int = option(0, "whose turn", key=ConfigKey("turns", ([0, 1], "all"), "all", advanced=True))
    teams: Division = option(WORLD, "the teams", key=ConfigKey("teams", (["world"],)))
    by_plan: int = option(0, "set by the plan")


ROWS = options_in(Tables)
BY_NAME = {row.name: row for row in ROWS}


@with_options(ROWS, last=(int, key("The last.", 1, default=0)))
class Section(Strict):
    first: int = key("The first.", 1, default=0)
    second: int = key("The second.", 1, default=0)


def read(text: str) -> Section:
    return validate(Section, documents.document(text.encode(), "c.yaml", "first: 1"))


def test_keys_stand_behind_the_key_that_the_row_names_or_behind_the_row_before():
    assert [*fields_of(Section)] == ["paces", "first", "order", "load", "turns", "teams", "second", "last"]


def test_the_declaration_is_the_row_s():
    turns = fields_of(Section)["turns"]
    assert turns.description == "Whose turn. With all, each in turn." and turns.examples == [[0, 1], "all"]
    assert turns.json_schema_extra == {"x-advanced": True} and fields_of(Section)["paces"].json_schema_extra is None
    assert Section.model_json_schema()["properties"]["teams"]["default"] == ["world"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("first: 1", {"pace": ["steady"], "order": ["up"], "load": ["none"], "turn": [0], "teams": [WORLD]}),
        ("paces: [free, steady]\norder: down", {"pace": ["free", "steady"], "order": ["down"]}),
        ("load: [none, full]", {"load": ["none", "full"]}),
        ("load: full\nturns: all", {"load": ["full"], "turn": [0, 1, 2]}),
        ("teams: ['contiguous:2']\nturns: [2]", {"teams": [Division("contiguous", 2)], "turn": [2]}),
    ],
)
def test_values_are_those_of_cases(text, values):
    section = read(text)
    assert {name: [*values_of(section, BY_NAME[name], 3)] for name in values} == values


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("paces: [fre]", "paces[0]: unknown pace fre; did you mean 'free'? allowed: steady, free"),
        ("paces: free", "paces: free is not a list, write one such as [free]"),
        ("paces: [free, free]", "paces[1]: free is listed twice"),
        ("order: [up]", "order: unknown order [up]; allowed: up, down"),
        ("load: ful", "load: unknown kind ful; did you mean 'full'? allowed: none, full"),
        ("turns: al", "turns: unknown turn al; did you mean 'all'? allowed: all, or a list such as [0, 1]"),
        ("turns: [-1]", "turns[0]: -1: at least 0"),
        ("pace: [free]", "pace: unknown key; did you mean 'paces'? allowed: " + ", ".join(fields_of(Section))),
    ],
)
def test_a_wrong_value_is_a_line_with_what_is_allowed(text, problem):
    with pytest.raises(ConfigError) as error:
        read(text)
    assert str(error.value).partition(": ")[2] == problem
