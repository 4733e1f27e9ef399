"""Write out the characters that a terminal would obey or that a reader could not see.

In: any text. Out: the same text, in which control characters, marks that turn the direction of writing, invisible
characters and halves of characters stand as JSON writes them, such as `\\u001b`: JSON that is shown so means the same.
"""

import unicodedata

# Control, format, surrogate, line separator, paragraph separator; and two that XML cannot hold.
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
NONE_IN_XML = "\ufffe\uffff"


def visible(text: str, kept: str = "\n\t") -> str:
    """The text with all characters visible but those that are kept."""
    odd = {c for c in set(text) if not c.isprintable() and c not in kept}
    hidden = {c for c in odd if unicodedata.category(c) in HIDDEN or c in NONE_IN_XML}
    return text.translate({ord(character): _written_out(character) for character in hidden}) if hidden else text


def _written_out(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))
