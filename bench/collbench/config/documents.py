"""Read YAML files strictly, and report the line and column of each key or value.

In: the bytes of a file, and `--set` overrides. Out: a `Document`, or a ConfigError. Also writes plain values as YAML.
Knows no keys: `fields.validate` checks a document against a model.

For safety it refuses tags, aliases (a few bytes of them expand to gigabytes), duplicate keys, and files larger than
MAX_YAML_BYTES.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.parser import RoundTripParser
from ruamel.yaml.reader import ReaderError

from collbench.model.errors import ConfigError

# A hundred times the longest configuration we know of; parsing time grows with the size.
MAX_YAML_BYTES = 64 * 1024
# Deepest nesting; our files have a depth of 3. The time of the YAML library grows with the cube of the depth.
MOST_DEPTH = 30
# Longest text of a value in a message; longer ones are cut.
MOST_CHARACTERS = 60
# Message of the YAML library without a remedy → message with a remedy. The first pattern that matches applies.
BETTER_WORDS = (
    (r"character '\\t'", "there is a tab here; indent with spaces"),
    (r"mapping values are not allowed", "a colon is not expected here; indent all keys of a section equally, "
     "and write a value with ': ' in quotes"),
    (r"could not find expected ':'", "a colon is missing; write key: value, or '- value' in a list"),
    (r"expected ',' or '([]}])'", r"a comma or \1 is missing here"),
    (r"expected <block end>", "this line does not fit the lines above; indent all keys of a section equally"),
    (r"found unexpected (end of stream|document sep)", "this quote is not closed"),
    (r"found duplicate key (\S+)", r"key \1 is there twice; keep one of them"),
)  # fmt: skip

Part = str | int
# The place of a key or value: the keys as they are written; `file:line:column`, or `--set …`; and the order of places,
# in which overrides, and values without a place, come last.
Position = tuple[tuple[Part, ...], str, tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Document:
    """The keys and values of a whole file."""

    # Name of the file in messages.
    source: str
    root: CommentedMap
    # Path of a value that `--set` has replaced → that override, as messages name it.
    overrides: dict[tuple[Part, ...], str] = field(default_factory=dict)

    def override(self, text: str) -> None:
        """Apply one `--set key.path=value`. Raises ConfigError."""
        path, equals, value = text.partition("=")
        keys = path.strip().split(".")
        name = f"--set {short(text)}"
        if not equals or not all(keys):
            raise ConfigError(f"{name}: write key.path=value, such as --set sampling.iterations=20")
        section = self.root
        for depth, key in enumerate(keys[:-1], start=1):
            if key not in section:
                section[key] = CommentedMap()
                self.overrides[tuple(keys[:depth])] = name
            section = section[key]
            if not isinstance(section, dict):
                raise ConfigError(f"{name}: {key!r} holds {short(section)}, which has no keys of its own")
        section[keys[-1]] = _load(value.encode(), name, located=False)
        self.overrides[tuple(keys)] = name

    def place(self, path: Sequence[Part], at_key: bool = False) -> Position:
        """Return the position of the value at a path, or of its key. Parts that are not in the file are left out."""
        node: Any = self.root
        written: list[Part] = []
        where, order, overridden = self.source, (float("inf"), 0), False
        for part in path:
            if written and isinstance(node, dict) and part not in node and len(node) == 1:
                (name,) = node  # in {ddp: {cap: 1MiB}}, cap is a setting of the section itself
                if isinstance(node[name], dict) and part in node[name]:
                    written, node = [*written, name], node[name]
            if not (part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))):
                continue
            mark = None
            if not overridden:
                marks: Any = node.lc
                with contextlib.suppress(KeyError, TypeError):  # a key of a merged section (<<) has no mark
                    mark = marks.item(part) if isinstance(node, list) else (marks.key if at_key else marks.value)(part)
            written, node = [*written, part], node[part]
            if name := self.overrides.get(tuple(written)):
                where, order, overridden = name, (float("inf"), len(self.overrides)), True
            elif mark:
                where, order = f"{self.source}:{mark[0] + 1}:{mark[1] + 1}", (mark[0], mark[1])
        return tuple(written), where, order


def read(path: Path) -> bytes:
    """Read the bytes of a file, at most MAX_YAML_BYTES + 1. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_YAML_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def document(raw: bytes, source: str, example: str, sets: Sequence[str] = ()) -> Document:
    """Parse these bytes into a document and apply overrides. Raises ConfigError.

    source: name of the document in messages. example: minimal content, for a message.
    """
    if len(raw) > MAX_YAML_BYTES:
        raise ConfigError(f"{source}: larger than {MAX_YAML_BYTES // 1024} KiB: not a file of CollBench")
    root = _load(raw, source)
    if not isinstance(root, CommentedMap):
        raise ConfigError(f"{source}: expected keys and values such as '{example}', found {short(root)}")
    read_document = Document(source, root)
    for text in sets:
        read_document.override(text)
    return read_document


class _StrictParser(RoundTripParser):
    """A parser that refuses forbidden YAML at once, before the library makes a value of it."""

    depth = 0

    def get_event(self) -> Any:
        """Return the next event; raises MarkedYAMLError."""
        event = super().get_event()
        self.depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if self.depth > MOST_DEPTH:
            raise MarkedYAMLError(None, None, "nested too deeply", event.start_mark)
        if isinstance(event, AliasEvent):
            raise MarkedYAMLError(None, None, "aliases (*name) are not allowed; write it out", event.start_mark)
        if tag := getattr(event, "tag", None):
            raise MarkedYAMLError(None, None, f"tags such as {tag} are not allowed", event.start_mark)
        return event


def _load(raw: bytes, source: str, located: bool = True) -> Any:
    """Return a YAML value with marks. located: errors state the line. Raises ConfigError."""
    try:
        text = raw.decode("utf-8")
        yaml: Any = YAML(pure=True)
        yaml.Parser = _StrictParser
        value = yaml.load(text)
        _check_keys(value, source)
        return value
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: not text (UTF-8)") from None
    except MarkedYAMLError as error:
        words = str(error.problem or error.context or "not YAML")
        at_beginning = error.context_mark if re.search("could not find|end of stream|expected ','", words) else None
        mark = at_beginning or error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark and located else ""
        matches = ((re.search(pattern, words), better) for pattern, better in BETTER_WORDS)
        words = next((match.expand(better) for match, better in matches if match), words)
        raise ConfigError(f"{source}{where}: {words}") from None
    except ReaderError as error:
        before = text[: error.position]
        where = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        raise ConfigError(f"{source}:{where}: there is an unprintable character here") from None
    except (YAMLError, ValueError, TypeError, AttributeError, AssertionError, LookupError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())[:200]}") from None


def _check_keys(node: Any, source: str) -> None:
    """Raise ConfigError if a key is not text, or if a text contains half of a character, such as "\\ud800"."""
    if isinstance(node, str) and re.search("[\ud800-\udfff]", node):
        raise ConfigError(f"{source}: {short(node)}: half of a character, which cannot be part of a text")
    if isinstance(node, CommentedMap):
        for key in node:
            if not isinstance(key, str):
                line, column = node.lc.key(key)
                text = f"a key must be a plain word; write {short(plain(key))} in quotes if it is one"
                raise ConfigError(f"{source}:{line + 1}:{column + 1}: {text}")
    for inner in [*node.keys(), *node.values()] if isinstance(node, dict) else node if isinstance(node, list) else ():
        _check_keys(inner, source)


def plain(value: Any) -> Any:
    """Return the value without the types in which the YAML library keeps marks and styles."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), lambda value: value)
    return kind(value)


def dump(settings: dict[str, Any]) -> str:
    """Return plain values as YAML, in their order: each key with its value on one line."""
    yaml: Any = YAML(typ="safe", pure=True)
    text = StringIO()
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output, yaml.width = None, False, 1000
    yaml.dump(settings, text)
    return text.getvalue()


def short(value: Any) -> str:
    """Return a value as it was written, cut to fit into a line."""
    if value is None or value == "":
        return "(empty)"
    text = in_flow(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


def in_flow(value: Any) -> str:
    """Return a value on one line, for people: as in YAML's flow style, without quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {in_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(in_flow, value))}]"
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
