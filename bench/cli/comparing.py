"""Verbs that lay runs side by side: `compare`."""

import json
from typing import Annotated

import typer

from bench import store
from bench.cli.app import PLOTS, RESULTS, Format, verb


@verb
def compare(
    before: Annotated[str, typer.Argument(help="The earlier run.", metavar="BEFORE")],
    after: Annotated[str, typer.Argument(help="The later run.", metavar="AFTER")],
    format: Annotated[Format | None, typer.Option(help="Only this, to stdout; no picture.")] = None,  # noqa: A002
) -> None:
    """Lay two runs side by side: the ratio of each common case with its interval."""
    compare_and_show(before, after, format)


def compare_and_show(before: str, after: str, format: Format | None) -> None:  # noqa: A002
    from bench.analyze import stats
    from bench.analyze.compare import compare as laid_side_by_side
    from bench.present import tables

    old, new = (store.read(store.find(RESULTS, name)) for name in (before, after))
    result = laid_side_by_side(old, new, stats.summarize(old), stats.summarize(new))
    if format is Format.JSON:
        typer.echo(json.dumps(tables.comparison_rows(result), indent=1))
        return
    if format is Format.CSV:
        typer.echo(tables.comparison_csv(result), nl=False)
        return
    typer.echo(tables.comparison_document(result))
    if format is None:
        from bench.present import plots as pictures

        typer.echo(f"\n{pictures.draw_comparison(result, PLOTS / f'{old.name}-vs-{new.name}')}")
