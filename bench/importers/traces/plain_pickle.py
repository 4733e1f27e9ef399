"""Read a pickle of plain data, which is what torch's flight recorder writes when a job hangs, without running anything.

In: bytes. Out: JSON. The unpickler makes no object of any class and calls nothing: whatever names a class or a function
ends the reading. This is the only place that unpickles anything.
"""

import io
import json
import pickle
from typing import Never

from bench.model.errors import ForeignError

# First byte of pickles since protocol 2.
BEGINS = b"\x80"


class PlainData(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries, and refuses everything that would run code."""

    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a recording needs no class")


def as_json(name: str, data: bytes, most: int) -> str:
    """The data as JSON. name: of the file, for messages. most: characters. Raises ForeignError.

    A pickle of a few hundred bytes can refer to its own lists so often that its JSON fills any memory.
    """
    try:
        parts, length = [], 0
        for part in json.JSONEncoder().iterencode(PlainData(io.BytesIO(data)).load()):
            length += len(part)
            if length > most:
                raise ValueError(f"it holds more than {most} characters")
            parts.append(part)
        return "".join(parts)
    except Exception as error:  # a damaged pickle can raise anything
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise ForeignError(f"{name}: a pickle that cannot be read: {text[:120]}") from None
