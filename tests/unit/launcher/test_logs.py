"""Ranks' output: whole lines, safe characters, one prefix per line."""

from __future__ import annotations

import os
import random

from oneflow.launcher.logs import PIECE_CHARS, Console, LineSplitter, escape, line_prefix


def shown(writes: list[tuple[str, str, bool]]) -> str:
    reading, writing = os.pipe()
    console = Console(writing)
    for prefix, text, ends in writes:
        console.write(prefix, text, ends)
    console.close()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def test_lines_are_whole_however_the_bytes_arrive() -> None:
    data = "naïve\nzwei\r\nprogress 1\rprogress 2\n".encode()
    for seed in range(50):
        random_, splitter, lines, start = random.Random(seed), LineSplitter(), [], 0
        while start < len(data):
            end = start + random_.randint(1, 5)
            lines += splitter.feed(data[start:end])
            start = end
        assert [text for text, ends in lines if ends] == [
            "naïve",
            "zwei",
            "progress 1",
            "progress 2",
        ]


def test_an_unfinished_line_is_kept_until_flushed() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"half") == []
    assert splitter.flush() == [("half", False)]
    assert splitter.feed(b" done\n") == [(" done", True)]


def test_an_overlong_line_goes_out_in_pieces_and_is_not_lost() -> None:
    splitter = LineSplitter()
    pieces = splitter.feed(b"x" * (PIECE_CHARS * 3 + 5) + b"\n") + splitter.flush(at_end=True)
    assert sum(len(text) for text, _ in pieces) == PIECE_CHARS * 3 + 5
    assert [ends for _, ends in pieces][-1]


def test_invalid_bytes_and_control_characters_are_spelled_out() -> None:
    ((text, _),) = LineSplitter().feed(b"a\xff\x1b]0;t\x07\x00b\tc\n")
    assert text == "a\\xff\\x1b]0;t\\x07\\x00b\tc"
    assert escape("\x1b[31mred\x1b[0m") == "\x1b[31mred\x1b[0m"
    assert escape("\x1b[2Jgone") == "\\x1b[2Jgone"


def test_a_line_that_another_rank_breaks_starts_anew() -> None:
    text = shown([("a: ", "one ", False), ("a: ", "two", True), ("a: ", "half", False)])
    assert text == "a: one two\na: half\n"
    text = shown([("a: ", "half", False), ("b: ", "line", True), ("a: ", "rest", True)])
    assert text == "a: half\nb: line\na: rest\n"


def test_a_closed_console_does_not_disturb_the_ranks() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    console = Console(writing)
    console.write("a: ", "x", True)
    console.write("a: ", "y", True)
    os.close(writing)


def test_template_words() -> None:
    assert line_prefix("[${rank}/${local_rank}] ", 5, 1) == "[5/1] "
    assert line_prefix("$unknown ${rank}$", 5, 1) == "$unknown 5$"
