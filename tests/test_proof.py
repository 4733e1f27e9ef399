"""The page of the proofs has the newest run of each claim; what has changed since it ran is not called current."""

import pytest

from proof import accuracy, claims, code
from proof.claim import HOLDS, MISSED, UNDECIDED, at_least, at_most, judged


def test_a_fingerprint_changes_with_the_code_and_not_with_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "BENCH", tmp_path)
    found = []
    for text in ('"""Doc."""\nX = 1\n', '"""Other."""\nX = 1  # comment\n', "X = 2\n"):
        (tmp_path / "module.py").write_text(text)
        found.append(code.fingerprint(["module.py"]))
    assert found[0] == found[1] != found[2]


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


def test_what_is_allowed_is_rounded_down():
    assert at_most("", 2, 60, 2 / 60).outcome == HOLDS and at_most("", 1, 10, 0.05).outcome == MISSED


def test_a_claim_whose_protocol_changed_says_why():
    for name, found in accuracy.kept().items():
        claim = claims.CLAIMS[name]
        assert {run["version"] for run in found} <= {claim.version, *claim.replaced}, name
    minutes = {name: claim.minutes for name, claim in claims.CLAIMS.items()}
    virtual = sum(spent for name, spent in minutes.items() if name.startswith("virtual-"))
    assert sum(minutes.values()) - virtual < 60 and virtual < 70, "Makefile and README say how long they take"
