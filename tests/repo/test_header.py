"""octet.h stands alone: C11 and C++17, without a warning, initializers included."""

import re
from pathlib import Path

import pytest
from tree import CC, CXX, HEADER, PARTS, STATIC_LIBRARY, STRICT, need, run

# An initializer where it is one, assigned, an element, a member, and passed by value.
USE = """
struct holds_{type} {{
    {type} value;
    int rest;
}};
static bool is_sized_{type}({type} value) {{
    return value.size == sizeof value;
}}
static bool check_{type}(void) {{
    {type} made = {init}, all[2] = {{{init}, {init}}};
    struct holds_{type} whole = {{{init}, 1}};
    bool good = is_sized_{type}(made) && is_sized_{type}(all[1]) && is_sized_{type}({init});
    made.size = 0;
    made = {init};
    whole.value.size = 0;
    whole.value = {init};
    return good && is_sized_{type}(made) && is_sized_{type}(whole.value) && whole.rest == 1;
}}
"""
STATIC = "static {type} fixed_{type} = {{.size = sizeof({type})}};\n"
WRAPPED = """
extern "C" {{
#include "{header}"
}}
#include "{header}"
int main() {{
    return 0;
}}
"""
RUNS = """
extern "C" {
#include "octet.h"
}
int main() {
    octet_linear_args args;
    octet_plan plan = OCTET_PLAN_INIT;
    args = OCTET_LINEAR_ARGS_INIT;
    bool good = octet_linear_parse(&args, "linear m=4 k=8 n=8 in=f32", nullptr) == OCTET_OK &&
                octet_plan_linear(&plan, &args, nullptr) == OCTET_OK;
    return good && octet_port_find(plan.args, plan.arg_count, "weight") == 1 ? 0 : 1;
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


def initializers() -> dict[str, str]:
    """The structs by the macros that make them."""
    text = "".join(part.read_text() for part in PARTS)
    found = dict(
        re.findall(r"^#define (OCTET_\w+_INIT) OCTET_SIZED\((\w+)\)$", text, re.MULTILINE)
    )
    assert set(found) == set(re.findall(r"\b(OCTET_\w+_INIT)\b", text))
    return found


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_header__initializers_set_the_size_wherever_they_stand(
    tmp_path: Path, language: str
) -> None:
    source = tmp_path / f"use.{language}"
    program = tmp_path / "use"
    found = initializers()
    assert len(found) > 5
    checks = " && ".join(f"check_{name}()" for name in found.values())
    text = '#include "octet.h"\n#include "octet.h"\n'
    text += "".join(USE.format(init=init, type=name) for init, name in found.items())
    text += f"int main(void) {{ return {checks} ? 0 : 1; }}\n"
    source.write_text(text)
    if language == "c":
        compile_c(source, "-o", program)
    else:
        compile_cxx(source, "-o", program)
    run([program])


def test_header__static_structs_have_an_initializer(tmp_path: Path) -> None:
    source = tmp_path / "use.c"
    names = initializers().values()
    text = '#include "octet.h"\n' + "".join(STATIC.format(type=name) for name in names)
    sizes = " + ".join(f"fixed_{name}.size - sizeof({name})" for name in names)
    source.write_text(f"{text}int main(void) {{ return ({sizes}) != 0; }}\n")
    compile_c(source, "-o", tmp_path / "use")
    run([tmp_path / "use"])


@pytest.mark.parametrize("header", [HEADER, *PARTS], ids=lambda path: path.name)
def test_header__may_be_wrapped_in_extern_c(tmp_path: Path, header: Path) -> None:
    source = tmp_path / "use.cpp"
    source.write_text(WRAPPED.format(header=header.relative_to(HEADER.parent)))
    compile_cxx(source, "-fsyntax-only")


def test_header__wrapped_in_extern_c_links(tmp_path: Path) -> None:
    source, program = tmp_path / "use.cpp", tmp_path / "use"
    source.write_text(RUNS)
    run(
        [
            *CXX,
            "-std=c++17",
            *STRICT,
            f"-I{HEADER.parent}",
            source,
            STATIC_LIBRARY,
            "-pthread",
            "-o",
            program,
        ]
    )
    run([program])
