"""Help, version and exit status: 0 done, 1 a text is wrong, 2 the usage is."""

import re
import subprocess
from pathlib import Path

import pytest
from program import COMMANDS, OCTET, ROOT, bad, good, lines_that_end_in_spaces


def test_help__lists_every_command() -> None:
    help_text = good("--help").out
    listed = re.findall(r"^  (\w+)  ", help_text, re.MULTILINE)
    assert listed == COMMANDS
    assert help_text == good("-h").out


@pytest.mark.parametrize("command", COMMANDS)
def test_help__of_a_command_has_usage_and_an_example_that_works(command: str) -> None:
    help_text = good(command, "--help").out
    usage, *_, example = help_text.splitlines()
    assert usage.startswith(f"usage: octet {command}")
    name, *words = example.split()
    assert name == "octet"
    assert words[0] == command
    assert good(*words).out
    assert good(command, "-h").out == help_text


@pytest.mark.parametrize("command", COMMANDS)
def test_help__wins_over_other_arguments(command: str) -> None:
    assert good(command, "nonsense", "--help").out == good(command, "--help").out


def test_version__is_the_headers() -> None:
    header = (ROOT / "include" / "octet.h").read_text()
    numbers = re.findall(r"#define OCTET_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    assert good("--version").out == f"octet {'.'.join(numbers)}\n"


USAGE_ERRORS = [
    [],
    ["frobnicate"],
    [""],
    ["--frobnicate"],
    ["plan"],
    ["plan", "--file"],
    ["plan", "--file", "-", "linear m=1 k=1 n=1"],
    ["plan", "--frobnicate"],
    ["layout"],
    ["layout", "mxfp8:e4m3"],
    ["layout", "mxfp8:e4m3", "3x4", "5x6"],
    ["layout", "mxfp8:e4m3", "3x4", "--dtype"],
    ["layout", "mxfp8:e4m3", "3x4", "-v"],
    ["quantizer"],
    ["quantizer", "mxfp8:e4m3", "mxfp8:e4m3"],
    ["quantizer", "--dtype=bf16", "mxfp8:e4m3"],
    ["recipe"],
    ["recipe", "mxfp8", "nvfp4"],
    ["doctor", "please"],
]


@pytest.mark.parametrize("words", USAGE_ERRORS, ids=" ".join)
def test_status__wrong_usage_is_2_and_shows_the_usage(words: list[str]) -> None:
    done = bad(2, *words)
    assert done.out == ""
    command = f" {words[0]}" if words and words[0] in COMMANDS else ""
    assert done.err.startswith(f"octet{command}: ")
    assert done.err.splitlines()[1].startswith(f"usage: octet{command}")


TEXT_ERRORS = [
    ["plan", ""],
    ["plan", "linear m="],
    ["plan", "linear-backward"],
    ["plan", "--file", "no-such-folder/no-such-file"],
    ["plan", "--file", "."],
    ["layout", "mxfp8:e4m3", "3y4"],
    ["layout", "none", "3x4"],
    ["layout", "mxfp8:e4m3", "3x4", "--dtype", "bf61"],
    ["layout", "mxfp8:e4m3", "3x4", "--dtype", "u8"],
    ["layout", "mxfp8:e4m3", "--", "-3x4"],
    ["quantizer", ""],
    ["quantizer", "mxfp8"],
    ["recipe", ""],
    ["recipe", "mxfp9"],
]


@pytest.mark.parametrize("words", TEXT_ERRORS, ids=" ".join)
def test_status__wrong_text_is_1_and_stdout_stays_empty(words: list[str]) -> None:
    done = bad(1, *words)
    assert done.out == ""
    assert re.match(rf"octet {words[0]}: \S", done.err)
    assert "usage" not in done.err


WORKING = [
    ["--help"],
    ["--version"],
    ["plan", "--help"],
    ["plan", "linear m=64 k=32 n=96 in=bf16 recipe=mxfp8 bias"],
    ["layout", "mxfp8:e4m3", "300x129"],
    ["quantizer", "mxfp8:e4m3"],
    ["recipe", "mxfp8"],
    ["doctor"],
]


@pytest.mark.parametrize("words", WORKING, ids=" ".join)
def test_status__output_that_cannot_be_written_is_1(words: list[str]) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this machine has no device that is always full")
    with full.open("wb") as out:
        done = subprocess.run([OCTET, *words], stdout=out, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(b"octet: cannot write the output: ")


@pytest.mark.parametrize("words", WORKING, ids=" ".join)
def test_output__is_the_same_every_time_and_no_line_ends_in_spaces(words: list[str]) -> None:
    out = good(*words).out
    assert out.endswith("\n")
    assert lines_that_end_in_spaces(out.splitlines()) == []
    assert good(*words).out == out
