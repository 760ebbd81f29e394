"""Type checkers find nothing in a right program of a user's, and mistakes in a wrong one."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    find_spec("mypy") is None, reason="there is no mypy: pip install mypy"
)
# torch's own types take a minute to read, and are torch's to test.
CONFIG = """[mypy]
strict = True
[mypy-torch.*]
follow_imports = skip
[mypy-octet.*]
follow_imports = silent
"""
WRONG = {
    'octet.Linear("64", 32)': "arg-type",
    "octet.Linear(64, 32, biass=True)": "call-arg",
    "octet.recipe.MXFP8BlockScaling(margins=1)": "call-arg",
    'octet.recipe.DelayedScaling(margin="0")': "arg-type",
    "octet.recipe.MXFP8BlockScaling().margins": "attr-defined",
    'octet.autocast(recipe="mxfp8")': "arg-type",
    "octet.quantise": "attr-defined",
    "saved: str = octet.measure(octet.Linear(64, 32), 8).saved": "assignment",
}


def mypy(folder: Path, program: Path) -> "subprocess.CompletedProcess[str]":
    config = folder / "mypy.ini"
    config.write_text(CONFIG)
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy", f"--config-file={config}"),
            *(f"--cache-dir={folder / 'cache'}", program),
        ],
        env={"MYPYPATH": str(HERE.parents[1] / "python"), "PATH": ""},
        capture_output=True,
        text=True,
    )


def test_types__a_users_program_passes(tmp_path: Path) -> None:
    done = mypy(tmp_path, HERE / "user_program.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_types__a_users_program_runs() -> None:
    import user_program

    user_program.main()


def test_types__mistakes_are_found(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text("\n".join(["import octet", *WRONG]))
    done = mypy(tmp_path, program)
    found = re.findall(r"wrong\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    assert found == [(str(line), code) for line, code in enumerate(WRONG.values(), 2)]
