"""The pages of docs/ are right: their Python runs, and the messages they quote exist."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "octet"
STATE = ROOT / "docs" / "state.md"


def program(page: Path) -> str:
    """The Python blocks of a page as one program; its line numbers are those of the page."""
    lines, inside = [], False
    for line in page.read_text().splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line == "```python" if fence else inside
    return "\n".join(lines)


def text_of(node: ast.AST) -> str:
    """A string of a source, with ... for what is computed."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else "..."


def texts_of(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [text_of(node) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)]


def quotes(message: str, text: str) -> bool:
    """Whether a page's message is the beginning or a part of a source's text."""
    return message.removesuffix("...").strip() in text


@pytest.mark.parametrize("page", [STATE], ids=lambda page: page.name)
def test_docs__python_of_a_page_runs(page: Path) -> None:
    source = program(page)
    assert source.count("assert ") > 5
    names: dict[str, Any] = {"__name__": page.stem}
    exec(compile(source, str(page), "exec"), names)


def refusals() -> list[str]:
    table = STATE.read_text().split("## Refusals")[1]
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


def test_docs__every_quoted_message_exists() -> None:
    texts = [t for path in PACKAGE.rglob("*.py") for t in texts_of(path)]
    assert len(refusals()) > 8
    assert [m for m in refusals() if not any(quotes(m, text) for text in texts)] == []


def raised_in(path: Path) -> list[str]:
    """The messages of the errors that a source makes: those that tell what is not possible."""
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    kinds = ("RuntimeError", "NotImplementedError")
    return [
        text_of(call.args[0])
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in kinds
    ]


def test_docs__every_refusal_of_live_state_has_its_row() -> None:
    raised = [t for path in (PACKAGE / "state").glob("*.py") for t in raised_in(path)]
    assert len(raised) > 4
    without = [text for text in raised if not any(quotes(m, text) for m in refusals())]
    assert without == []
