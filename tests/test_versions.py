"""tools/oldest.txt has the lower bounds of pyproject.toml, with which `make versions` tries CollBench."""

import tomllib

from packaging.requirements import Requirement

from conftest import ROOT


def test_the_oldest_packages_are_the_lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["mpi"]])
    lines = (ROOT / "tools/oldest.txt").read_text().splitlines()
    oldest = dict(line.split("==") for line in lines if not line.startswith("#"))
    bounds = {need.name: next(each.version for each in need.specifier if each.operator == ">=") for need in needed}
    assert oldest.keys() == bounds.keys()
    assert all(oldest[name].startswith(bound) for name, bound in bounds.items()), bounds
