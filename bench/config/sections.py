"""What the models of configurations are made of: a strict section, a choice among names, a list without repetitions.

A validator raises ValueError with words for people; `problem_at` is for one that knows which value is wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic import ValidationError as _ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from bench.config.yaml_file import short
from bench.model.spelling import allowed

# The types of our own problems, among pydantic's: a wrong value, and an unknown key.
OURS, UNKNOWN = "ours", "unknown"
T = TypeVar("T")


class Strict(BaseModel):
    """Base of every section: no unknown keys, no silent conversions, and frozen once it is validated."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False, allow_inf_nan=False)

    @classmethod
    def required_besides(cls, values: Mapping[str, Any]) -> Mapping[str, str]:
        """Keys that are missing because of the values of others, and why. values: the plain ones, not validated."""
        return {}


def problem_at(path: Sequence[str | int], text: str) -> _ValidationError:
    """What a validator raises for a value within its own. path: from there. text: the value and what is allowed."""
    return problems_at([(path, text)])


def problems_at(found: Sequence[tuple[Sequence[str | int], str]]) -> _ValidationError:
    """The same for several values: path and text of each."""
    details = [
        InitErrorDetails(type=PydanticCustomError(OURS, "{text}", {"text": text}), loc=tuple(path), input=text)
        for path, text in found
    ]
    return _ValidationError.from_exception_data("section", details)


def unknown_keys(found: Sequence[str], keys: Sequence[str]) -> _ValidationError:
    """What a validator raises for unknown keys of a section that takes other keys than its model has."""
    error = PydanticCustomError(UNKNOWN, "unknown key", {"keys": list(keys)})
    return _ValidationError.from_exception_data(
        "section", [InitErrorDetails(type=error, loc=(key,), input=key) for key in found]
    )


@dataclass(frozen=True)
class OneOf:
    """Pydantic metadata: text that must be one of these names. what: such as dtype. others: what else is allowed."""

    names: tuple[str, ...]
    what: str
    others: str = ""

    def check(self, value: Any) -> Any:
        if not isinstance(value, str) or value not in self.names:
            raise ValueError(f"{short(value)} is no {self.what}{allowed(value, self.names, self.others)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}


def _distinct(values: list[Any]) -> list[Any]:
    twice = [index for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise problems_at([((index,), f"{short(values[index])} is listed twice") for index in twice])
    return values


Several = Annotated[list[T], Field(min_length=1), AfterValidator(_distinct)]
