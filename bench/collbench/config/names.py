"""Resolve names that a user wrote: propose the name that was meant, and find the configuration file of a name.

In: the written text, and the names that exist. Out: words for the end of an error message; or the path of a
configuration in `configs/` here, or of a configuration that comes with CollBench. The path need not exist if the user
wrote a path. Reads no file.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from collbench.model.errors import ConfigError
from collbench.model.pages import SHIPPED

# Names in other tools and libraries, in lower case without separators → our names. One spelling may mean a dtype and an
# operation: a name is proposed only where it is allowed.
OTHER_NAMES = {
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    "bf16": "bfloat16",
    **dict.fromkeys(("fp8", "float8", "e4m3"), "float8_e4m3fn"),
    "e5m2": "float8_e5m2",
    "long": "int64",
    "int": "int32",
    "byte": "uint8",
    **dict.fromkeys(("alltoall", "all2all", "a2a"), "all_to_all"),
    **dict.fromkeys(("alltoallv", "all2allv"), "all_to_all_uneven"),
    "bcast": "broadcast",
    **dict.fromkeys(("p2p", "sendrecv"), "send_recv"),
    "cpu": "gloo",
    **dict.fromkeys(("cuda", "gpu", "rccl"), "nccl"),
    **dict.fromkeys(("openmpi", "mpich", "mpi4py"), "mpi"),
    "mean": "avg",
    "latency": "isolated",
    **dict.fromkeys(("throughput", "bandwidth"), "pipelined"),
}
# Text before the list of allowed names.
ALLOWED = " allowed: "
# Smallest similarity for difflib: with less, it proposes names that nobody meant.
LIKENESS = 0.6


def near(written: str, names: Sequence[str]) -> list[str]:
    """Return the names that were most likely meant: none, one, or all that extend the text (`xl`: `xl-2025`, …)."""
    plain = _plain(written)
    same = [name for name in names if _plain(name) == plain]
    if same:
        return same[:1]
    if OTHER_NAMES.get(plain) in names:
        return [OTHER_NAMES[plain]]
    longer = [name for name in names if plain and name.lower().startswith(f"{written.lower()}-")]
    return longer or difflib.get_close_matches(written.lower(), names, n=1, cutoff=LIKENESS)


def _plain(name: str) -> str:
    return re.sub(r"[-_ .]", "", name.lower())


def allowed(written: object, names: Sequence[str], others: str = "") -> str:
    """Return text such as `; did you mean 'gloo'? allowed: gloo, nccl`. others: values that are allowed, too."""
    matches = near(str(written), names)
    proposal = f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ";"
    return f"{proposal}{ALLOWED}{', '.join(filter(None, (*names, others)))}"


# ── files of configurations ──────────────────────────────────────────────────────────────────────
# Folders with configurations: the user's own come first. In a checkout both are the same folder (`collbench/configs`
# is a link); an installed CollBench contains its own.
FOLDERS = (Path("configs"), SHIPPED / "configs")
EXPECTED = "expected"
SUFFIXES = {".yaml", ".yml"}


def path_of(written: Path, inside: str = "") -> Path:
    """Return the file of a configuration. A text with a slash or with `.yaml` at its end is a path; else it is a name.

    inside: a folder in FOLDERS, such as EXPECTED. Raises ConfigError if no configuration has the name.
    """
    if written.suffix in SUFFIXES or written.is_file() or (len(written.parts) > 1 and not written.is_dir()):
        return written
    paths = {path.stem: path for path in files(inside)}
    if len(written.parts) == 1 and written.name in paths:
        return paths[written.name]
    if written.is_dir():
        raise ConfigError(f"{written}: a folder, not a configuration; collbench report {written} shows a run's results")
    proposal = allowed(written.name, [*paths], "a path that ends in .yaml")
    raise ConfigError(f"{written}: no {'table' if inside else 'configuration'} has this name{proposal}")


def files(inside: str = "") -> Iterator[Path]:
    """Yield the files of all configurations, or of all tables. A file of the user hides our file of the same name."""
    seen: set[str] = set()
    for folder in FOLDERS:
        for path in sorted((folder / inside).glob("*.yaml")):
            if path.stem not in seen:
                seen.add(path.stem)
                yield path
