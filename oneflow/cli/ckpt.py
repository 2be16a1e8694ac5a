"""`oneflow ckpt ...`: checkpoints on this host."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from oneflow.cli.group import choose_group
from oneflow.cli.output import output_option, show_json, table

PATH = click.argument("path", type=click.Path(path_type=Path))


@choose_group("Checkpoints on this host.")
def ckpt() -> None:
    pass


@ckpt.command("ls")
@output_option
@PATH
def list_checkpoints(how: str, path: Path) -> None:
    """Checkpoints in a folder, or the tensors of one."""
    from oneflow.core.errors import CheckpointError
    from oneflow.io.manifest import MANIFEST_FILE

    if (path / MANIFEST_FILE).exists():
        rows = list(_tensors(path))
        titles = ("tensor", "dtype", "shape", "parts")
    else:
        rows = list(_checkpoints(path))
        if not rows and any(path.iterdir()):
            raise CheckpointError(
                f"{path} holds no checkpoint (a folder with a {MANIFEST_FILE}), nor is it one"
            )
        titles = ("checkpoint", "shards", "bytes", "written")
    if how == "json":
        show_json([dict(zip(titles, row, strict=True)) for row in rows])
    else:
        click.echo(table(titles, rows))


def _tensors(path: Path) -> Iterator[tuple[Any, ...]]:
    from oneflow.io.decoding import places
    from oneflow.io.manifest import read_manifest

    manifest, _ = read_manifest(path)
    where = places(manifest.form)
    named = {where.get(name) or name: stored for name, stored in manifest.tensors.items()}
    for name, stored in sorted(named.items()):
        yield name, stored.dtype.name, json.dumps(list(stored.shape)), len(stored.parts)


def _checkpoints(path: Path) -> Iterator[tuple[Any, ...]]:
    from oneflow.core.errors import CheckpointError
    from oneflow.io.manifest import MANIFEST_FILE, read_manifest

    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder")
    for manifest_file in sorted(path.glob(f"*/{MANIFEST_FILE}")):
        manifest, _ = read_manifest(manifest_file.parent)
        written = time.gmtime(manifest_file.stat().st_mtime)
        nbytes = sum(size for _, size in manifest.files)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", written)
        yield manifest_file.parent.name, len(manifest.files), nbytes, when


@ckpt.command("verify")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
def verify(paths: tuple[Path, ...]) -> None:
    """Reads all of a checkpoint, of each in a folder, or of a job file, and compares every digest.

    The exit code is 83 for a checkpoint that is damaged, and 65 for a job file.
    """
    from oneflow.core.errors import CheckpointError
    from oneflow.io.manifest import MANIFEST_FILE

    for path in paths:
        in_it = sorted(file.parent for file in path.glob(f"*/{MANIFEST_FILE}"))
        if (path / MANIFEST_FILE).exists() or in_it:
            for folder in in_it or [path]:
                count, nbytes = _verify_shards(folder)
                click.echo(f"{folder}: {count} tensors, {nbytes} bytes: whole")
        elif path.is_file():
            from oneflow.jobs.jobfile import verify as verify_job

            found = verify_job(path)
            click.echo(f"{path}: {found.kind} job, {found.steps} steps: whole")
        else:
            raise CheckpointError(f"{path}: neither a checkpoint (no {MANIFEST_FILE}) nor a file")


@ckpt.command("convert")
@click.option(
    "--plain/--tree",
    default=True,
    help="Tensors by their names, for any reader (the default); or all that flow.load needs to "
    "give back what was saved.",
)
@click.option("--force", is_flag=True, help="In place of a file that is there.")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def convert(plain: bool, force: bool, source: Path, target: Path) -> None:
    """One safetensors file of a folder of shards, or of a checkpoint of PyTorch or OneFlow.

    One tensor is in memory at a time, and every digest is compared. `flow.load` gives a dict of
    the tensors, and with --tree the same as for the source.
    """
    from oneflow.core.errors import ConfigError
    from oneflow.io.convert import convert as run

    if target.exists() and not force:
        raise ConfigError(f"{target} is there already; --force replaces it")
    count, nbytes = run(source, target, plain)
    click.echo(f"{target}: {count} tensors, {nbytes} bytes")


def _verify_shards(path: Path) -> tuple[int, int]:
    from oneflow.io.load_shards import WholeShards

    shards, nbytes = WholeShards(path), 0
    try:
        for name in shards.shapes:
            nbytes += shards.read(name).nbytes
        return len(shards.shapes), nbytes
    finally:
        shards.close()
