"""Define the models of runs and comparisons in JSON, which programs read. Fields of cases are also columns of CSV.

The name of a field is its name in CSV; JSON has another name if that contains the unit. `machine_format` fills the
models and makes JSON Schemas from them, docs/report-schema.json and docs/comparison-schema.json. Packages add fields by
`CaseColumns`. Computes nothing.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation, create_model

from collbench.catalog.collectives import ALL_OPTIONS
from collbench.model.comparisons import Absence, ChangeVerdict
from collbench.model.conclusions import Finding, FindingKind, Interval, Summary
from collbench.model.notices import Notice, Value, kinds
from collbench.model.records import Case, EndReason, Json, Option
from collbench.report import notices

# A text that may quote files of others. It is passed on as it is, even with surrogates, which are halves of characters:
# the code that prints the text makes them visible.
Text = SkipValidation[str]
# A number; null if there is none, and for NaN and infinities, which JSON does not have.
Number = Annotated[
    float | None, BeforeValidator(lambda value: value if value is None or math.isfinite(value) else None)
]
# Marks a field that is not a column of summary.csv.
JSON_ONLY = "json-only"


def about(text: str, json_name: str | None = None) -> Any:
    """Return a field with its description. json_name: its name in JSON, if that contains the unit."""
    return Field(description=text, serialization_alias=json_name)


class PublicModel(BaseModel):
    """A model that can also be made from an object, whose attributes have the names of the fields."""

    # Deferred: most verbs load these models and use none.
    model_config = ConfigDict(from_attributes=True, defer_build=True)


class _NamesOfKinds:
    """Lists the kinds of notices in the schema; the kinds of packages are loaded only for it."""

    @staticmethod
    def __get_pydantic_json_schema__(_: object, handler: object) -> Json:
        return {"type": "string", "enum": kinds()}


NoticeName = Annotated[str, _NamesOfKinds]


class PublicInterval(PublicModel):
    """A value and the interval around it."""

    value: Number
    low: Number
    high: Number
    kind: str = about("units of the interval; none: low and high are the value and mean nothing")


class PublicNotice(PublicModel):
    """A fact that a reader must know in addition to the numbers (`collbench list notices` has the kinds)."""

    kind: NoticeName = about("for programs; each kind has one sentence")
    text: Text = about("its sentence")
    remedy: Text = about("a remedy; empty if there is none")
    values: dict[str, Any] = about("the values of the sentence: seconds, bytes, shares, names")
    cases: tuple[str, ...] = about("keys of the cases that it is about; empty if it is about all")
    host: Text | None = about("the host that it is about; null if there is one only")
    run: Text | None = Field(None, description="in a comparison: the run that it is about; null if it is about both")


# Fields of options. An option whose values are objects is text.
OF_OPTIONS: Any = {
    option.name: (type(option.default) if isinstance(option.default, str | int | float) else str, about(option.about))
    for option in ALL_OPTIONS
}
# Fields that describe a case. mypy does not see fields that are made from the table of options.
CaseFields: Any = create_model(
    "CaseFields",
    __base__=PublicModel,
    key=(str, about("names the case; the same in every run that measures it")),
    op=(str, about("the collective, or another operation that was measured", "operation")),
    backend=(str, about("gloo, nccl, mpi, …")),
    world_size=(int, about("number of ranks")),
    dtype=(str, about("of the elements")),
    size_bytes=(int, about("size of the message; its meaning per operation: collbench list operations")),
    **OF_OPTIONS,
    asked_bytes=(int, about("the size that was asked for, which size_bytes may have rounded down")),
)


class PublicCase(CaseFields):  # type: ignore[misc]  # made above
    """A case and its result. Times are seconds of one call."""

    time_s: Number = about("of one call on the slowest rank: mean of the iterations, geometric mean over the launches")
    time_low_s: Number = about("lower end of its 95 % interval, or of the range of few launches; null if none is known")
    time_high_s: Number = about("upper end")
    interval: str | None = about("units of the interval")
    algbw: Number = about("algorithm bandwidth: size over time", "algbw_bytes_per_s")
    busbw: Number = about("bus bandwidth: algorithm bandwidth times the factor of the operation", "busbw_bytes_per_s")
    p10_s: Number = about("10 % of the iterations are faster; null if there are too few to say")
    p50_s: Number = about("50 %: the median")
    p90_s: Number = about("90 %")
    p99_s: Number = about("99 %")
    host_time_s: Number = about("GPUs: time by the host's clock, from an idle device to an idle device")
    fastest_rank_s: Number = about("as time_s, of the fastest rank")
    skew_s: Number = about("mean of last minus first arrival")
    pure_s: Number = about("mean of last end minus last arrival")
    floor_s: Number = about("time of the call in a group of one rank")
    timer_s: Number = about("cost of reading the clock")
    scatter: Number = about("standard deviation of the logarithms of the launches' means", "scatter_log_sd")
    asked: Number = about(
        "relative half-width that the configuration asks for within a launch; null if none", "precision_asked"
    )
    reached: Number = about(
        "the mean of those that were reached within launches; null without enough blocks", "precision_reached"
    )
    foreign_cpu: Number = about("share of the busy CPU time that other processes used", "foreign_cpu_share")
    launches: int = about("launches that gave a number")
    iterations: int = about("timed iterations of all launches")
    outliers: int = about("iterations more than 1.5 interquartile ranges above the upper quartile")
    far_outliers: int = about("more than 3")
    steady: bool = about("false if the times changed near an end of a launch")
    stopped_by: str = about("why the case ended")
    slow_share: float = about("share of the iterations in a second, slower mode; 0 if there is none")
    fast_mode_s: Number = about("mean of the iterations that are not in it; null if there is none")
    slow_mode_s: Number = about("mean of those that are")
    chosen: Text = about("NCCL's choice; empty if it was not recorded")
    imported: Text = about("how another tool computed the time; empty for our own")
    virtual: bool = about("true of times on virtual GPUs, which follow a rule and were not measured on hardware")
    failures: tuple[Text, ...] = about("failures, one sentence each")
    notices: tuple[PublicNotice, ...] = about("reasons to doubt the numbers of this case")


class PublicFinding(PublicModel):
    """A rank, node, link or size that stands out, with the evidence."""

    kind: FindingKind = about("finding")
    subject: Text = about("who it is, such as rank 2, node h5 or link 0–3")
    notice: PublicNotice = about("the finding, with its evidence")
    cases: tuple[str, ...] = about("keys of the cases that show it")
    rank: int | None = about("if the subject is one rank")
    ranks: tuple[int, ...] = about("all ranks that it is about")
    link: tuple[int, int] | None = about("both ends, if the subject is a link")
    cost_s: Number = about("time that it adds to an operation")
    share: Number = about("of iterations in which it came last; or by how much its time is longer")
    p: Number = about("p-value after correction for several tests")


class PublicDiagnosis(PublicModel):
    """The ranks, nodes and links that are slow, and what could not be determined and why."""

    findings: list[PublicFinding]
    silent: tuple[PublicNotice, ...] = about("findings that were looked for and not found, or could not be judged")


class RunFacts(PublicModel):
    """What a run is. All but its name are left out where they are not known."""

    name: Text
    started: str | None = Field(None, description="UTC")
    finished: str | None = Field(None, description="UTC")
    status: Text | None = None
    argv: list[Text] | None = Field(None, description="the command line")
    overrides: list[Text] | None = Field(None, description="changes by --set")
    collbench: Text | None = Field(None, description="version that measured")
    imported: dict[str, Any] | None = Field(None, description="of which files of which tool")


class PublicSkip(PublicModel):
    """A case that was not measured."""

    key: str
    reason: PublicNotice


class PublicRun(PublicModel):
    """A run of CollBench (report --format json)."""

    # Increased when a field is renamed, removed or changes its meaning; fields may be added without another number.
    schema_number: Literal[6] = Field(serialization_alias="schema")
    run: RunFacts
    environment: list[dict[str, Any]] = about("one entry a session: the machine before and after it")
    cases: list[PublicCase]
    skipped: list[PublicSkip]
    findings: list[PublicFinding]
    notices: tuple[PublicNotice, ...] = about("the gravest first")


# ── comparisons ──────────────────────────────────────────────────────────────────────────────────
def _model(name: str, fields: Json) -> Any:
    """Return a model with these fields, which mypy does not see: name → type. results-format.md explains them."""
    own: Any = {field: (kind, ...) for field, kind in fields.items()}
    return create_model(name, __base__=PublicModel, **own)


_list_of = list.__class_getitem__
# As in `PublicRun`; comparisons have numbers of their own.
_NUMBERED = {"schema_number": Annotated[Literal[1], Field(serialization_alias="schema")]}
_RATIO = {"ratio": Number, "ratio_low": Number, "ratio_high": Number, "interval": str | None}
_JUDGED = {
    "verdict": ChangeVerdict, **_RATIO, "level": Number, "p": Number, "reason": NoticeName,
    "further_launches": int | None, "pair_ratios": tuple[Number, ...],
}  # fmt: skip
_CHANGE = _model("PublicChange", {
    "key": str, "name": str, "before_s": Number, "after_s": Number, **_JUDGED, "exposed_before_s": Number,
    "exposed_after_s": Number, "exposed_difference_s": Number, "exposed_difference_low_s": Number,
    "exposed_difference_high_s": Number, "exposed_resolved": bool | None,
})  # fmt: skip
_UNPAIRED = _list_of(_model("PublicUnpaired", {"key": str, "name": str, "why": Absence, "reason": Text}))
_DIFFERENCE = _model("PublicDifference", {"fact": Text, "before": Text, "after": Text})
PublicComparison = _model("PublicComparison", {
    **_NUMBERED, "before": Text, "after": Text, "runs_before": list[Text], "runs_after": list[Text],
    "verdict": ChangeVerdict, "min_change": float, "across": str | None, "pairs": int, "fresh_pairs": int,
    "whole": _model("PublicJudgement", _JUDGED) | None, "fresh": _model("PublicRatio", _RATIO) | None,
    "cases": _list_of(_CHANGE), "differences": _list_of(_DIFFERENCE), "broken": _UNPAIRED, "only_before": _UNPAIRED,
    "only_after": _UNPAIRED, "ended": EndReason | None, "rule": PublicNotice | None, "notices": list[PublicNotice],
})  # fmt: skip
_POINT = _model("PublicPoint", {
    "run": Text, "time_s": Number, "time_low_s": Number, "time_high_s": Number, "interval": str | None, "step": bool,
})  # fmt: skip
_STEPS = _list_of(_model("PublicStep", {"run": Text, "ratio": Number}))
_TREND = _model("PublicTrend", {"key": str, "steps": _STEPS, "times": _list_of(_POINT)})
PublicTrends = _model("PublicTrends", {**_NUMBERED, "runs": list[Text], "cases": _list_of(_TREND)})


# ── filling the models ───────────────────────────────────────────────────────────────────────────
def case_values(summary: Summary) -> Json:
    """Return the values for the fields of `PublicCase`."""
    case, stall = summary.case, summary.stall
    computed = {
        **interval_columns(summary.time_s, "time_s", "time_low_s", "time_high_s", "interval"),
        "asked_bytes": case.asked,
        "slow_share": stall.share if stall else 0.0,
        "fast_mode_s": stall.fast_s if stall else None,
        "slow_mode_s": stall.slow_s if stall else None,
        "stopped_by": " and ".join(summary.stopped_by),
        "notices": tuple(map(public_notice, summary.notices)),
        "failures": [failure.text for failure in summary.failures],
    }
    values = {name: getattr(case, name) for name in CaseFields.model_fields if name not in OF_OPTIONS}
    values |= {option.name: _option_value(case, option) for option in ALL_OPTIONS}
    for name in PublicCase.model_fields:
        if name not in values and name not in computed:
            values[name] = getattr(summary, name)
    return values | computed


def _option_value(case: Case, option: Option) -> Any:
    """Return the value of an option; its default if the case's operation has no such option."""
    value = option.default if (own := case.value(option.name)) is None else own
    return value if isinstance(value, str | int | float) else str(value or "")


def public_notice(notice: Notice) -> PublicNotice:
    """Return the notice with its sentence and remedy."""
    values = {name: _plain(value) for name, value in notice.values.items() if value is not None}
    fields = {"kind": str(notice.kind), "text": notices.meaning(notice), "remedy": notices.remedy(notice)}
    about_run = {"run": notice.run} if notice.run is not None else {}
    return PublicNotice(**fields, values=values, cases=notice.cases, host=notice.host, **about_run)


def _plain(value: Value) -> Any:
    if isinstance(value, tuple):
        return [public_notice(part) if isinstance(part, Notice) else part for part in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def public_finding(finding: Finding) -> PublicFinding:
    """Return the finding, with the keys of its cases."""
    values = {name: getattr(finding, name) for name in PublicFinding.model_fields}
    converted = {"cases": [case.key for case in finding.cases], "notice": public_notice(finding.notice)}
    return PublicFinding(**values | converted)


def interval_columns(interval: Interval | None, *names: str) -> Json:
    """Return a value and its interval under these names: value, lower and upper limit, kind; kind may be left out.

    All are None if there is no value. The limits are None if the interval is unknown.
    """
    if interval is None:
        return dict.fromkeys(names)
    low, high = (interval.low, interval.high) if interval.known else (None, None)
    return dict(zip(names, (interval.value, low, high, interval.kind), strict=False))
