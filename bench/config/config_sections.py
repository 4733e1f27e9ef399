"""The sections of a configuration of collectives: sizes, sampling, splits and faults.

In: what YAML holds under their keys. Out: validated models, which `config` puts together.
"""

import csv
from pathlib import Path
from typing import Annotated

from pydantic import Discriminator, Field, Tag, model_validator

from bench.catalog import splits
from bench.config.sections import Strict
from bench.config.values import Bytes, FaultKind, Seconds, WorldSize

# A report with more rows is not read any more, and a size too many costs minutes.
MAX_SIZES = 200
# What `splits` takes besides even, in messages and in the documentation.
EVEN_OTHERS = "{zipf: 1.2}, {lognormal: 1}, {hot: 4}, {matrix: [[0, 3], [1, 2]]}"


class SizeRange(Strict):
    """Sizes from `from` up to `to`, each `factor` times the one before, or `step` larger than it."""

    from_: Bytes = Field(alias="from", description="Smallest size.", examples=["4KiB"])
    to: Bytes = Field(description="Largest size. It is included if a step lands on it.", examples=["64MiB"])
    factor: Annotated[float, Field(gt=1)] = Field(default=2, description="Ratio of neighbouring sizes.", examples=[4])
    step: Bytes | None = Field(
        default=None, description="Difference of neighbouring sizes, in place of `factor`.", examples=["1MiB"]
    )

    @model_validator(mode="after")
    def _check(self) -> "SizeRange":
        if self.step is not None and "factor" in self.model_fields_set:
            raise ValueError("sizes grow by a 'factor' or by a 'step': keep only one")
        if self.from_ > self.to:
            raise ValueError(f"'from' ({self.from_} B) is larger than 'to' ({self.to} B)")
        if len(self.expand()) > MAX_SIZES:
            raise ValueError(f"more than {MAX_SIZES} sizes: use a larger {'step' if self.step else 'factor'}")
        return self

    def expand(self) -> list[int]:
        """The sizes in bytes, ascending, distinct."""
        if self.step is not None:
            return list(range(self.from_, self.to + 1, self.step))[: MAX_SIZES + 1]
        sizes: list[int] = []
        size = float(self.from_)
        while size <= self.to and len(sizes) <= MAX_SIZES:
            if not sizes or round(size) > sizes[-1]:
                sizes.append(round(size))
            size *= self.factor
        return sizes


class SamplingConfig(Strict):
    """How many iterations a case gets in one launch."""

    warmup: Annotated[int, Field(ge=0)] = Field(
        default=5, description="Iterations at the beginning of a case that are not used.", examples=[2]
    )
    warmup_seconds: Seconds = Field(
        default=0.05, description="The warm-up ends after this time at the latest.", examples=["10ms"]
    )
    iterations: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="A fixed number of iterations. Without it, a case ends when its interval is narrow enough.",
        examples=[20],
    )
    relative_error: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.05,
        description="A case ends when the 95 % interval of its median is within this share of the median.",
        examples=[0.02],
    )
    seconds_per_case: Seconds = Field(
        default=2.0, description="A case ends after this time in one launch at the latest.", examples=["120ms"]
    )
    max_iterations: Annotated[int, Field(ge=6)] = Field(
        default=2000, description="A case ends after this number of iterations at the latest.", examples=[500]
    )

    @model_validator(mode="after")
    def _check(self) -> "SamplingConfig":
        unused = self.model_fields_set & {"relative_error", "seconds_per_case", "max_iterations"}
        if self.iterations is not None and unused:
            raise ValueError(
                f"'iterations' fixes the count, so {', '.join(sorted(unused))} would be ignored: keep only one"
            )
        return self


class SplitsConfig(Strict):
    """How unevenly an all-to-all divides what each rank sends: exactly one distribution."""

    zipf: Annotated[float, Field(gt=0, le=10)] | None = Field(
        default=None, description="Popularity of the k-th most popular rank is 1 / k to this power.", examples=[1.2]
    )
    lognormal: Annotated[float, Field(gt=0, le=5)] | None = Field(
        default=None,
        description="Popularity is log-normal, with this standard deviation of its logarithm.",
        examples=[1],
    )
    hot: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="One rank receives this many times as much as the mean.", examples=[4]
    )
    matrix: (
        Annotated[
            Annotated[list[list[Annotated[int, Field(ge=0)]]], Tag("rows")] | Annotated[str, Tag("file")],
            Discriminator(lambda value: "file" if isinstance(value, str) else "rows"),
        ]
        | None
    ) = Field(
        default=None,
        description="Parts that each rank (row) sends to each rank, or the name of a CSV file that has them.",
        examples=[[[0, 3], [1, 2]]],
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Chooses which ranks are popular. A matrix takes none.", examples=[3]
    )
    drift: bool = Field(
        default=False, description="Whether other ranks are popular in each call. A matrix takes none.", examples=[True]
    )

    @model_validator(mode="after")
    def _check(self) -> "SplitsConfig":
        chosen = {key for key in ("zipf", "lognormal", "hot", "matrix") if getattr(self, key) is not None}
        if len(chosen) != 1:
            raise ValueError("name exactly one of zipf, lognormal, hot, matrix")
        if "matrix" in chosen and self.model_fields_set != {"matrix"}:
            raise ValueError("a matrix has no seed and no drift")
        splits.parse(self.text)
        return self

    @property
    def text(self) -> str:
        """As `splits` reads it."""
        if self.matrix is not None:
            rows = _matrix_of(self.matrix) if isinstance(self.matrix, str) else self.matrix
            return "rows:" + ";".join(",".join(map(str, row)) for row in rows)
        kind = next(name for name in ("zipf", "lognormal", "hot") if getattr(self, name) is not None)
        seed, drift = f":seed={self.seed}" if self.seed else "", ":drift" if self.drift else ""
        return f"{kind}:{getattr(self, kind):g}{seed}{drift}"


def _matrix_of(path: str) -> list[list[int]]:
    """The whole numbers of a CSV file; raises ValueError."""
    try:
        with Path(path).open(newline="") as file:
            return [[int(cell) for cell in row] for row in csv.reader(file) if row]
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError:
        raise ValueError(f"{path}: a matrix of whole numbers is expected, a row a line, with commas") from None


class FaultConfig(Strict):
    """A fault planted on purpose, to see it noticed. The report says that it was planted."""

    do: FaultKind = Field(
        description="What goes wrong: the rank raises an error, exits, is killed, is stopped, hangs, corrupts a "
        "result, calls late, or is slow within the call.",
        examples=["hang"],
    )
    rank: Annotated[int, Field(ge=0)] = Field(description="The rank that it happens to.", examples=[1])
    iteration: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="The call of a case that it happens in; 0 is the verifying one. late and slow begin with it.",
        examples=[3],
    )
    world_size: WorldSize | None = Field(
        default=None, description="The only world size that it happens at. Without it, at every one.", examples=[2]
    )
    size: Bytes | None = Field(
        default=None, description="The only size that it happens at. Without it, at every one.", examples=["1MiB"]
    )
    launch: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="The only launch that it happens in. Without it, in every one.", examples=[2]
    )
    delay: Seconds = Field(
        default=0.002, description="Time that late (before the call) and slow (in it) take.", examples=["5ms"]
    )
