"""Make the keys of a configuration from the table of options, and read their values.

In: rows of the table, and a section. Out: the section with a key for each row, whose validation gives the values of
cases: a `Division` of `strided:2`. Names no option, except those whose values are a table of the catalogue.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, create_model

from collbench.catalog import subgroups
from collbench.catalog.dtypes import REDUCE_OPS
from collbench.catalog.metrics import METRICS
from collbench.config.fields import READ, SECOND_IF_TEXT, Branch, Model, OneOf, Several, Strict, key
from collbench.model.divisions import Division
from collbench.model.records import Option

# Option → the table of the catalogue that has its values.
CATALOGUE: dict[str, Mapping[str, object]] = {"reduce_op": REDUCE_OPS, "metric": METRICS}
# Stands for a list of every rank.
ALL = "all"


def type_of(option: Option) -> Any:
    """Return the type of one value of an option in a file: a name, a division, or a number from 0 on."""
    if isinstance(option.default, str):
        names = option.names or tuple(CATALOGUE[option.name])
        return Annotated[str, OneOf(names, option.key.noun or option.name.replace("_", " "))]
    if isinstance(option.default, Division):
        return Annotated[str, AfterValidator(subgroups.parse)]
    return Annotated[type(option.default), Field(ge=option.key.least, le=option.key.most)]


def _declared(option: Option) -> tuple[Any, Any]:
    """Return the type and the declaration of the key of an option."""
    takes, examples, about = option.key.takes, option.key.examples, option.sentence
    value: Any = type_of(option)
    kind: Any = value if takes == "one" else Several[value]
    if takes == "either":
        kind = Annotated[kind | value, Branch(lambda written: not isinstance(written, list))]
    if takes == "all":
        about += " With all, each in turn."
        every = Annotated[str, OneOf((ALL,), option.name, f"or a list such as {examples[0]}")]
        kind = Annotated[kind | every, SECOND_IF_TEXT]
    default: Any = option.default if option.key.usual is None else option.key.usual
    default = default if isinstance(default, int | float | str) else str(default)
    usual = default if takes in {"one", "either"} else [default]
    return Annotated[kind, READ], key(about, *examples, default=usual, advanced=option.key.advanced)


def with_options(options: Iterable[Option], **more: Any) -> Callable[[type[Model]], type[Model]]:
    """Return a decorator of a section that adds the keys of options, except those that the section declares itself.

    more: key → type and declaration of further keys, which stand at the end.
    """

    def decorated(section: type[Model]) -> type[Model]:
        own, names, added, place = section.model_fields, [*section.model_fields, *more], {**more}, 0
        for option in (option for option in options if option.key):
            name, after = option.key.name, option.key.after
            if name not in own:
                names.insert(names.index(after) + 1 if after else place, name)
                added[name] = _declared(option)
            place = names.index(name) + 1
        # A model has its fields in the order of its bases.
        anything: Any = dict.fromkeys(names, (Any, None))
        added |= {"__base__": (section, create_model("Order", __base__=Strict, **anything)), "__doc__": section.__doc__}
        made: type[Model] = create_model(section.__name__, __module__=section.__module__, **added)
        return made

    return decorated


def values_of(section: Strict, option: Option, ranks: int = 1) -> Sequence[Any]:
    """Return the values that a section lists for an option with a key. ranks: number of ranks of the case."""
    values = getattr(section, option.key.name)
    if values == ALL:
        return range(ranks)
    return values if isinstance(values, list) else [values]
