"""A row of a table of options is enough for its key in a configuration: its place, description, values and messages."""

from dataclasses import dataclass

import pytest

from collbench.config import documents
from collbench.config.fields import Strict, fields_of, key, validate
from collbench.config.options import values_of, with_options
from collbench.model.divisions import Division
from collbench.model.errors import ConfigError
from collbench.model.records import ConfigKey, option, options_in


@dataclass
class Tables:
    pace: str = option("steady", "the pace", key=ConfigKey("paces", (["free"],)), names=("steady", "free"))
    turn: int = option(0, "whose turn", key=ConfigKey("turns", ([0, 1], "all"), "all", after="first"))
    teams: Division = option(Division(), "the teams", key=ConfigKey("teams", (["world"],), advanced=True))
    by_plan: int = option(0, "set by the plan")


PACE, TURN, TEAMS, _ = options_in(Tables)


@with_options(options_in(Tables), last=(int, key("The last.", 1, default=0)))
class Section(Strict):
    first: int = key("The first.", 1, default=0)
    second: int = key("The second.", 1, default=0)


def read(text: str) -> Section:
    return validate(Section, documents.document(text.encode(), "c.yaml", "first: 1"))


def test_the_declaration_is_the_row_s():
    keys = fields_of(Section)
    assert [*keys] == ["paces", "first", "turns", "teams", "second", "last"]
    assert keys["turns"].description == "Whose turn. With all, each in turn." and keys["paces"].examples == [["free"]]
    assert [keys[name].json_schema_extra for name in ("paces", "teams")] == [None, {"x-advanced": True}]


def test_values_are_those_of_cases():
    usual, written = read("first: 1"), read("paces: [free]\nturns: all\nteams: ['contiguous:2']")
    assert [values_of(usual, option) for option in (PACE, TURN, TEAMS)] == [["steady"], [0], [Division()]]
    assert values_of(written, PACE) == ["free"] and [*values_of(written, TURN, 3)] == [0, 1, 2]
    assert values_of(written, TEAMS) == [Division("contiguous", 2)]


def test_wrong_values_are_lines_with_what_is_allowed():
    with pytest.raises(ConfigError) as error:
        read("paces: [fre]\nturns: al\npace: x")
    assert str(error.value).split("\n") == [
        "c.yaml:1:9: paces[0]: unknown pace fre; did you mean 'free'? allowed: steady, free",
        "c.yaml:2:8: turns: unknown turn al; did you mean 'all'? allowed: all, or a list such as [0, 1]",
        f"c.yaml:3:1: pace: unknown key; did you mean 'paces'? allowed: {', '.join(fields_of(Section))}",
    ]
