"""Damage files at random: values, words or bytes are replaced, deleted, repeated or cut off."""

import copy
import json
import random

ODD = (
    None, True, 0, -1, 3, 10**9, 2**31, 2**63, -(2**70), 10**400, 1e-9, 1e308, float("nan"), float("inf"), "", "x",
    "nan", "-1", "\x1b[2J\u202e\ud800", "<img src=http://a.example>|`", "=1+1", "a/b", "x" * 5000, [], {}, [[]], [0],
    {"x": 1}, ["x", 1, None], [[1, 2], [3]],
)  # fmt: skip
PIECES = (
    b"\n", b"\r", b"\0", b"\x1b[31m", b"9" * 60, b"-1", b"1e999", b"nan", b" 0 ", b"\xff\xfe", b'"', b"{", b"}", b"[",
    b"]", b":", b"- ", b"*a", b"&a", b"!!python/object:os.system", b"1000000000", b"null", b"[" * 2000, b"{x: " * 200,
)  # fmt: skip


def mutated(content: bytes, name: str, chance: random.Random) -> bytes:
    """Return the file with a few values, words or bytes replaced, or cut off."""
    if name.endswith((".json", ".jsonl")) and chance.random() < 0.7:
        return in_values(content, chance)
    if name.endswith(".yaml") and chance.random() < 0.6:
        return in_lines(content, chance)
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        data[at : at + chance.choice((0, 1, 3, 30))] = chance.choice(PIECES)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.15 else data)


def in_values(content: bytes, chance: random.Random) -> bytes:
    """Return a JSON document, or lines of JSON, with values replaced, deleted or repeated."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    at = chance.randrange(len(lines))
    document = json.loads(lines[at])
    for _ in range(chance.randint(1, 3)):
        inner, key = chance.choice(list(places(document)) or [(None, None)])
        action = chance.random()
        if inner is None:
            document = copy.deepcopy(chance.choice(ODD))
        elif action < 0.15:
            del inner[key]
        elif action < 0.25 and isinstance(inner, list):
            inner[:] = inner * chance.choice((2, 50))
        else:
            inner[key] = copy.deepcopy(chance.choice(ODD))
    lines[at] = json.dumps(document).encode()
    return b"\n".join(lines) + b"\n"


def in_lines(content: bytes, chance: random.Random) -> bytes:
    """Return a YAML file with the values of keys replaced."""
    lines = content.split(b"\n")
    keys = [number for number, line in enumerate(lines) if b": " in line and not line.lstrip().startswith(b"#")]
    for number in chance.sample(keys, min(len(keys), chance.randint(1, 2))):
        lines[number] = lines[number].partition(b": ")[0] + b": " + json.dumps(chance.choice(ODD)).encode()
    return b"\n".join(lines)


def places(value: object):
    """Yield the container and the key of every value in a tree."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(inner):
        yield value, key
        yield from places(part)
