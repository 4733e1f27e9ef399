"""Define how the ranks of a world are divided into groups, and how unevenly an all-to-all divides the data of a rank.

`catalog/subgroups.py` and `catalog/splits.py` parse both from text, and compute groups and parts for a number of ranks.
The key of a case contains the text that `str` returns.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Division:
    """A division of the ranks into groups that call at once, or one after the other."""

    # One of world, contiguous, strided and sets.
    kind: str = "world"
    # Ranks of a group, and the distance between neighbours in it; 0 if the number of ranks decides.
    size: int = 0
    stride: int = 0
    # True if one group calls after the other.
    serial: bool = False
    # The groups themselves, for sets.
    sets: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        """Return the division as text, such as `world`, `strided:2@4`, `contiguous:4:serial` or `sets:0,3|1,2`."""
        if self.kind == "world":
            return self.kind
        if self.kind == "sets":
            return "sets:" + "|".join(",".join(map(str, members)) for members in self.sets)
        stride, serial = f"@{self.stride}" * (self.stride > 0), ":serial" * self.serial
        return f"{self.kind}:{self.size}{stride}{serial}"


WORLD = Division()


@dataclass(frozen=True, slots=True, order=True)
class Splits:
    """A distribution of the data that a rank sends in an all-to-all."""

    # One of zipf, lognormal, hot, distance and rows.
    kind: str
    # Parameter of the kind; 0 for rows.
    value: float = 0.0
    rows: tuple[tuple[int, ...], ...] = ()
    seed: int = 0

    def __str__(self) -> str:
        """Return the distribution as text, such as `zipf:1.2:seed=3` or `rows:0,3;1,2`."""
        parameter = ";".join(",".join(map(str, row)) for row in self.rows) if self.rows else f"{self.value:.12g}"
        return f"{self.kind}:{parameter}" + f":seed={self.seed}" * (self.seed > 0)
