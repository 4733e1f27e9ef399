"""Escape the characters that a terminal would obey or that a reader could not see.

In: any text. Out: the same text, with JSON escapes such as `\\u001b` for control characters, marks that change the
writing direction, invisible characters and halves of characters. JSON that is shown in this way means the same.
"""

import unicodedata

# Control, format, surrogate, line separator, paragraph separator; and two that XML cannot contain.
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
NONE_IN_XML = "\ufffe\uffff"


def visible(text: str, kept: str = "\n\t") -> str:
    """Return the text with all invisible characters escaped, except the characters in `kept`."""
    odd = {c for c in set(text) if not c.isprintable() and c not in kept}
    hidden = {c for c in odd if unicodedata.category(c) in HIDDEN or c in NONE_IN_XML}
    units = {character: character.encode("utf-16-be", "surrogatepass").hex(" ", 2) for character in hidden}
    return text.translate({ord(c): f"\\u{units[c]}".replace(" ", "\\u") for c in hidden}) if hidden else text
