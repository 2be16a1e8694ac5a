"""`oneflow config ...`: the settings in force."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oneflow.cli.group import choose_group
from oneflow.cli.output import output_option, show_json, table
from oneflow.services.quantities import exact_duration, show_size

if TYPE_CHECKING:
    from oneflow.cluster.settings import Key


def _shown(key: Key, value: Any) -> str:
    """Return a value as it would be written in a file."""
    if key.kind == "flag":
        return "true" if value else "false"
    if key.kind in ("list", "folders", "queues"):
        return ", ".join(value)
    if key.kind == "size" and value:
        return show_size(value)
    if key.kind == "duration" and value:
        return exact_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@choose_group("What is configured.")
def config() -> None:
    pass


@config.command("show")
@click.option("--origin", is_flag=True, help="Where each value came from.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="A cluster.toml.")
@output_option
def show(origin: bool, file: Path | None, how: str) -> None:
    """Every key of a cluster.toml or config.toml, and its value."""
    from oneflow.cluster.settings import load_settings

    found = load_settings(file=file).items()
    if how == "json":
        show_json({k.name: {"value": v.value, "origin": v.origin} for k, v in found})
        return
    titles = ["key", "value"] + (["origin"] if origin else ["what it is"])
    rows = [(k.name, _shown(k, v.value), v.origin if origin else k.text) for k, v in found]
    if how == "wide":
        titles.append("variable")
        wide = [(*row, k.variable) for row, (k, _) in zip(rows, found, strict=True)]
        click.echo(table(titles, wide))
        return
    click.echo(table(titles, rows))
