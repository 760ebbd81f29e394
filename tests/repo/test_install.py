"""An installed tree works from wherever it lies: by CMake package, pkg-config and by hand."""

import re
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
