"""examples/cpp/run_package.cpp: an AOTInductor package of octet layers runs without Python."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import octet
import pytest

import torch

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / os.environ.get("OCTET_BUILD", "build") / "liboctet_torch.so"
CXX = shlex.split(os.environ.get("CXX", "c++"))
TORCH = Path(torch.__file__).parent
HEADER = TORCH / "include/torch/csrc/inductor/aoti_package/model_package_loader.h"
pytestmark = [
    pytest.mark.skipif(not PLUGIN.exists(), reason=f"there is no {PLUGIN}: make lib"),
    pytest.mark.skipif(shutil.which(CXX[0]) is None, reason="there is no C++ compiler"),
    pytest.mark.skipif(not HEADER.exists(), reason="this torch has no headers of AOTInductor"),
]


class Network(torch.nn.Module):
    """A layer whose weight is stored quantized, and one that casts it at each call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        first = torch.nn.Sequential(torch.nn.Linear(64, 96))
        octet.convert(first, weights=octet.recipe.MXFP8BlockScaling())
        self.first, self.second = first, octet.Linear(96, 10, device="cpu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
            return self.second(torch.relu(self.first(x)))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("aot") / "run_package"
    include, lib = TORCH / "include", TORCH / "lib"
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    subprocess.run(
        [
            *(*CXX, "-std=c++20", "-O0", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
            *(f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}"),
            *(str(ROOT / "examples/cpp/run_package.cpp"), "-o", str(made), f"-L{lib}"),
            *("-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"),
            f"-Wl,-rpath,{lib}",
        ],
        check=True,
    )
    return made


def run(program: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, env=clean, timeout=300
    )


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, torch.Tensor, torch.Tensor]:
    model, x = Network().requires_grad_(False).eval(), torch.randn(8, 64)
    path = tmp_path_factory.mktemp("package") / "model.pt2"
    with torch.no_grad():
        exported = torch.export.export(model, (x,))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
        return path, x, model(x)


def test_aot__a_package_runs_without_python(
    program: Path, package: tuple[Path, torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    path, x, wanted = package
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "libtorch_cpu" in linked
    assert "python" not in linked.replace(str(TORCH), "")
    (tmp_path / "x").write_bytes(x.numpy().tobytes())
    done = run(program, PLUGIN, path, tmp_path / "x", tmp_path / "y", *x.shape)
    assert (done.returncode, done.stderr) == (0, "")
    y = torch.frombuffer(bytearray((tmp_path / "y").read_bytes()), dtype=torch.float32)
    assert torch.equal(y.view(8, 10), wanted)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x", "y"]


def test_aot__what_is_missing_is_named(
    program: Path, package: tuple[Path, torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    x, y = tmp_path / "x", tmp_path / "y"
    x.write_bytes(package[1].numpy().tobytes())
    for words, reason in (
        ((tmp_path / "no.so", package[0], x, y, 8, 64), "make lib builds it"),
        ((PLUGIN, package[0], x, y, 8, 63), "not 504 numbers"),
        ((PLUGIN, package[0], x, y, 8, "many"), "many is no number"),
        ((PLUGIN, tmp_path / "no.pt2", x, y, 8, 64), "run_package: "),
        ((PLUGIN, package[0], x, tmp_path / "no" / "y", 8, 64), "cannot be written"),
    ):
        done = run(program, *words)
        assert done.returncode == 1
        assert reason in done.stderr
        assert not y.exists()
    assert run(program).returncode == 2
