"""Ask Open MPI which algorithms it has.

In: nothing. Out: name of a collective → name → number, from `ompi_info`, which comes with mpirun.
"""

import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping

from collbench.machine import host
from collbench.model.errors import UnmeasurableError

LONGEST_S = 60.0
_LINE = re.compile(r"mca:coll:tuned:param:coll_tuned_(\w+)_algorithm:enumerator:value:(\d+):(\S+)")


def algorithms() -> Mapping[str, Mapping[str, int]]:
    """Return Open MPI's algorithms without number 0, which lets the library decide. Raises UnmeasurableError."""
    program = host.mpirun()
    if program is None:
        raise UnmeasurableError(f"mpirun was not found: {host.MPI_REMEDY}")
    command = [str(program.with_name("ompi_info")), "--parsable", "--param", "coll", "tuned", "--level", "9"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnmeasurableError(f"{command[0]} does not list Open MPI's algorithms: {error}") from None
    numbers: dict[str, dict[str, int]] = defaultdict(dict)
    for collective, number, name in _LINE.findall(done.stdout):
        if int(number):
            numbers[collective][name] = int(number)
    if not numbers:
        raise UnmeasurableError(f"{' '.join(command)}: it lists no algorithms: is mpirun Open MPI's, version 5?")
    return dict(numbers)
