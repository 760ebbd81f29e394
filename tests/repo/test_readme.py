"""What the README shows works: its C program, its commands, and every link of the pages."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from tree import BUILD, CC, HEADER, ROOT, STATIC_LIBRARY, STRICT, run

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_readme__c_program_plans_and_runs(tmp_path: Path) -> None:
    (text,) = blocks("c")
    source, program = tmp_path / "readme.c", tmp_path / "readme"
    source.write_text(text)
    flags = ["-std=c11", *STRICT, f"-I{HEADER.parent}"]
    run([*CC, *flags, source, STATIC_LIBRARY, "-pthread", "-o", program])
    assert "y[1] = -16" in run([program])


def test_readme__python_program_runs() -> None:
    pytest.importorskip("torch")
    (text,) = blocks("python")
    assert text in (ROOT / "examples" / "python" / "linear.py").read_text()
    environment = {"PYTHONPATH": str(ROOT / "python")}
    assert "torch.Size([8, 32])" in run([sys.executable, "-c", text], environment)


def test_readme__commands_of_the_program_run() -> None:
    lines = [line for text in blocks("sh") for line in text.splitlines()]
    commands = [line for line in lines if line.startswith("build/octet ")]
    assert commands
    for command in commands:
        words = shlex.split(command, comments=True)
        assert run([BUILD / "octet", *words[1:]])


def test_readme__links_of_every_page_resolve() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
        for target in re.findall(r"\]\(([^)#]+)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_readme__make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", "".join(blocks("sh")))) <= targets
