"""The pages of docs/ are right: their Python runs, and the messages they quote exist."""

import ast
import functools
import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

import torch

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "octet"
DOCS = ROOT / "docs"
STATE = DOCS / "state.md"
PROLOGUES = DOCS / "prologues.md"

# Pages whose Python is one program, and the packages that it needs besides torch.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "quick-start.md": (),
    "tutorial/train.md": (),
    "tutorial/fine-tune.md": ("transformers", "peft"),
    "tutorial/evaluate.md": (),
    "tutorial/generate.md": ("safetensors",),
    "concepts.md": (),
    "choosing-a-recipe.md": (),
    "numerics.md": (),
    "from-torchao.md": (),
    "from-transformer-engine.md": (),
    "performance.md": (),
    "inside.md": (),
    "promises.md": (),
    "quantized-tensors.md": ("safetensors",),
    "quantizers.md": (),
}
ELSEWHERE = ("# torchao", "# transformer_engine")
REFUSED = re.compile(r"^(\S.*?) +# RuntimeError\b.*$")


def importable(package: str) -> bool:
    found = importlib.util.find_spec(package) is not None
    return found and (package == "torchao" or torch.cuda.is_available())


def program(page: Path) -> str:
    """The Python blocks of a page as one program; its line numbers are those of the page.

    A block that begins with the comment `# package` is left out where that is not installed. A
    line that ends with `# RuntimeError` must raise it.
    """
    lines, inside = [], False
    for line in page.read_text().splitlines():
        fence = line.startswith("```")
        if inside and lines[-1] == "" and line in ELSEWHERE:
            inside = importable(line.removeprefix("# "))
        statement = REFUSED.sub(r"with raises(RuntimeError): \1", line)
        lines.append(statement if inside and not fence else "")
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


@pytest.mark.parametrize("page", [STATE, PROLOGUES], ids=lambda page: page.name)
def test_docs__python_of_a_page_runs(page: Path) -> None:
    source = program(page)
    assert source.count("assert ") > 5
    names: dict[str, Any] = {"__name__": page.stem}
    exec(compile(source, str(page), "exec"), names)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors: a second thread costs more than it brings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", PROGRAMS)
def test_docs__program_of_a_page_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in PROGRAMS[name]:
        pytest.importorskip(package)
    # Graphs are traced whole and run as they are. Inductor would compile each for seconds.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.chdir(tmp_path)
    source = program(DOCS / name)
    assert "assert " in source
    page = types.ModuleType(f"page {Path(name).stem}")  # a compiler may import what it traces
    page.raises = pytest.raises
    monkeypatch.setitem(sys.modules, page.__name__, page)
    exec(compile(source, name, "exec"), vars(page))


def test_docs__every_page_with_python_runs() -> None:
    """Of those that the index names; layers over ranks have examples that need ranks, and
    tests of their own run the other three."""
    index = (DOCS / "index.md").read_text()
    named = re.findall(r"^- \[[^\]]+\]\(([\w/-]+\.md)\)", index, re.MULTILINE)
    with_python = {page for page in named if "```python" in (DOCS / page).read_text()}
    assert set(PROGRAMS) <= with_python
    others = {"state.md", "parallel.md", "prologues.md", "frameworks.md"}
    assert with_python - set(PROGRAMS) - others == set()


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
