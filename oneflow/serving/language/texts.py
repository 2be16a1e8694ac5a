"""Text of a request as it is made: whole characters, up to a stop word."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from oneflow.serving.language.messages import Choice, Made
from oneflow.serving.language.tokenizer import Detokenizer, StopFinder, Tokenizer


@dataclass(frozen=True)
class Piece:
    """Text that can be sent, and the tokens that came with it.

    choices: may be a part of a character or of a stop word, whose text comes later or never.
    end: "stop" or "length" at the end. of_prompt: the choices are scores of the prompt.
    """

    text: str
    choices: list[Choice] = field(default_factory=list)
    end: str = ""
    of_prompt: bool = False


async def pieces(
    made: AsyncGenerator[Made, None], tokenizer: Tokenizer, stops: list[str]
) -> AsyncGenerator[Piece, None]:
    """Yield the text of tokens as they are made; a stop word closes `made`."""
    detokenizer, finder = Detokenizer(tokenizer), StopFinder(stops)
    async with aclosing(made) as found:
        async for some in found:
            if some.of_prompt:
                yield Piece("", some.choices, some.end, True)
                continue
            text, is_found, choices = "", False, []
            for choice in some.choices:
                more, is_found = finder.add(detokenizer.add(choice.token))
                text += more
                choices.append(choice)
                if is_found:
                    break
            end = "stop" if is_found else some.end
            if end and not is_found:
                text += finder.end()
            yield Piece(text, choices, end)
            if end:
                return
