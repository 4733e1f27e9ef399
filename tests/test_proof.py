"""The page of the proofs has the newest run of each claim; a claim whose code has changed since is not current."""

import subprocess

import pytest

from proof import accuracy, coverage
from proof.accuracy import CURRENT, OLDER, UNKNOWN
from proof.claim import HOLDS, LIMIT, MISSED, UNDECIDED, judged
from proof.claims import CLAIMS, Claim

RUN = {"version": 1, "date": "2026-01-02 03:04", "lines": []}


def claim(**changes):
    return Claim(
        **{"run": coverage.over_launches, "protocol": "", "trials": 1, "quick": 1, "minutes": 1, "paths": (), **changes}
    )


def line(says, outcome, limit=""):
    return {"says": says, "demanded": "never", "measured": "0 of 9", "outcome": outcome, "limit": limit}


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit, and its hash."""

    def git(*words):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    for name in ("bench/rules.py", "bench/words.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("SHARE = 3\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "begin")
    return tmp_path, git


def test_a_run_is_of_this_code_until_a_path_of_its_claim_changes(repository):
    folder, git = repository
    commit = git("rev-parse", "HEAD")

    def states():
        claims = [claim(paths=(path,)) for path in ("bench", "bench/rules.py", "bench/words.py")]
        return [accuracy.standing(each, RUN | {"commit": commit}, folder) for each in claims]

    assert states() == 3 * [CURRENT]
    (folder / "bench/rules.py").write_text("SHARE = 2\n")
    assert states() == [OLDER, OLDER, CURRENT], "not yet committed"
    git("commit", "-qam", "change")
    assert states() == [OLDER, OLDER, CURRENT]
    git("mv", "bench/words.py", "bench/names.py")
    assert states() == 3 * [OLDER]
    git("commit", "-qam", "rename")
    now = RUN | {"commit": git("rev-parse", "HEAD")}
    assert accuracy.standing(claim(paths=("bench",)), now, folder) == CURRENT
    assert accuracy.standing(claim(replaced={1: "too few"}), now, folder) == "protocol 1"
    for unknown in ("0123456789ab", "0123456789ab-dirty", "not available"):
        assert accuracy.standing(claim(paths=("bench",)), RUN | {"commit": unknown}, folder) == UNKNOWN


def test_claims_name_files_that_exist_and_kept_runs_a_protocol_that_is_explained(tmp_path, monkeypatch):
    """Git says of a path that never was that nothing changed."""
    for name, each in CLAIMS.items():
        assert all((accuracy.ROOT / path).exists() for path in each.files), name
    before = accuracy.kept()
    for name, run in before.items():
        assert run["version"] in {CLAIMS[name].version, *CLAIMS[name].replaced}, name
    for name in ("FILE", "PAGE"):
        monkeypatch.setattr(accuracy, name, tmp_path / name)
    accuracy.keep("delays", before["delays"])
    assert accuracy.kept() == {"delays": before["delays"]} and "**delays**" in (tmp_path / "PAGE").read_text()


def test_the_page_begins_with_what_does_not_hold(monkeypatch):
    monkeypatch.setattr(accuracy, "standing", lambda claim, run: run["code"])
    kept = {
        "good": RUN | {"code": OLDER, "lines": [line("all is found", HOLDS), line("nothing is left", HOLDS)]},
        "bad": RUN | {"code": CURRENT, "lines": [line("soon", UNDECIDED), line("late", LIMIT, "measure more")]},
        "worse": RUN | {"code": OLDER, "lines": [line("at once", MISSED)]},
    }
    shown = accuracy.page({name: claim(weekly=name == "good") for name in (*kept, "new")}, kept)
    parts = ["at once", "soon", "late: 0 of 9, not never: measure more", "Of this code", "**bad**: 0 of 2\n"]
    parts += [
        "Of older code, 2026-01-02, 3 lines: 1 MISSED, 2 holds",
        "**good** (weekly): 2 of 2; all is found: 0 of 9",
    ]
    places = [shown.index(part) for part in [*parts, "**worse**: 0 of 1", "Never run: new."]]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("low", "high", "outcome"), [(0.95, 1.02, UNDECIDED), (0.99, 1.01, HOLDS), (1.03, 1.2, MISSED), (0.9, 0.97, MISSED)]
)
def test_an_interval_is_judged_and_not_its_middle(low, high, outcome):
    assert judged(low, high, 0.98, 1.02) == outcome
