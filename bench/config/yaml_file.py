"""Read YAML files strictly, and remember at which line and column each key and value stands.

In: the bytes of a file, and `--set` overrides. Out: a `Document`, or a ConfigError. Also writes plain values as YAML.
Knows no keys: `problems` holds a document against a model.

For safety it refuses tags beyond plain YAML, aliases (a few bytes of them expand to gigabytes), duplicate keys, and
files larger than MAX_YAML_BYTES.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.config.yaml_syntax import plain_words
from bench.model.errors import ConfigError

# A hundred times the longest configuration we know of; parsing time grows with it.
MAX_YAML_BYTES = 64 * 1024
# Longest text of a value in a message; longer ones are cut.
MOST_CHARACTERS = 60

Part = str | int


@dataclass(frozen=True, slots=True)
class Position:
    """Where a key or value stands. path: the keys as they are written. where: `file:line:column`, or `--set …`."""

    path: tuple[Part, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Document:
    """The keys and values of a whole file. source: its name in messages. root: the same as YAML nodes, with marks."""

    values: dict[str, Any]
    source: str
    root: yaml.MappingNode

    def override(self, text: str) -> None:
        """Apply one `--set key.path=value`. Raises ConfigError."""
        path, equals, value = text.partition("=")
        keys = path.strip().split(".")
        name = f"--set {short(text)}"
        if not equals or not all(keys):
            raise ConfigError(f"{name}: write key.path=value, such as --set sampling.iterations=20")
        place, node = self.values, self.root
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{name}: {key!r} holds {short(place)}, which has no keys of its own")
            node = _section(node, key, name)
        new, found = _load(value.encode(), name)
        place[keys[-1]] = new
        _replace(node, keys[-1], found or _empty(name), name)

    def place(self, path: Sequence[Part], of_key: bool = False) -> Position:
        """Where the value of a path stands, or its key. Parts of the path that are not in the file are left out."""
        node: yaml.Node = self.root
        written: list[Part] = []
        mark = None
        for part in path:
            step = _step(node, part, inward=bool(written))
            if step is not None:
                written += step.trail
                node, mark = step.value, step.key.start_mark if of_key else step.value.start_mark
        return Position(tuple(written), self._where(mark))

    def _where(self, mark: yaml.Mark | None) -> str:
        if mark is None:
            return self.source
        return f"{mark.name}:{mark.line + 1}:{mark.column + 1}" if mark.name == self.source else str(mark.name)


@dataclass(frozen=True, slots=True)
class _Step:
    """From a node to one within it. trail: the keys on the way."""

    trail: tuple[Part, ...]
    key: yaml.Node
    value: yaml.Node


def _step(node: yaml.Node, part: Part, inward: bool) -> _Step | None:
    """inward: whether `{ddp: {cap: 1MiB}}` may be read as a section with the key `cap`."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return _Step((part,), node.value[part], node.value[part])
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, value in node.value:
        if key.value == part:
            return _Step((str(part),), key, value)
    if inward and len(node.value) == 1:
        key, value = node.value[0]
        deeper = _step(value, part, inward=False)
        return deeper and _Step((key.value, *deeper.trail), deeper.key, deeper.value)
    return None


def _section(node: yaml.MappingNode, key: str, name: str) -> yaml.MappingNode:
    """The section of this key within a node; a new one if there is none."""
    step = next((value for known, value in node.value if known.value == key), None)
    if not isinstance(step, yaml.MappingNode):
        step = yaml.MappingNode("tag:yaml.org,2002:map", [], *_marks(name))
        _replace(node, key, step, name)
    return step


def _replace(node: yaml.MappingNode, key: str, value: yaml.Node, name: str) -> None:
    node.value = [(known, old) for known, old in node.value if known.value != key]
    node.value.append((yaml.ScalarNode("tag:yaml.org,2002:str", key, *_marks(name)), value))


def _empty(name: str) -> yaml.Node:
    return yaml.ScalarNode("tag:yaml.org,2002:null", "", *_marks(name))


def _marks(name: str) -> tuple[yaml.Mark, yaml.Mark]:
    mark = yaml.Mark(name, 0, 0, 0, None, 0)
    return mark, mark


# ── bytes to plain values ────────────────────────────────────────────────────────────────────────
def read(path: Path) -> bytes:
    """The bytes of a file, cut off after MAX_YAML_BYTES + 1."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_YAML_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def document(raw: bytes, source: str, example: str, sets: Sequence[str] = ()) -> Document:
    """Keys and values of a whole file, with overrides. source: its name in messages. example: of a key and value."""
    if len(raw) > MAX_YAML_BYTES:
        raise ConfigError(f"{source}: larger than {MAX_YAML_BYTES // 1024} KiB: not a file of CollBench")
    values, root = _load(raw, source)
    if not isinstance(values, dict) or not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{source}: expected keys and values such as '{example}', found {short(values)}")
    found = Document(values, source, root)
    for text in sets:
        found.override(text)
    return found


class _Loader(yaml.SafeLoader):
    """Plain YAML only: no aliases, no duplicate keys."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not allowed; write the value out", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(problem=_not_a_word(key), problem_mark=key.start_mark)
            if key.value in first:
                problem = f"key {key.value!r} is there twice, first in line {first[key.value]}; keep one of them"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            first[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep=deep)


def _not_a_word(key: yaml.Node) -> str:
    if isinstance(key, yaml.ScalarNode):
        return f"a key must be a plain word; write {short(key.value)} in quotes if it is one"
    return "a key must be a plain word, not a list or a section"


def _load(raw: bytes, source: str) -> tuple[Any, yaml.Node | None]:
    """A YAML value, and the same as nodes with marks. Raises ConfigError."""
    try:
        loader = _Loader(raw.decode("utf-8"))
        try:
            loader.name = source
            node = loader.get_single_node()
            return (None if node is None else loader.construct_document(node)), node
        finally:
            loader.dispose()
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: not text (UTF-8)") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_of_syntax(error, source)) from None
    except yaml.reader.ReaderError as error:
        before = raw.decode("utf-8")[: error.position]
        column = len(before) - before.rfind("\n")
        words = plain_words(str(error)).text
        raise ConfigError(f"{source}:{before.count(chr(10)) + 1}:{column}: {words}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())[:200]}") from None


def _of_syntax(error: yaml.MarkedYAMLError, source: str) -> str:
    words = plain_words(error.problem or error.context or "not YAML")
    mark = (error.context_mark if words.at_beginning else None) or error.problem_mark
    where = f":{mark.line + 1}:{mark.column + 1}" if mark and not source.startswith("--set ") else ""
    return f"{source}{where}: {words.text}"


def dump(settings: dict[str, Any]) -> str:
    """The YAML of plain values, in their order: each key with its value on one line."""
    return yaml.safe_dump(settings, default_flow_style=None, sort_keys=False, width=1000)


def short(value: Any) -> str:
    """A value as it was written, cut to fit into a line."""
    if value is None or value == "":
        return "(empty)"
    text = in_flow(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


def in_flow(value: Any) -> str:
    """A value on one line, for people: as in YAML's flow style, without quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {in_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(in_flow, value))}]"
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
