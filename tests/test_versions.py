"""tools/versions.py reads bounds, versions and counts from pyproject.toml, pip and pytest."""

from packaging.requirements import Requirement

from tools import versions

COMPLAINT = (
    "ERROR: Could not find a version that satisfies the requirement numpy==2.0 "
    "(from versions: 1.26.4, 2.1.0rc1, 2.1.0, 2.10.0)\nERROR: No matching distribution found for numpy==2.0"
)


def test_every_dependency_has_one_lower_bound():
    assert {item.name: versions.lower_bound(item) for item in versions.dependencies()}.keys() >= {"torch", "mpi4py"}


def test_without_a_wheel_of_the_bound_the_next_version_is_taken():
    assert versions.lowest_of(COMPLAINT, "2.0") == "2.1.0"
    assert versions.lowest_of("(from versions: none)", "2.0") == "2.0"


def test_pytests_last_line_is_counted():
    assert versions.counts("..F\n3 failed, 250 passed, 2 skipped, 1 error in 12.30s") == "250 / 2 / 4"
    assert versions.counts("") == "0 / 0 / 0"


def test_the_page_shows_bounds_without_a_wheel_and_failures():
    row = versions.Row(
        "3.13", "lowest", {"numpy": "2.1.0"}, {"numpy": "2.1.0"}, {"doctor": "ok"}, ["pytest: exit code 2"]
    )
    assert versions.cell(row, Requirement("numpy>=2.0")) == "2.1.0 (no wheel of 2.0)"
    page = versions.page([row], "make versions", ["tests"])
    assert "| 3.13     | lowest   |" in page and "- 3.13 lowest: pytest: exit code 2" in page
