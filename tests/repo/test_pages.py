"""The pages of the book are whole: links and anchors, commands, C programs, short words."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from tree import BUILD, CC, HEADER, PARTS, ROOT, STATIC_LIBRARY, STRICT, run

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import contents  # noqa: E402
import reference  # noqa: E402

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    ROOT / "bench" / "RESULTS.md",
]
WRITTEN = [  # for readers; the changelog and the results are to be searched
    page for page in PAGES if page.name not in ("CHANGELOG.md", "RESULTS.md")
]
GUIDES = [  # written for readers who are new here
    DOCS / name
    for name in (
        "index.md",
        "quick-start.md",
        "tutorial/train.md",
        "tutorial/fine-tune.md",
        "tutorial/evaluate.md",
        "tutorial/generate.md",
        "concepts.md",
        "choosing-a-recipe.md",
        "numerics.md",
        "from-torchao.md",
        "c-guide.md",
        "performance.md",
        "troubleshooting.md",
        "python-api.md",
        "c-api.md",
    )
]
MOST_WORDS = 80

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What `#...` may name on a page: its headings, as forges and the site spell them."""
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", words.strip()).replace(" ", "-")
        again = found.count(slug)
        found += [slug, f"{slug}-{again}"] if again else [slug]
    return set(found)


def dead(page: Path, target: str) -> bool:
    """Whether a link of a page leads nowhere; addresses of the web are not asked."""
    if "://" in target or target.startswith("mailto:"):
        return False
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    if not found.exists():
        return True
    return bool(anchor) and (found.suffix != ".md" or anchor not in anchors(found))


def test_pages__anchors_are_spelled_as_forges_do() -> None:
    assert "which-gpu-multiplies-what" in anchors(DOCS / "choosing-a-recipe.md")
    assert "fp8-with-one-scale-current-scaling" in anchors(DOCS / "numerics.md")


def test_pages__a_dead_link_is_found() -> None:
    page = DOCS / "index.md"
    assert dead(page, "nowhere.md")
    assert dead(page, "numerics.md#nowhere")
    assert dead(page, "#nowhere")
    assert not dead(page, "numerics.md#mxfp8")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages__links_and_anchors_lead_somewhere(page: Path) -> None:
    text = CODE.sub("", FENCE.sub("", page.read_text()))
    assert [target for target in LINK.findall(text) if dead(page, target)] == []


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_pages__paragraphs_and_items_are_short(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    paragraphs = re.split(r"\n\s*\n|\n(?=[-|])", text)
    assert [p for p in paragraphs if len(p.split()) > MOST_WORDS] == []


def test_pages__c_guide_compiles_and_runs(tmp_path: Path) -> None:
    source, program = tmp_path / "guide.c", tmp_path / "guide"
    source.write_text("\n".join(blocks(DOCS / "c-guide.md", "c")))
    flags = ["-std=c11", *STRICT, f"-I{HEADER.parent}"]
    run([*CC, *flags, source, STATIC_LIBRARY, "-pthread", "-o", program])
    printed = run([program])
    assert "'n=' is missing" in printed
    assert "scale 121, 0.3125, -1, 2.5, 6.5" in printed
    y = sum((i % 7 - 3) * (i % 5 - 2) for i in range(64))  # small integers: FP8 has them all
    assert f"y[0] = {y}," in printed


def commands() -> list[str]:
    return [
        line for page in GUIDES for text in blocks(page, "sh") for line in text.splitlines()
    ]


def test_pages__commands_of_the_program_run() -> None:
    found = [line for line in commands() if line.startswith("build/octet ")]
    assert found
    for command in found:
        assert run([BUILD / "octet", *shlex.split(command, comments=True)[1:]])


def test_pages__make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(page.read_text() for page in GUIDES)
    named = set(re.findall(r"`make ([a-z-]+)`", text))
    named |= {line.split()[1] for line in commands() if line.startswith("make ")}
    assert {"docs", "demo", "bench-gpu"} <= named
    assert named <= targets


# ---- what the site makes of them -----------------------------------------------------------


def test_pages__the_side_bar_has_every_page_once() -> None:
    made = contents.trees((DOCS / "index.md").read_text())
    entries = re.findall(r"^(?:.* <)?/([\w/-]+)>?$", made, re.MULTILINE)
    assert len(entries) == len(set(entries))
    assert {*entries, contents.PAGE} == {name(page).removesuffix(".md") for page in PAGES}


def test_pages__the_c_reference_has_every_function_once() -> None:
    headers = "".join(path.read_text() for path in PARTS)
    declared = re.findall(r"^OCTET_API[^;]*?\b(octet_\w+)\(", headers, re.MULTILINE)
    made = reference.c_reference("")
    code = "".join(re.findall(r"^```c\n(.*?)^```$", made, re.MULTILINE | re.DOTALL))
    shown = re.findall(r"^[^\s/][^;]*?\b(octet_\w+)\([^;]*;", code, re.MULTILINE)
    assert len(declared) > 80
    assert [f for f in declared if f not in shown] == []
    assert "OCTET_API" not in code


def test_pages__a_comment_of_a_header_stands_above_its_function() -> None:
    made = reference.c_reference("")
    where = made.index("octet_plan_bind(octet_plan *plan")
    assert "Changes the plan to other sizes" in made[where - 500 : where]
