#!/usr/bin/env python3
"""Entry point: `python run_bench.py --help`."""


def main() -> None:
    """Hand over to the command line; loaded here, so that ranks which read this file load nothing."""
    from bench.cli import app

    app()


if __name__ == "__main__":
    main()
