"""The site's table of contents. It is read from docs/index.md, which is plain Markdown.

Each `## heading` of that page is a part of the book, and each page that the part's list links
to is in it, in that order. Pages that the index does not name come last, so that none is lost.
"""

import re
from pathlib import Path
from typing import Any

PAGE = "docs/index"
ROOT = Path(__file__).resolve().parent.parent
OTHERS = ["*.md", "bench/RESULTS.md"]  # beside docs/

ITEM = re.compile(r"^- \[([^\]]+)\]\(([^)#]+\.md)\)", re.MULTILINE)


def parts(text: str) -> dict[str, list[tuple[str, str]]]:
    """The parts of the index: heading to (title, page) of each item of its lists."""
    pieces = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    found = {
        head: ITEM.findall(body) for head, body in zip(pieces[::2], pieces[1::2], strict=True)
    }
    return {head: items for head, items in found.items() if items}


def name_of(target: str) -> str:
    """A link of docs/index.md as the name of a page under the root."""
    path = (ROOT / "docs" / target).resolve()
    return path.relative_to(ROOT).as_posix().removesuffix(".md")


def all_pages() -> list[str]:
    """The names of all pages of the site."""
    patterns = ["docs/**/*.md", *OTHERS]
    pages = [page for pattern in patterns for page in sorted(ROOT.glob(pattern))]
    return [page.relative_to(ROOT).as_posix().removesuffix(".md") for page in pages]


def toctree(caption: str, entries: list[str]) -> str:
    """A hidden toctree: it makes the side bar, and the page does not show it."""
    lines = ["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""]
    return "\n".join(lines)


def trees(text: str) -> str:
    """The toctrees of the index, the last one with the pages that it does not name."""
    made, named = [], {PAGE}
    for caption, items in parts(text).items():
        names = [(title, name_of(target)) for title, target in items]
        named.update(name for _, name in names)
        made.append(toctree(caption, [f"{title} </{name}>" for title, name in names]))
    others = [page for page in all_pages() if page not in named]
    if others:
        made.append(toctree("More", [f"/{page}" for page in others]))
    return "\n" + "\n".join(made)


def add_contents(_app: Any, page: str, source: list[str]) -> None:  # noqa: ANN401
    """Gives the index its toctrees."""
    if page == PAGE:
        source[0] += trees(source[0])


def add_front_door(app: Any, failure: Exception | None) -> None:  # noqa: ANN401
    """index.html at the top of the site leads to the index."""
    if failure is None and app.builder.format == "html":
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={PAGE}.html">\n'
        (Path(app.outdir) / "index.html").write_text(text)
