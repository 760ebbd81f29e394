"""The API reference of the site: Python from docstrings, C from the comments of the headers.

docs/python-api.md and docs/c-api.md end with a mark, `<!-- reference -->`. On a forge nothing
is there; the site puts the reference in its place.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include" / "octet"
MARK = "<!-- reference -->"

PAGE = re.compile(r"\bdocs/([\w-]+)\.md\b")
SECTION = re.compile(r"/\* -{4} (.+?) -+ \*/")


def version() -> str:
    """The version, from the one place that has it."""
    text = (ROOT / "include" / "octet.h").read_text()
    return ".".join(re.findall(r"#define OCTET_VERSION_\w+ (\d+)", text))


# ---- Python ------------------------------------------------------------------------------


def directive(module: str, name: str) -> str:
    """The autodoc directive of a public name."""
    import importlib

    value = getattr(importlib.import_module(module), name)
    if isinstance(value, type):
        return f".. autoclass:: {module}.{name}\n   :members:\n"
    return f".. autofunction:: {module}.{name}\n"


def groups(page: str, names: list[str]) -> dict[str, list[str]]:
    """The public names by the rows of the page's table; the others come last."""
    found = {}
    for title, cell in re.findall(r"^\| ([^|`]+) \| ([^|]*`[^|]*) \|$", page, re.MULTILINE):
        found[title] = [name for name in re.findall(r"`(\w+)`", cell) if name in names]
    known = {name for group in found.values() for name in group}
    return {**found, "more": [name for name in names if name not in known]}


def python_reference(page: str) -> str:
    """All public names of octet and octet.recipe, in the groups of the page's table."""
    import octet
    import octet.recipe

    def section(title: str, module: str, names: list[str]) -> str:
        body = "\n".join(directive(module, name) for name in names)
        return f"## {title}\n\n```{{eval-rst}}\n{body}```\n"

    names = [name for name in octet.__all__ if name != "recipe"]
    recipes = [name for name in octet.recipe.__all__ if name not in names]
    made = [
        section(f"{title[0].upper()}{title[1:]}", "octet", group)
        for title, group in groups(page, names).items()
        if group
    ]
    return "\n".join((*made, section("Recipes", "octet.recipe", recipes)))


def link_pages(_app: Any, *about: Any) -> None:  # noqa: ANN401
    """Pages that a docstring names become links."""
    lines = about[-1]
    lines[:] = [PAGE.sub(r":doc:`/docs/\1`", line) for line in lines]


# ---- C -----------------------------------------------------------------------------------


def entries(text: str) -> list[str]:
    """The sections, comments and declarations of a header, in order.

    The include guard and the C++ frame around them are left out. A comment at the beginning of
    a line begins an entry; so does what follows an empty line.
    """
    first = text.find("/* ----")
    frame = 'extern "C" {\n#endif\n'
    body = text[first if first >= 0 else text.index(frame) + len(frame) :]
    body = body[: body.rindex("#ifdef __cplusplus")]
    found = re.split(r"\n(?:[ \t]*\n)+|\n(?=/\*)", body)
    return [entry.strip("\n") for entry in found if entry.strip()]


def comment_and_code(entry: str) -> tuple[str, str]:
    """The comment that an entry begins with, as plain text, and the declarations after it."""
    match = re.match(r"/\*(.*?)\*/\n?", entry, re.DOTALL)
    if not match:
        return "", entry
    words = [line.strip().removeprefix("*").strip() for line in match[1].splitlines()]
    return " ".join(word for word in words if word), entry[match.end() :]


def without_marks(code: str) -> str:
    """Declarations without OCTET_API and OCTET_CHECKED; continued lines move along."""
    made, moved = [], 0
    for line in code.splitlines():
        marks = re.match(r"(OCTET_API |OCTET_CHECKED )+", line)
        if marks:
            moved = marks.end()
            line = line[moved:]
        elif moved:
            indent = len(line) - len(line.lstrip())
            line = line[min(moved, max(indent - 4, 0)) :]
        moved = 0 if ";" in line else moved
        made.append(line)
    return "\n".join(made)


def as_markdown(comment: str) -> str:
    """A comment as Markdown: what stands in quotes or is a name is code, the rest as it is."""
    parts = re.split(r"(`[^`]*`|\b(?:octet|OCTET)_\w+)", comment)
    parts[::2] = [re.sub(r"([*_<>\[\]{}|#$\\])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"`{part.strip('`')}`" for part in parts[1::2]]
    return PAGE.sub(r"[\1](\1.md)", "".join(parts))


def header_reference(path: Path) -> str:
    """A header as Markdown: its sections, and each declaration under its comment."""
    text = path.read_text()
    idea = re.match(r"/\* [\w.]+ - (.*?)[.]?(?: \*/)?$", text, re.MULTILINE)[1]
    made = [f"## octet/{path.name}", "", f"{idea[0].upper()}{idea[1:]}.", ""]
    for entry in entries(text):
        section = SECTION.match(entry)
        comment, code = ("", entry[section.end() :]) if section else comment_and_code(entry)
        made += [f"### {section[1][0].upper()}{section[1][1:]}", ""] if section else []
        made += [as_markdown(comment), ""] if comment else []
        made += ["```c", without_marks(code.strip("\n")), "```", ""] if code.strip() else []
    return "\n".join(made)


def c_reference(_page: str) -> str:
    """All parts of octet.h, in the order of their names."""
    return "\n".join(header_reference(path) for path in sorted(HEADERS.glob("*.h")))


def add_reference(_app: Any, page: str, source: list[str]) -> None:  # noqa: ANN401
    """Puts the reference where the mark is."""
    made = {"docs/python-api": python_reference, "docs/c-api": c_reference}.get(page)
    if made:
        source[0] = source[0].replace(MARK, made(source[0]))
