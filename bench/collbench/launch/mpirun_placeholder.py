"""Write the variables that identify an MPI process, and wait: the program that mpirun starts in place of a rank.

In, as arguments: a folder, a lock file and a folder in memory ("" if there is none). Out: the file `place-PID` in the
first folder, with the variables as JSON. The program ends when the lock is free: the measuring process has released
it, or has ended for any reason. The program then removes the folder in memory, because a killed process cannot. It
runs as a file of its own and imports nothing of the suite, so that it starts within milliseconds.
"""

import fcntl
import json
import os
import sys
from contextlib import suppress

PREFIXES = ("PMIX", "PRTE", "OMPI", "OPAL", "ORTE")


def main(folder: str, lock: str, memory: str) -> None:
    """Write the variables, wait for the lock, remove the folder in memory."""
    variables = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    part, place = (os.path.join(folder, f"{name}-{os.getpid()}") for name in ("part", "place"))  # noqa: PTH118
    with suppress(OSError):  # the folder is gone, as is the process that would have read this file
        with open(part, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes longer to load than all this
            json.dump(variables, file)
        os.rename(part, place)  # noqa: PTH104
        with open(lock, "rb") as file_of_lock:  # noqa: PTH123
            fcntl.flock(file_of_lock, fcntl.LOCK_SH)
    if memory:
        with suppress(OSError):
            for name in os.listdir(memory):  # noqa: PTH208
                with suppress(OSError):
                    os.unlink(os.path.join(memory, name))  # noqa: PTH108, PTH118
            os.rmdir(memory)  # noqa: PTH106


if __name__ == "__main__":
    main(*sys.argv[1:])
