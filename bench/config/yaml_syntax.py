"""Say in plain words what is wrong with the syntax of a YAML file.

In: the words of the YAML library. Out: words for people, and whether the error stands where the library began to read
(the bracket, quote or key that has no end) and not where it gave up.
"""

import re
from typing import NamedTuple


class PlainWords(NamedTuple):
    """text: what to change. at_beginning: whether the place is where the unfinished thing begins."""

    text: str
    at_beginning: bool = False


# Pattern in the library's words → ours. The first that is found holds.
_WORDS = (
    (r"character '\\t'", PlainWords("a tab stands here; indent with spaces")),
    (
        r"character '([@`%&*!|>,\]}])' that cannot start",
        PlainWords(r"a value cannot begin with \1; write it in quotes"),
    ),
    (
        r"mapping values are not allowed",
        PlainWords(
            "a colon is not expected here; indent the keys of a section alike, and write a value with ': ' in quotes"
        ),
    ),
    (r"could not find expected ':'", PlainWords("a colon is missing; write key: value, or '- value' in a list", True)),
    (r"expected ',' or ']'", PlainWords("this list has no ], or a comma is missing in it", True)),
    (r"expected ',' or '}'", PlainWords("this { has no }, or a comma is missing behind it", True)),
    (
        r"expected <block end>",
        PlainWords("this line does not fit those above; indent the keys of a section alike, and each '- ' of a list"),
    ),
    (r"found unexpected end of stream", PlainWords("the file ends, but this quote is not closed", True)),
    (r"found unexpected document separator", PlainWords("this quote is not closed", True)),
    (r"expected the node content", PlainWords("a value is missing here")),
    (r"unknown escape character '(.)'", PlainWords(r"\\\1 means nothing between double quotes; use single quotes")),
    (r"found another document|expected '<document start>'", PlainWords("something follows the end of the values")),
    (
        r"constructor for the tag 'tag:yaml.org,2002:(.*)'",
        PlainWords(r"tags such as !!\1 are not allowed; write a plain value"),
    ),
    (r"constructor for the tag '(.*)'", PlainWords(r"tags such as \1 are not allowed; write a plain value")),
    (r"undefined tag handle", PlainWords("tags are not allowed; write a value that begins with ! in quotes")),
    (
        r"undefined alias|while scanning an (alias|anchor)",
        PlainWords("write a value that begins with & or * in quotes"),
    ),
    (r"special characters are not allowed", PlainWords("a character that cannot be printed stands here")),
)


def plain_words(problem: str) -> PlainWords:
    """Our words for a problem of the YAML library; its own where there are none."""
    for pattern, words in _WORDS:
        if found := re.search(pattern, problem):
            return words._replace(text=found.expand(words.text))
    return PlainWords(problem)
