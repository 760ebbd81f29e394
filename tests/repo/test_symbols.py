"""What the libraries export, what they import, and that they keep no state."""

import re
import sys
from pathlib import Path

import pytest
from tree import BUILD, CC, HEADER, PARTS, SHARED_LIBRARY, STATIC_LIBRARY, need, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads ELF symbol tables")

# The library never allocates, ends the process, prints, opens files or libraries, or touches
# the locale, but where ALLOWED says so.
FORBIDDEN = re.compile(
    r"malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign|strn?dup|v?asprintf"
    r"|abort|_?_?exit|_Exit|quick_exit|raise|__assert_fail"
    r"|v?d?f?w?printf|f?put[cs]|putchar|fwrite|write|perror|std(out|err)"
    r"|setlocale|newlocale|uselocale"
    r"|f?open(at)?(64)?|mkd?s?temp(64)?|mkdir|rename|unlink|dl(open|sym|addr|close)"
)

# By object file: what it may import all the same.
ALLOWED = {
    # The thread pool allocates its threads; who brings threads of their own never calls it.
    "pool.c.o": {"calloc", "free"},
    # CUDA's libraries are found at run time, and where they lie; NVRTC's second half lies
    # beside it.
    "library.c.o": {"dladdr", "dlopen", "dlsym"},
    # An open GPU and what hangs on it: its kernels by name, a module while it is compiled.
    "open.c.o": {"calloc", "malloc", "free"},
    "module.c.o": {"malloc", "free"},
    # Graphs, until they are freed.
    "graph.c.o": {"malloc", "free"},
    "build_id.c.o": {"dladdr"},
    "nvrtc.c.o": {"calloc", "malloc", "free", "dladdr", "dlopen"},
    # A prepared plan and its list of launches; what walks it, list.c and prepared.c, does not.
    "list_fill.c.o": {"calloc", "realloc", "free"},
    "prepare.c.o": {"calloc", "free"},
    # What products hold on an open GPU.
    "lt_hold.c.o": {"calloc", "free"},
    # The algorithm of a product, at its first use.
    "lt_cache.c.o": {"malloc", "free"},
    # Compiled kernels on disk.
    "cache.c.o": {"malloc", "free", "open", "openat", "write", "mkdir"},
    "cache_bound.c.o": {"realloc", "free", "openat"},
}

# Process-wide variables that are set once. Each needs a reason in the file that has it.
WRITABLE = {
    "chosen",  # src/cpu/isa.c: whose kernels the CPU device runs
    *("found", "ready", "lock"),  # src/cuda/driver.c: the CUDA driver's functions
}

# Those of src/torch: torch's functions and its GPUs, set once, and the tables that change,
# which are bounded and only hold what can be made again. Their files alone allocate.
TORCH_WRITABLE = {
    "api.c.o": {"oct_torch"},
    "cuda.c.o": {"folders", "found", "known", "opened"},
    "plan_cache.c.o": {
        "plannings",
        "prepared_plans",
        "size_sets",
        "sizes",
        "text_sets",
        "texts",
    },
    "replay.c.o": {"allowed", "most", "graphs", "replays", "sets"},
    "rule.c.o": {"rule_sets", "rules"},
}
TORCH_ALLOWED = {
    "api.c.o": {"dlopen", "dlsym", "dlclose"},
    "cuda.c.o": {"dlopen", "dlsym"},
    "plan_cache.c.o": {"malloc", "free"},
    "replay.c.o": {"calloc"},
    "rule.c.o": {"malloc", "free"},
}


def exported_by_header() -> set[str]:
    shown = [part for part in PARTS if f'"octet/{part.name}"' in HEADER.read_text()]
    text = re.sub(r"/\*.*?\*/", "", "".join(p.read_text() for p in shown), flags=re.DOTALL)
    return set(re.findall(r"^OCTET_API\b[^;(]*?\b(octet_\w+)\s*\(", text, re.MULTILINE))


def symbols(library: Path, *flags: str) -> list[tuple[str, str]]:
    """(name, section) of the symbols that nm lists; the section is *UND* for an import."""
    lines = run([need("nm"), "-fsysv", *flags, library]).splitlines()
    rows = [line.split("|") for line in lines]
    return [(row[0].strip().split("@")[0], row[6].strip()) for row in rows if len(row) == 7]


def forbidden_imports(library: Path) -> dict[str, set[str]]:
    """By object file, the imports that FORBIDDEN names, seen through glibc's __<name>_chk."""
    found: dict[str, set[str]] = {}
    for place, name in (
        n.rsplit(":", 1) for n, _ in symbols(library, "-A", "--undefined-only")
    ):
        plain = re.sub(r"^__(\w+)_chk$", r"\1", name)
        if FORBIDDEN.fullmatch(plain):
            found.setdefault(re.split(r"[:/]", place)[-1], set()).add(plain)
    return found


def writable_data(library: Path) -> set[str]:
    """Named objects in writable sections; .data.rel.ro is constant once loaded."""
    section = re.compile(r"\.(data|bss|tdata|tbss)(?!\.rel\.ro)|\*COM\*")
    defined = symbols(library, "--defined-only")
    return {name for name, where in defined if section.match(where) and name != where}


def test_symbols__shared_library_exports_exactly_the_header() -> None:
    exported = {name for name, _ in symbols(SHARED_LIBRARY, "-D", "--defined-only")}
    assert len(exported_by_header()) > 40
    assert exported == exported_by_header()


def test_symbols__static_library_defines_no_foreign_name() -> None:
    defined = {name for name, _ in symbols(STATIC_LIBRARY, "-g", "--defined-only")}
    assert {name for name in defined if not re.match(r"octet_|oct_", name)} == set()


def test_symbols__nothing_allocates_prints_opens_or_exits_but_where_it_may() -> None:
    assert forbidden_imports(STATIC_LIBRARY) == ALLOWED


def test_symbols__nothing_keeps_state() -> None:
    assert writable_data(STATIC_LIBRARY) == WRITABLE


def test_symbols__torch_ops_keep_bounded_tables() -> None:
    objects = sorted(BUILD.glob("CMakeFiles/octet_python.dir/src/torch/*.c.o"))
    if not objects:
        pytest.skip("the extension module was not built")
    state = {path.name: writable_data(path) for path in objects}
    assert {name: found for name, found in state.items() if found} == TORCH_WRITABLE
    imports = {
        name: found for path in objects for name, found in forbidden_imports(path).items()
    }
    assert imports == TORCH_ALLOWED


PLANTED = """
#include <stdio.h>
#include <stdlib.h>
int counter;
static int calls = 1;
static _Thread_local int per_thread;
static const char *const names[] = {"a", "b"};
const char *const *oct_planted(int n) {
    char text[8];
    void *p = malloc((size_t)(counter += n + calls++ + per_thread++));
    printf("%d", snprintf(text, sizeof text, "%d", n));
    free(p);
    return names;
}
"""


def test_symbols__planted_state_and_imports_are_caught(tmp_path: Path) -> None:
    source, planted = tmp_path / "planted.c", tmp_path / "planted.o"
    source.write_text(PLANTED)
    run([*CC, "-std=c11", "-O0", "-fPIC", "-c", source, "-o", planted])
    assert forbidden_imports(planted) == {"planted.o": {"malloc", "printf", "free"}}
    assert writable_data(planted) == {"counter", "calls", "per_thread"}
