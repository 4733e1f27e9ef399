"""`python -m bench` is the command collbench."""

import sys

from run_bench import main

if __name__ == "__main__":
    sys.exit(main())
