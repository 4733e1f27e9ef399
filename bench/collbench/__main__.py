"""`python -m collbench` is the command collbench."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. arguments: those of this process if None.

    Programs call `call` of `collbench.cli`, which has types.
    """
    try:
        from collbench.cli import call

        return call(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # while packages were loaded: nothing has begun
        return 130


if __name__ == "__main__":
    sys.exit(main())
