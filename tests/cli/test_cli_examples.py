"""The examples in the planners' comments: each is planned, and its plan says what they claim.

    e.g. `recipe=mxfp8 grad=x`: "weight.quantized columnwise data", no "input.quantized col"

The words are those of a problem; sizes are 256 and the input is bf16 where they do not say. A
claim is a text that the print-out of the plans has, or with "no" has not, blanks apart.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from program import ROOT, good

FOLDERS = ["src/linear", "src/plan"]
COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
EXAMPLE = re.compile(r"e\.g\. `([^`]+)`: ((?:no )?\"[^\"]+\"(?:, (?:no )?\"[^\"]+\")*)")
CLAIM = re.compile(r"(no )?\"([^\"]+)\"")
USUAL = {"m": "256", "k": "256", "n": "256", "in": "bf16"}

# Files in which cases are told apart: each has examples.
PLANNERS = {
    "src/linear/backward.c",
    "src/linear/chain.c",
    "src/linear/choose_gather.c",
    "src/linear/chunks.c",
    "src/linear/forward.c",
    "src/linear/grad_output.c",
    "src/linear/input.c",
    "src/linear/planner.c",
    "src/linear/produce.c",
    "src/linear/prologue.c",
    "src/linear/restore.c",
    "src/linear/share.c",
    "src/linear/weight.c",
    "src/linear/wgrad.c",
    "src/plan/bind.c",
    "src/plan/build.c",
    "src/plan/drop.c",
    "src/plan/gather.c",
    "src/plan/gemm.c",
    "src/plan/notes.c",
    "src/plan/ops.c",
    "src/plan/pieces.c",
}


@dataclass(frozen=True)
class Example:
    problem: str
    claims: tuple[tuple[bool, str], ...]  # whether the plan has it, and what

    def wrong(self, plan: str) -> list[str]:
        return [text for has, text in self.claims if (text in plan) != has]


def one_line(text: str) -> str:
    return " ".join(text.split())


def problem_of(words: str) -> str:
    """A whole problem of some words; one that says what dy is like is a backward."""
    names = {word.partition("=")[0] for word in words.split()}
    kind = "linear-backward" if names & {"dy", "qdy"} else "linear"
    usual = [f"{name}={value}" for name, value in USUAL.items() if name not in names]
    return " ".join([kind, *usual, words])


def examples(source: str) -> Iterator[Example]:
    """Those of a C file. One that cannot be read fails the test: nobody would plan it."""
    for comment in COMMENT.findall(source):
        text = one_line(re.sub(r"^ *\* ?", "", comment, flags=re.MULTILINE))
        found = EXAMPLE.findall(text)
        assert len(found) == text.count("e.g. `"), text
        for words, claims in found:
            parts = ((not no, part) for no, part in CLAIM.findall(claims))
            yield Example(problem_of(words), tuple(parts))


def sources() -> dict[str, list[Example]]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.[ch]"))]
    return {
        path.relative_to(ROOT).as_posix(): list(examples(path.read_text())) for path in paths
    }


def plans(problems: list[str]) -> dict[str, str]:
    """The print-outs of many problems, each in one line."""
    out = good(
        "plan", "--file", "-", stdin="\n".join([*problems, "linear m=1 k=1 n=1 in=f32"])
    ).out
    titled = re.split(r"^# (.*)$", out, flags=re.MULTILINE)[1:]
    return dict(zip(titled[::2], map(one_line, titled[1::2]), strict=True))


def test_examples__are_what_is_planned() -> None:
    found = sources()
    planned = plans(sorted({example.problem for each in found.values() for example in each}))
    wrong = [
        (file, example.problem, claims)
        for file, each in found.items()
        for example in each
        if (claims := example.wrong(planned[example.problem]))
    ]
    assert wrong == []


def test_examples__every_planner_has_some() -> None:
    found = sources()
    assert {file for file in PLANNERS if not found[file]} == set()


@pytest.mark.parametrize(
    "claim", ['"dgrad grad_input"', 'no "fprop output"', '"fprop output", "dgrad grad_input"']
)
def test_examples__a_false_one_is_found(claim: str) -> None:
    (example,) = examples(f"/* Inference.\n * e.g. `grad=none`: {claim} */")
    assert example.problem == "linear m=256 k=256 n=256 in=bf16 grad=none"
    assert example.wrong(plans([example.problem])[example.problem])


@pytest.mark.parametrize(
    "text", ["e.g. `grad=x`", "e.g. `grad=x`: nothing", "e.g. `grad=x: no"]
)
def test_examples__one_that_cannot_be_read_is_found(text: str) -> None:
    with pytest.raises(AssertionError):
        list(examples(f"/* {text} */"))


def test_examples__a_comment_may_break_anywhere() -> None:
    whole = 'e.g. `recipe=mxfp8 grad=x`: "saved for the next plan", no "is argument"'
    broken = whole.replace(" ", "\n     * ")
    assert list(examples(f"/* {whole} */")) == list(examples(f"    /* {broken} */"))
