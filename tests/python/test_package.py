"""The package: quick to import, one binary for every Python, and a wheel that works."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import octet
import pytest

ROOT = Path(__file__).parents[2]
EXTENSION = Path(octet._C.__file__)


def python(code: str, path: Path) -> str:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd="/").stdout


def test_package__import_takes_a_tenth_of_torchs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))  # an installed package has them
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    code = (
        "import gc; from time import thread_time as now; a = now(); import torch; b = now(); "
        "import octet; print((now() - b) / (b - a), gc.isenabled())"
    )
    found = [python(code, ROOT / "python").split() for _ in range(4)]
    assert {enabled for _, enabled in found} == {"True"}
    assert min(float(share) for share, _ in found[1:]) < 0.1


def test_package__a_failed_import_leaves_the_collector_on() -> None:
    code = (
        "import gc, sys, torch; sys.modules['octet.norm_mlp'] = None\n"
        "try: import octet\nexcept ImportError: print(gc.isenabled())"
    )
    assert python(code, ROOT / "python") == "True\n"


def test_package__version_is_the_headers() -> None:
    header = (ROOT / "include" / "octet.h").read_text()
    assert octet.__version__ == ".".join(re.findall(r"VERSION_\w+ (\d+)", header))


def test_package__is_typed() -> None:
    assert (Path(octet.__file__).parent / "py.typed").exists()


@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm")
def test_package__binary_exports_its_init_and_knows_no_torch() -> None:
    out = subprocess.run(["nm", "-D", EXTENSION], check=True, capture_output=True, text=True)
    symbols = [line.split()[-2:] for line in out.stdout.splitlines()]
    assert [name for kind, name in symbols if kind == "T"] == ["PyInit__C"]
    assert not [name for _, name in symbols if "torch" in name or "c10" in name]
    assert EXTENSION.name.endswith(".abi3.so")


DOCUMENTED = [getattr(octet, name) for name in octet.__all__ if name != "recipe"]


@pytest.mark.parametrize("thing", DOCUMENTED, ids=lambda thing: thing.__name__)
def test_package__every_name_is_documented(thing: object) -> None:
    assert thing.__doc__


def test_package__examples_in_docstrings_run() -> None:
    code = (
        "import doctest, importlib, octet, pkgutil, torch\n"
        "total = failed = 0\n"
        "for info in pkgutil.walk_packages(octet.__path__, 'octet.'):\n"
        "    if info.name == 'octet._C': continue\n"
        "    module = importlib.import_module(info.name)\n"
        "    names = {'octet': octet, 'torch': torch, 'x': torch.randn(8, 64)}\n"
        "    names['layer'] = octet.Linear(64, 32, device='cpu')\n"
        "    found = doctest.testmod(module, extraglobs=names)\n"
        "    total, failed = total + found.attempted, failed + found.failed\n"
        "print(total, failed)"
    )
    total, failed = map(int, python(code, ROOT / "python").split()[-2:])
    assert failed == 0
    assert total > 20


def test_package__wheel_serves_every_python(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", f"-Cbuild-dir={tmp_path / 'build'}"]
    subprocess.run([*pip, "wheel", ".", *options, "-w", tmp_path], check=True, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(rf"torch_octet-{octet.__version__}-cp310-abi3-\w+\.whl", wheel.name)
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True
    )
    code = (
        "import octet, torch\n"
        "layer = octet.Linear(64, 32, device='cpu')\n"
        "with octet.autocast(): print(octet.__file__, layer(torch.randn(4, 64)).shape)"
    )
    assert str(tmp_path) in python(code, tmp_path / "site")


@pytest.mark.parametrize("example", sorted((ROOT / "examples/python").glob("*.py")), ids=str)
def test_package__examples_run(example: Path) -> None:
    assert python(f"exec(open({str(example)!r}).read())", ROOT / "python")


def test_package__graphs_are_cached_across_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    code = (
        "import octet, torch\n"
        "from torch._dynamo.utils import counters\n"
        "layer = octet.Linear(64, 32, device='cpu')\n"
        "with octet.autocast():\n"
        "    y = torch.compile(layer, fullgraph=True)(torch.randn(8, 64, requires_grad=True))\n"
        "y.sum().backward()\n"
        "print(counters['inductor']['fxgraph_cache_hit'])"
    )
    assert [int(python(code, ROOT / "python")) for _ in range(2)] == [0, 2]
