"""An installed tree works from wherever it lies: by CMake package, pkg-config and by hand."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tree import BUILD, CC, CMAKE, HEADER, ROOT, need, run

CONSUMER = """
#include <octet.h>
#include <stdio.h>

int main(void) {
    octet_quantizer quantizer;
    octet_error err;
    if (octet_quantizer_parse(&quantizer, "mxfp8:e4m3", &err)) {
        printf("%s", err.text);
        return 1;
    }
    printf("%s", octet_version());
    return 0;
}
"""

CMAKELISTS = """
cmake_minimum_required(VERSION 3.18)
project(consumer C)
find_package(octet {version} REQUIRED)
foreach(kind octet octet_static)
    add_executable(uses_${{kind}} main.c)
    target_link_libraries(uses_${{kind}} PRIVATE octet::${{kind}})
endforeach()
"""


def version() -> str:
    numbers = re.findall(r"^#define OCTET_VERSION_\w+ (\d+)$", HEADER.read_text(), re.MULTILINE)
    return ".".join(numbers)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed in one place and moved to another, so a baked-in path would show."""
    folder = tmp_path_factory.mktemp("install")
    run([CMAKE, "--install", BUILD, "--prefix", folder / "first"])
    return (folder / "first").rename(folder / "second")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "main.c").write_text(CONSUMER)
    return tmp_path / "main.c"


SUBPROJECT = """
cmake_minimum_required(VERSION 3.18)
project(consumer C)
add_subdirectory({root} octet)
add_executable(consumer main.c)
target_link_libraries(consumer PRIVATE octet::octet_static)
get_property(targets DIRECTORY {root} PROPERTY BUILDSYSTEM_TARGETS)
message(STATUS "targets: ${{targets}}")
"""


def library_dir(prefix: Path) -> Path:
    return next(prefix.rglob("liboctet.a")).parent


@pytest.mark.parametrize("asked", ["{major}.{minor}", ""])
def test_install__find_package(prefix: Path, source: Path, asked: str) -> None:
    major, minor, _ = version().split(".")
    text = CMAKELISTS.format(version=asked.format(major=major, minor=minor))
    (source.parent / "CMakeLists.txt").write_text(text)
    build = source.parent / "build"
    run([CMAKE, "-S", source.parent, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"])
    run([CMAKE, "--build", build])
    for program in ("uses_octet", "uses_octet_static"):
        assert run([build / program]) == version()


def test_install__part_of_another_build_is_the_library_alone(source: Path) -> None:
    """Neither the program nor the Python module, which would land in this tree."""
    (source.parent / "CMakeLists.txt").write_text(SUBPROJECT.format(root=ROOT))
    said = run([CMAKE, "-S", source.parent, "-B", source.parent / "build"])
    (targets,) = re.findall(r"targets: (\S+)", said)
    assert set(targets.split(";")) == {"octet_objects", "octet", "octet_static", "lib"}


FAST_PARENT = """
cmake_minimum_required(VERSION 3.18)
project(consumer C)
{flags}
add_subdirectory({root} octet)
add_executable(consumer main.c)
target_link_libraries(consumer PRIVATE octet::octet)
"""

# A parent's own flags, and those of its files alone.
PARENTS = [
    'set(CMAKE_C_FLAGS "-ffast-math")',
    'set(CMAKE_C_FLAGS "-g -Ofast")',
    'set(CMAKE_C_FLAGS "-O2 -funsafe-math-optimizations -g")',
    "add_compile_options(-ffast-math -funsafe-math-optimizations)",
]


def commands_of(build: Path) -> list[str]:
    """How the library's own files are compiled."""
    rows = json.loads((build / "compile_commands.json").read_text())
    return [row["command"] for row in rows if "octet_objects" in row["command"]]


def flags_of(command: str) -> list[str]:
    return [word for word in command.split() if word.startswith(("-f", "-O"))]


def test_install__without_a_build_type_the_library_is_optimized(source: Path) -> None:
    (source.parent / "CMakeLists.txt").write_text(SUBPROJECT.format(root=ROOT))
    for kind, flags in [("", "-O2"), ("Debug", "-g"), ("Release", "-O3")]:
        build = source.parent / f"build{kind}"
        exported = "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"
        run([CMAKE, "-S", source.parent, "-B", build, f"-DCMAKE_BUILD_TYPE={kind}", exported])
        commands = commands_of(build)
        assert len(commands) > 100
        assert all(f" {flags} " in command for command in commands)
        assert kind != "Debug" or not any(" -O" in command for command in commands)
        assert not any("-Werror" in command for command in commands)  # a newer compiler warns


@pytest.mark.parametrize("flags", PARENTS)
def test_install__a_parents_fast_math_does_not_hold_in_the_library(
    source: Path, flags: str
) -> None:
    """Neither in its files nor at the link, where it would be the whole process's."""
    folder = source.parent
    (folder / "CMakeLists.txt").write_text(FAST_PARENT.format(root=ROOT, flags=flags))
    exported = "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"
    run([CMAKE, "-G", "Unix Makefiles", "-S", folder, "-B", folder / "build", exported])
    commands = commands_of(folder / "build")
    (link,) = (folder / "build").rglob("octet.dir/link.txt")
    assert len(commands) > 100
    for command in [*commands, link.read_text()]:
        assert "-Ofast" not in command
        _, undone, after = command.partition("-fno-fast-math")
        assert undone
        assert "-ffast-math" not in after
        assert "-funsafe-math" not in after
    assert "-ffast-math" not in link.read_text()
    macros = subprocess.run(
        [*CC, *flags_of(commands[0]), "-dM", "-E", "-xc", "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "__FAST_MATH__" not in macros
    assert "#define __FINITE_MATH_ONLY__ 0" in macros


def test_install__a_source_compiled_with_fast_math_stops(tmp_path: Path) -> None:
    """Where somebody compiles the files without this CMake."""
    source = tmp_path / "one.c"
    source.write_text('#include "format/bits.h"\n')
    include = [f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-std=c11", "-fsyntax-only"]
    run([*CC, *include, source])
    for flag in ["-ffast-math", "-Ofast", "-ffinite-math-only"]:
        done = subprocess.run([*CC, *include, flag, source], capture_output=True, text=True)
        assert done.returncode != 0
        assert "fast-math" in done.stderr


def test_install__pkg_config(prefix: Path, source: Path) -> None:
    path = {"PKG_CONFIG_PATH": str(library_dir(prefix) / "pkgconfig")}
    program = source.parent / "main"
    flags = run([need("pkg-config"), "--cflags", "--libs", "octet"], path).split()
    run([*CC, source, *flags, "-o", program])
    assert run([program], {"LD_LIBRARY_PATH": str(library_dir(prefix))}) == version()
    assert run(["pkg-config", "--modversion", "octet"], path).strip() == version()


def test_install__static_by_hand(prefix: Path, source: Path) -> None:
    program = source.parent / "main"
    library = library_dir(prefix) / "liboctet.a"
    run([*CC, f"-I{prefix}/include", source, library, "-o", program])
    assert run([program]) == version()


@pytest.mark.skipif(sys.platform != "linux", reason="names of ELF libraries")
def test_install__soname_has_the_minor_version_before_1_0(prefix: Path) -> None:
    major, minor, _ = version().split(".")
    library = library_dir(prefix) / "liboctet.so"
    assert library.resolve().name == f"liboctet.so.{version()}"
    assert (library.parent / f"liboctet.so.{major}.{minor}").exists() == (major == "0")


def test_install__no_file_names_the_build(prefix: Path) -> None:
    texts = [f for f in prefix.rglob("*") if f.suffix in {".cmake", ".pc", ".h"}]
    assert len(texts) >= 4
    assert [f.name for f in texts if str(BUILD.parent) in f.read_text()] == []
