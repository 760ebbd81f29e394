"""octet.h stands alone: C11 and C++17, without a warning, initializers included."""

import re
from pathlib import Path

import pytest
from tree import CC, CXX, HEADER, PARTS, STRICT, need, run

USE = """
#include "octet.h"
#include "octet.h"

int main() {
    octet_linear_args args = OCTET_LINEAR_ARGS_INIT;
    octet_linear_backward_args backward = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    octet_plan plan = OCTET_PLAN_INIT;
    args.input_requires_grad = 1;
    backward.forward = args;
    bool sized = args.size == sizeof args && backward.size == sizeof backward;
    return sized && plan.size == sizeof plan && plan.step_count == 0 ? 0 : 1;
}
"""


def compile_c(source: Path, *flags: str | Path) -> None:
    run([*CC, "-std=c11", *STRICT, "-Wstrict-prototypes", f"-I{HEADER.parent}", *flags, source])


def compile_cxx(source: Path, *flags: str | Path) -> None:
    need(CXX[0])
    run([*CXX, "-std=c++17", *STRICT, f"-I{HEADER.parent}", *flags, source])


@pytest.mark.parametrize("header", [HEADER, *PARTS], ids=lambda path: path.name)
def test_header__is_c11_alone(header: Path) -> None:
    compile_c(header, "-xc", "-fsyntax-only")


@pytest.mark.parametrize("header", [HEADER, *PARTS], ids=lambda path: path.name)
def test_header__is_cxx17_alone(header: Path) -> None:
    compile_cxx(header, "-xc++", "-fsyntax-only")


def test_header__is_the_whole_of_its_parts() -> None:
    assert {part.name for part in PARTS} == set(
        re.findall(r'#include "octet/(\w+\.h)"', HEADER.read_text())
    )


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_header__initializers_set_the_size(tmp_path: Path, language: str) -> None:
    source = tmp_path / f"use.{language}"
    program = tmp_path / "use"
    if language == "c":
        source.write_text(USE.replace("main()", "main(void)"))
        compile_c(source, "-o", program)
    else:
        source.write_text(USE)
        compile_cxx(source, "-o", program)
    run([program])
