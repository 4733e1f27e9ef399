"""The page of the proofs has the newest run of each claim; a claim whose code has changed since is not current."""

import functools
import symtable

import pytest

from proof import accuracy, claims, code
from proof.claim import HOLDS, MISSED, UNDECIDED, at_least, at_most, judged

STATISTICS = """
import time
from collbench.rules import SHARE as LEAST
from collbench import words

def mean(values: "Rig", other: words.Rig):
    if not values: raise ValueError("no values")
    total, number = sum(values), len(values)
    return total / number / LEAST + helper(number) + time.monotonic()

def helper(number): return Other().value + limit

def option(default, about): return default

class Other:
    value = 1
    half = 2
    size = option(4, "bytes of all values")

limit = 3

def unused(): return 1
"""
RULES = "SHARE = 3\nOTHER = 4\n"
WORDS = "class Rig: pass\n"


@pytest.mark.parametrize(
    ("name", "old", "new", "changes"),
    [
        ("statistics", "    total,", '    """A docstring."""\n    total,', False),
        ("statistics", "limit = 3", "limit = 3  # a comment", False),
        ("statistics", "if not values: raise", "if not values:\n        raise", False),
        ("statistics", '"no values"', '"give a value"', False),
        ("statistics", "raise ValueError", "raise TypeError", True),
        ("statistics", '"bytes of all values"', '"the sum of all bytes"', False),
        ("statistics", "option(4", "option(5", True),
        ("statistics", "number", "count", False),
        ("statistics", "total / number", "number / total", True),
        ("statistics", "helper", "offset", False),
        ("statistics", "helper(number): return Other", "helper(length): return Other", False),
        ("statistics", "Other", "Constants", False),
        ("statistics", ".value", ".half", True),
        ("statistics", "    value =", "    constant =", True),  # its use keeps the old name, so this is another program
        ("statistics", "limit", "bound", False),
        ("statistics", "+ limit", "- limit", True),
        ("statistics", "time.monotonic", "time.perf_counter", True),
        ("statistics", "def unused(): return 1", "def unused(): return 2", False),
        ("statistics", "value = 1", "value = 2", True),
        ("rules", "SHARE = 3", "SHARE = 2", True),
        ("rules", "OTHER = 4", "OTHER = 5", False),
        ("words", "pass", "value = 1", False),
    ],
)
def test_a_claim_rests_on_the_functions_that_it_uses(tmp_path, monkeypatch, name, old, new, changes):
    texts = {"statistics": STATISTICS, "rules": RULES, "words": WORDS}

    def fingerprint():
        (tmp_path / "bench" / "collbench").mkdir(parents=True, exist_ok=True)
        for module, text in texts.items():
            (tmp_path / f"bench/collbench/{module}.py").write_text(text)
        monkeypatch.setattr(code, "ROOT", tmp_path)
        monkeypatch.setattr(code, "_module", functools.cache(code._Module))

        def mean(): ...

        mean.__module__ = "collbench.statistics"
        return code.fingerprint(mean)

    before = fingerprint()
    assert old in texts[name] and old != new
    texts[name] = texts[name].replace(old, new)
    assert (fingerprint() != before) == changes


def tables_within(table):
    yield table
    for inner in table.get_children():
        yield from tables_within(inner)


def functions_of(table):
    for inner in table.get_children():
        yield from [inner] if inner.get_type() == "function" else functions_of(inner)


def test_no_function_uses_one_name_both_as_its_own_and_as_the_modules():
    """`proof.canonical` does not distinguish the scopes within a function."""
    twofold = []
    for path in [*(code.ROOT / "bench" / "collbench").rglob("*.py"), *(code.ROOT / "proof").rglob("*.py")]:
        module = symtable.symtable(path.read_text(), path.name, "exec")
        defined = {each.get_name() for each in module.get_symbols() if each.is_assigned() or each.is_imported()}
        for function in functions_of(module):
            symbols = [symbol for table in tables_within(function) for symbol in table.get_symbols()]
            own = {each.get_name() for each in symbols if each.is_local() and not each.is_imported()}
            others = {each.get_name() for each in symbols if each.is_global() and each.is_referenced()}
            twofold += [(path.name, function.get_name(), name) for name in own & others & defined]
    assert twofold == []


def test_a_claim_rests_on_the_method_and_not_on_sentences():
    launches = code.rests_on(claims.CLAIMS["coverage-launches"].run)
    assert ("collbench.stats.intervals", "launch_interval") in launches
    compared = claims.CLAIMS["simulated-compare"]
    modules = {module for module, _ in code.rests_on(compared.run, compared.more, compared.without)}
    assert "collbench.analyze.compare" in modules and not any(
        module.startswith("collbench.launch") for module in modules
    )
    measured = claims.CLAIMS["late-rank"]
    modules = {module for module, _ in code.rests_on(measured.run, measured.more, measured.without)}
    assert {"collbench.rank.timing", "collbench.launch.sweep"} <= modules
    for claim in claims.CLAIMS.values():
        everything = code.rests_on(claim.run, claim.more, claim.without)
        texts = {module for module, _ in everything if module.startswith("collbench.report")}
        assert texts <= set(claim.more)


def test_a_page_shows_common_words_of_lines_once():
    rows = [
        ("a", "interval over 8 launches, skewed", "figure", "a reason"),
        ("a", "interval over 8 launches, lognormal", "figure", "a reason"),
        ("b", "another", "figure", ""),
    ]
    assert accuracy._named_once(rows) == [
        rows[0],
        ("", "… lognormal", "figure", "as above"),
        rows[2],
    ]


@pytest.mark.parametrize(
    ("low", "high", "outcome"), [(0.95, 1.02, UNDECIDED), (0.99, 1.01, HOLDS), (1.03, 1.2, MISSED), (0.9, 0.97, MISSED)]
)
def test_an_interval_is_judged_and_not_its_middle(low, high, outcome):
    assert judged(low, high, 0.98, 1.02) == outcome


@pytest.mark.parametrize(
    ("hits", "trials", "outcome"), [(9, 10, HOLDS), (8, 10, MISSED), (4, 4, HOLDS), (3, 4, MISSED)]
)
def test_a_demanded_count_grows_with_the_trials(hits, trials, outcome):
    assert at_least("", hits, trials, 0.9).outcome == outcome


def test_an_allowed_count_is_rounded_down():
    assert at_most("", 2, 60, 2 / 60).outcome == HOLDS and at_most("", 1, 10, 0.05).outcome == MISSED


def test_a_claim_whose_protocol_changed_states_the_reason():
    for name, runs in accuracy.kept().items():
        claim = claims.CLAIMS[name]
        assert {run["version"] for run in runs} <= {claim.version, *claim.replaced}, name
    minutes = {name: claim.minutes for name, claim in claims.CLAIMS.items()}
    weekly = sum(spent for name, spent in minutes.items() if claims.CLAIMS[name].weekly)
    simulated = sum(spent for name, spent in minutes.items() if claims.CLAIMS[name].simulated)
    assert sum(minutes.values()) - weekly - simulated / 2 < 60 and weekly < 90, "the Makefile says how long they take"
