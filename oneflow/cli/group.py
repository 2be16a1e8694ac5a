"""Groups of verbs: an error of ours is one line on standard error and its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from typing import Any

import click

from oneflow.cli.output import FORMAT, error_line, say
from oneflow.core.errors import ConfigError, OneFlowError, is_disk_full
from oneflow.core.reasons import CODES

WANTS_JSON = "oneflow.wants_json"
CONTEXT = {"help_option_names": ["-h", "--help"]}


class Verbs(click.Group):
    """A group whose errors end the program in one line."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the verbs that a mistyped one may have meant: a group does not import them all."""
        if args and self.get_command(context, args[0]) is None and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.list_commands(context))
            named = " or ".join(repr(name) for name in near)
            if near and not context.resilient_parsing:
                context.fail(f"No such command {args[0]!r}. Did you mean {named}?")
        return super().resolve_command(context, args)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except OneFlowError as error:
            end_with(error, context.meta.get(FORMAT) == "json")
        except click.UsageError as error:
            if not context.find_root().meta.get(WANTS_JSON):
                raise
            print(usage_line(error), file=sys.stderr, flush=True)
            raise SystemExit(error.exit_code) from None
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            raise SystemExit(130) from None
        except BrokenPipeError:
            _be_quiet()
            raise SystemExit(141) from None
        except UnicodeEncodeError as error:  # bytes of the command line that are no text
            text = f"{error.object[:80]!a} is no text: only UTF-8 is understood"
            end_with(ConfigError(text), context.meta.get(FORMAT) == "json")
        except OSError as error:  # of a file that was named: a path that is too long, a full disk
            end_with(_file_error(error), context.meta.get(FORMAT) == "json")


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, as far as that can be said before it is understood."""
    own = list(arguments)
    own = own[: own.index("--")] if "--" in own else own
    if any(word in ("-ojson", "-o=json", "--output=json") for word in own):
        return True
    return any(o in ("-o", "--output") and word == "json" for o, word in pairwise(own))


def usage_line(error: click.UsageError) -> str:
    """A command line that makes no sense, for programs: one line of JSON."""
    told = {"type": "UsageError", "reason": "USER_ERROR", "exit_code": error.exit_code}
    return json.dumps({"error": told | {"message": error.format_message()}})


class LazyVerbs(Verbs):
    """Imports a group's module when one of its verbs is asked for.

    groups: name -> (module, attribute, help in one line).
    """

    groups: dict[str, tuple[str, str, str]] = {}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        is_json = wants_json(args)
        context = super().make_context(info_name, args, parent, **extra)
        context.meta[WANTS_JSON] = is_json
        return context

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *self.groups})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in self.groups:
            module, attribute, _ = self.groups[name]
            found: click.Command = getattr(import_module(module), attribute)
            return found
        return super().get_command(context, name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        rows = []
        for name in self.list_commands(context):
            if name in self.groups:
                rows.append((name, self.groups[name][2]))
            elif (command := super().get_command(context, name)) and not command.hidden:
                rows.append((name, command.get_short_help_str()))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _file_error(error: OSError) -> OneFlowError:
    """Make an error of a full disk, or of a file that was named and cannot be."""
    name = f"{str(error.filename)[:200]}: " if error.filename is not None else ""
    found = ConfigError(f"{name}{error.strerror or error}")
    if is_disk_full(error):
        found.reason, found.exit_code = "DISK_FULL", CODES["DISK_FULL"]
    return found


def end_with(error: OneFlowError, is_json: bool = False) -> None:
    """The one line, and the exit code of the error's type. is_json: an object, for programs."""
    if is_json:
        print(error_line(error), file=sys.stderr, flush=True)
    else:
        say(" ".join(str(error).split()))
    raise SystemExit(error.exit_code)


def _be_quiet() -> None:
    """Keep Python from complaining when it flushes after the reader of our output has gone."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def choose_group(help: str) -> Callable[[Callable[..., Any]], Verbs]:
    """A group of verbs with our way to end."""
    return click.group(cls=Verbs, context_settings=CONTEXT, help=help)
