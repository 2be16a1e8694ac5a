"""`python -m oneflow` is the `oneflow` command."""

from __future__ import annotations


def main() -> None:
    """Runs the command line and exits with its code."""
    from oneflow.cli.main import cli

    cli(prog_name="oneflow")


if __name__ == "__main__":
    main()
