"""What the pages of the book quote is true: messages, figures, which GPU multiplies what."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import octet
import pytest
from octet import _C
from test_docs import DOCS, PACKAGE, ROOT, texts_of

import torch

TROUBLES = DOCS / "troubleshooting.md"
FIGURES = [DOCS / "performance.md", DOCS / "choosing-a-recipe.md"]

LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')
LITERALS = re.compile(rf"(?:{LITERAL.pattern}(?:\s|PRI[a-z]\w+)*)+")
CONVERSION = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?(?:ll|l|z|h)?[a-zA-Z]")


def c_texts(path: Path) -> list[str]:
    """The texts of a C source: literals in a row are one, and ... is what is filled in."""
    runs = LITERALS.findall(path.read_text())
    joined = ["".join(text[1:-1] for text in LITERAL.findall(run)) for run in runs]
    return [CONVERSION.sub("...", text) for text in joined]


def all_texts() -> list[str]:
    python = [text for path in PACKAGE.rglob("*.py") for text in texts_of(path)]
    return python + [text for path in (ROOT / "src").rglob("*.c") for text in c_texts(path)]


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of each row of the tables whose first heading is this."""
    found, inside = [], False
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and inside and set(cells[0]) - set("-"):
            found.append(cells)
        inside = line.startswith("|") and (inside or cells[0] == heading)
    return found


def quoted() -> list[str]:
    return [row[0].strip("`") for row in rows(TROUBLES, "message")]


def is_in(message: str, text: str) -> bool:
    """Whether the pieces of a message stand in a text in this order; ... is anything."""
    at = 0
    for piece in filter(None, (piece.strip() for piece in message.split("..."))):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def test_book__a_message_that_is_not_there_is_found() -> None:
    assert is_in("input is ...; its last axis", "input is (4, 60); its last axis must be 64")
    assert not is_in(
        "its last axis ...; input is", "input is (4, 60); its last axis must be 64"
    )
    assert not any(is_in("the moon is ... of cheese", text) for text in all_texts())


def test_book__every_message_of_troubleshooting_is_in_the_source() -> None:
    texts = all_texts()
    assert len(quoted()) > 40
    assert [m for m in quoted() if not any(is_in(m, text) for text in texts)] == []


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        ("input is ...; its last axis must be ...", lambda layer, x: layer(x[:, :60])),
        ("input is ...; cast it to float32", lambda layer, x: layer(x.double())),
        ("recipe is ...; it is an object", lambda layer, x: octet.autocast(recipe="mxfp8")),
        (
            "convert: there is no nn.Linear in ...",
            lambda layer, x: octet.convert(torch.nn.ReLU()),
        ),
    ],
)
def test_book__a_message_is_what_users_see(message: str, wrong: Callable[..., Any]) -> None:
    layer, x = octet.Linear(64, 32, device="cpu"), torch.randn(8, 64)
    with pytest.raises((TypeError, ValueError)) as error, octet.autocast():
        wrong(layer, x)
    assert is_in(message, str(error.value))


def figures(page: Path) -> list[str]:
    """The rows of measured tables: those with a number, the recipes of GPUs left out."""
    lines = [
        line
        for line in page.read_text().splitlines()
        if line.startswith("| ") and "| 8.0 |" not in line
    ]
    return [line for line in lines if re.search(r"\| [+-]?\d+\.?\d*( KiB)? ", line)]


def measured() -> set[str]:
    """The rows of RESULTS.md as they stand, and those of the README's demo as a table's."""
    results = (ROOT / "bench" / "RESULTS.md").read_text().splitlines()
    demo = re.findall(
        r"^(\w+) +(\d\.\d{4}) +([+-]\d\.\d{4})? +(\d+\.\d KiB) ",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    return {*results, *("| " + " | ".join(row).replace("|  |", "| |") + " |" for row in demo)}


@pytest.mark.parametrize("page", FIGURES, ids=lambda page: page.name)
def test_book__figures_are_those_of_the_results(page: Path) -> None:
    """The first columns of a row. After new measurements: copy the rows anew from there."""
    assert len(figures(page)) > 15
    known = measured()
    assert [row for row in figures(page) if not any(m.startswith(row) for m in known)] == []


def test_book__which_gpu_multiplies_what() -> None:
    page = DOCS / "choosing-a-recipe.md"
    (head,) = re.findall(r"^\| recipe \| (8\.0.*) \|$", page.read_text(), re.MULTILINE)
    devices = [f"cuda:0/{c.replace('.', '')}" for c in head.split(" | ")]
    table = [row for row in rows(page, "recipe") if row[0].startswith("`")]
    assert len(table) == 6
    for name, *answers in table:
        recipe = getattr(octet.recipe, name.strip("`"))()
        quantizer = _C.role_quantizer(recipe.text, "weight")
        assert answers == [_C.support(quantizer, device) for device in devices], name


def test_book__readme_says_what_is_native_where() -> None:
    table = [row for row in rows(ROOT / "README.md", "recipe") if row[0].startswith("`")]
    named = [
        (name, answers) for cell, *answers in table for name in re.findall(r"`(\w+)`", cell)
    ]
    assert len(named) == 6
    devices = ["cpu", *(f"cuda:0/{capability}" for capability in (80, 89, 90, 100, 120))]
    for name, answers in named:
        quantizer = _C.role_quantizer(getattr(octet.recipe, name)().text, "weight")
        assert answers == [_C.support(quantizer, device) for device in devices], name
