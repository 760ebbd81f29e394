"""Messages about texts: the word, what is allowed, and a caret under the column."""

import pytest
from program import bad, caret_column

PLACES = [
    # command words, the text in which something is wrong, the column of the wrong word
    (["quantizer"], "mxfp9:e4m3", 1),
    (["quantizer"], "mxfp8:e4m9", 7),
    (["quantizer"], "mxfp8:e4m3/1x31", 12),
    (["quantizer"], "mxfp8:e4m3/1x32+row+cool", 21),
    (["quantizer"], "fp8-tensor:e4m3+eps=tiny", 21),
    (["recipe"], "mxfp9", 1),
    (["recipe"], "delayed:history=16,algo=mean", 25),
    (["recipe"], "custom:input=mxfp8:e4m9", 20),
    (["plan"], "linear m=64 k=32 n=96 in=bf16 recipe=mxfp9", 38),
    (["plan"], "linear m=64 k=32 n=96 in=bf16 frobnicate=1", 31),
    (["plan"], "linear m=sixty k=32 n=96 in=bf16", 10),
]


@pytest.mark.parametrize(("command", "text", "column"), PLACES)
def test_caret__stands_under_the_wrong_word(command: list[str], text: str, column: int) -> None:
    done = bad(1, *command, text)
    assert caret_column(done, text) == column
    assert done.err.startswith(f"octet {command[0]}: column {column}: ")


def test_caret__stands_in_the_joined_text_of_several_words() -> None:
    text = "linear m=64 k=32 n=96 in=bf16 recipe=mxfp9"
    assert bad(1, "plan", *text.split()).err == bad(1, "plan", text).err


SHAPES = [
    ("", 1),
    ("x", 1),
    ("3x", 3),
    ("3xx4", 3),
    ("3y4", 2),
    ("3x4 ", 4),
    ("3x-4", 3),
    ("4x9223372036854775808", 3),
    ("x".join("1" * 17), 33),
]


@pytest.mark.parametrize(("text", "column"), SHAPES)
def test_caret__stands_under_the_wrong_length_of_a_shape(text: str, column: int) -> None:
    assert caret_column(bad(1, "layout", "mxfp8:e4m3", text), text) == column


def test_caret__stands_under_words_of_any_language() -> None:
    text = "mxfp8:e4m3+größe"
    assert caret_column(bad(1, "quantizer", text), text) == 12
    text = "linear m=64 größe=1 k=32 n=96"
    assert caret_column(bad(1, "plan", text), text) == 13


def test_caret__line_shows_control_characters_as_one_column_each() -> None:
    done = bad(1, "quantizer", "mxfp8:e4m3+\x1b[31m\trow+cool")
    assert "\x1b" not in done.err
    assert caret_column(done, "mxfp8:e4m3+?[31m row+cool") == 12


def test_message__shows_bytes_that_are_no_character_as_question_marks() -> None:
    done = bad(1, "plan", "--file", "-", stdin=b"linear m=64 \xc3\x28\xff\x80\xe2\x82")
    assert caret_column(done, "linear m=64 ?(????") == 13


@pytest.mark.parametrize("command", ["quantizer", "recipe", "plan"])
@pytest.mark.parametrize(
    "text", ["x" * 100_000, "mxfp8:" * 20_000, "é" * 50_000, "x" + "é" * 50_000]
)
def test_garbage__however_long_is_refused_in_a_few_short_lines(command: str, text: str) -> None:
    done = bad(1, command, text)
    assert len(done.err.splitlines()) <= 3
    assert len(done.err) < 1000


def test_garbage__is_cut_between_characters() -> None:
    for text in ["é" * 100, "x" + "é" * 100]:
        shown = bad(1, "quantizer", text).err.splitlines()[-2]
        assert shown.endswith("é...")


def test_garbage__far_into_a_long_text_is_still_pointed_at() -> None:
    done = bad(1, "plan", f"linear m=64 {' ' * 300} frobnicate {'x' * 300}")
    assert caret_column(done, "frobnicate") == 1
    shown = done.err.splitlines()[-2]
    assert shown.startswith("  ... ")
    assert shown.endswith("xxx...")


def test_overflow__of_sizes_is_refused_with_the_rule() -> None:
    done = bad(1, "layout", "mxfp8:e4m3", "9223372036854775807x2")
    assert "64 bits" in done.err
    done = bad(1, "plan", "linear m=9223372036854775807 k=4096 n=64 in=bf16")
    assert "64 bits" in done.err or "exceed" in done.err
