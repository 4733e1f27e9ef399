"""Find a configuration by its name: one in `configs/` here, or one of those that come with CollBench.

In: what a user wrote. Out: a path, which need not exist if the user wrote a path. Reads no file.
"""

from collections.abc import Iterator
from pathlib import Path

from bench.model.errors import ConfigError
from bench.model.spelling import near

# Folders with configurations: the user's own come first. In a checkout both are the same one (`bench/configs` is a
# link); an installed CollBench brings its own along.
FOLDERS = (Path("configs"), Path(__file__).parents[1] / "configs")
EXPECTED = "expected"
SUFFIXES = {".yaml", ".yml"}


def path_of(asked: Path, inside: str = "") -> Path:
    """The file of a configuration. With a slash, or `.yaml` at its end, it is a path; else it is a name.

    inside: a folder of FOLDERS, such as EXPECTED. Raises ConfigError for a name that there is not.
    """
    if asked.suffix in SUFFIXES or len(asked.parts) > 1 or asked.is_file():
        return asked
    known = {path.stem: path for path in files(inside)}
    if asked.name in known:
        return known[asked.name]
    likely = near(asked.name, [*known])
    hint = f"; did you mean {likely[0]!r}?" if likely else ""
    raise ConfigError(f"{asked}: no configuration has this name{hint} (list configs has all; a path ends in .yaml)")


def files(inside: str = "") -> Iterator[Path]:
    """All configurations: a file of the user hides one of ours that has the same name."""
    seen: set[str] = set()
    for folder in FOLDERS:
        for path in sorted((folder / inside).glob("*.yaml")):
            if path.stem not in seen:
                seen.add(path.stem)
                yield path
