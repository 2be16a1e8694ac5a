"""The verb `oneflow serve`: a folder with a model or with graphs, over HTTP and gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oneflow.cli.output import say
from oneflow.core.errors import ConfigError
from oneflow.serving.limits import Limits

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=8000, show_default=True, help="0: any free one.")
@click.option("--http", metavar="HOST:PORT", help='The same in one, for graphs; "": no HTTP.')
@click.option("--grpc", default="127.0.0.1:8001", show_default=True, metavar="HOST:PORT",
              help='Address of gRPC, for graphs; "": no gRPC.')  # fmt: skip
@click.option("--cluster", default="", metavar="HOST:PORT",
              help="The scheduler whose devices run graphs; else as configured.")  # fmt: skip
@click.option("--name", help="Name of the model to clients; else that of the folder.")
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True)
@click.option("--tensor-parallel", type=click.IntRange(1), default=1, show_default=True,
              help="Ranks that share each replica.")  # fmt: skip
@click.option("--context", type=click.IntRange(0), default=0,
              help="Tokens of a sequence at most; else the model's, up to 8192.")  # fmt: skip
@click.option("--cache-tokens", type=click.IntRange(0), default=0,
              help="Tokens in the cache of a replica; else what fits 2 GiB.")  # fmt: skip
@click.option("--max-running", type=click.IntRange(1, 32), default=32, show_default=True,
              help="Sequences of a replica that run at once.")  # fmt: skip
@click.option("--step-tokens", type=click.IntRange(1), default=128, show_default=True,
              help="Tokens of a step at most; prompts go in pieces.")  # fmt: skip
@click.option("--max-requests", type=click.IntRange(1), default=256, show_default=True,
              help="Sequences that run or wait; more are refused with 429.")  # fmt: skip
@click.option("--max-body", type=click.IntRange(1),
              help="Bytes of a request; else 8 MiB, for graphs 64 MiB.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=600.0,
              show_default=True, help="Seconds of an answer.")  # fmt: skip
@click.option("--first-token", type=click.FloatRange(0, min_open=True), default=60.0,
              show_default=True,
              help="Seconds that a request may wait for its first token; else 429.")  # fmt: skip
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Seconds that answers have to end after SIGTERM.")  # fmt: skip
@click.option("--api-key-file", type=FILE, envvar="ONEFLOW_SERVE_API_KEY_FILE",
              help="What clients have to show; mode 0600.")  # fmt: skip
@click.option("--tls-cert", type=FILE)
@click.option("--tls-key", type=FILE)
def serve(path: Path, **flags: object) -> None:
    """Serves PATH until a signal ends it.

    A folder with a config.json is a language model of Hugging Face's form (llama, mistral, qwen2,
    gpt2), for clients of OpenAI's API. Any other is a repository of graphs, NAME/VERSION/*.job, for
    clients of KServe and Triton.
    """
    is_language = (path / "config.json").exists()
    if is_language and flags["http"] is not None:
        raise ConfigError(f"--http is for graphs; {path} is a language model: --host and --port")
    limits = _limits(flags, body_nbytes=8 << 20 if is_language else 64 << 20)
    try:
        (_serve_language if is_language else _serve_repository)(path, flags, limits)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"oneflow serve needs the package {error.name}: pip install 'oneflow-actors[serve]'"
        ) from None


def _limits(flags: dict[str, Any], body_nbytes: int) -> Limits:
    return Limits(
        requests=flags["max_requests"],
        body_nbytes=flags["max_body"] or body_nbytes,
        timeout_s=flags["timeout"],
        first_token_s=flags["first_token"],
        drain_s=flags["drain"],
    )


def _serve_language(path: Path, flags: dict[str, Any], limits: Limits) -> None:
    from oneflow.serving.openai.server import ServerSettings, serve

    engine = {
        "context": flags["context"],
        "cache_tokens": flags["cache_tokens"],
        "budget": max(flags["step_tokens"], flags["max_running"]),
        "most": flags["max_running"],
    }
    settings = ServerSettings(
        folder=path.resolve(),
        name=flags["name"] or path.resolve().name,
        host=flags["host"],
        port=flags["port"],
        key=_read_key(flags["api_key_file"]),
        replicas=flags["replicas"],
        ranks=flags["tensor_parallel"],
        arguments=tuple(word for name, n in engine.items() for word in (f"--{name}", str(n))),
        limits=limits,
        certificate=flags["tls_cert"],
        certificate_key=flags["tls_key"],
    )
    serve(settings, say)


def _serve_repository(path: Path, flags: dict[str, Any], limits: Limits) -> None:
    from oneflow.serving.kserve.server import RepositorySettings, serve_repository

    http = f"{flags['host']}:{flags['port']}" if flags["http"] is None else flags["http"]
    settings = RepositorySettings(
        root=path.resolve(),
        http=http,
        grpc=flags["grpc"],
        cluster=flags["cluster"],
        replicas=flags["replicas"],
        key=_read_key(flags["api_key_file"]),
        limits=limits,
        certificate=flags["tls_cert"],
        certificate_key=flags["tls_key"],
    )
    serve_repository(settings, say)


def _read_key(path: Path | None) -> str:
    from oneflow.scheduler.jobs.tokens import read_token_file

    return "" if path is None else read_token_file(path)
