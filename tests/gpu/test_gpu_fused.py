"""Casts that compute norms, layers that save less, and rows that do not see their batch, on a
GPU: the bits of the same work in separate steps.

OCTET_TEST_FUSED_ON_CPU=1 runs the smaller sizes on a CPU instead; the laws are the same."""

import os
from typing import Any

import octet
import pytest
from octet import _C, _ops, recipe
from test_gpu_replay import digest

import torch

ON_CPU = "OCTET_TEST_FUSED_ON_CPU" in os.environ
DEVICE = "cpu" if ON_CPU else "cuda"
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
RECIPES: dict[str, recipe.Recipe] = {
    "delayed": recipe.DelayedScaling(amax_history_len=4),
    "current": recipe.Float8CurrentScaling(),
    "block": recipe.Float8BlockScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
    "nvfp4": recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
    "mxfp4": recipe.MXFP4BlockScaling(disable_stochastic_rounding=True),
}
every_recipe = pytest.mark.parametrize("name", RECIPES)
every_norm = pytest.mark.parametrize("norm", ["RMSNorm", "LayerNorm"])

# Rows and columns: whole tiles, ragged ones, rows that begin anywhere, and more tiles than a
# GPU has room for, so that one kernel begins while the one before it still writes.
SMALL = [(64, 128), (300, 264), (129, 72), (16, 1032)]
SIZES = SMALL if ON_CPU else [*SMALL, (2048, 1024), (8192, 2048), (4500, 4104)]


def normed(fused: Any, norm: str, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """The norm alone: a layer without a recipe whose weight is the identity copies f(x)."""
    (m, k), word = x.shape, {2: "f16", 4: "f32"}[x.element_size()]
    word = "bf16" if x.dtype is torch.bfloat16 else word
    given = [x, torch.eye(k, dtype=x.dtype, device=DEVICE), fused.layer_norm_weight.detach()]
    given += [fused.layer_norm_bias.detach()] if norm == "LayerNorm" else []
    beta = " beta" if norm == "LayerNorm" else ""
    words = f"in={word}{beta} prologue={norm.lower()} eps={fused.eps} grad=none"
    words += "" if ON_CPU else f" device={_C.cuda_device(0)}"
    return _ops.linear(given, (m, k, k), words)[0]


def layer_of(k: int, norm: str, dtype: torch.dtype, save: str = "speed") -> Any:  # noqa: ANN401
    torch.manual_seed(1)
    layer = octet.LayerNormLinear(
        k, 192, normalization=norm, save=save, params_dtype=dtype, device=DEVICE
    )
    with torch.no_grad():
        layer.layer_norm_weight.copy_(torch.linspace(0.5, 1.5, k))
        if norm == "LayerNorm":
            layer.layer_norm_bias.copy_(torch.linspace(-1, 1, k))
    return layer


def run(call: Any, name: str, x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:  # noqa: ANN401
    """Output and gradient of the input."""
    inp = x.clone().requires_grad_()
    with octet.autocast(recipe=RECIPES[name]):
        y = call(inp)
    y.backward(dy)
    return [y.detach(), inp.grad]


def data(m: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(m, k, dtype=torch.float32, device=DEVICE) * 3 + 0.5
    return x.to(dtype), torch.randn(m, 192, dtype=torch.float32, device=DEVICE).to(dtype)


@every_norm
@every_recipe
@pytest.mark.parametrize("save", ["speed", "memory"])
def test_gpu_fused__a_norm_in_a_cast_is_the_norm_before_it(
    name: str, norm: str, save: str
) -> None:
    """Nothing waits between the steps, and memory is used again: what a kernel reads too early
    is another step's."""
    for number, (m, k) in enumerate(SIZES):
        dtype = DTYPES[number % 3]
        fused = layer_of(k, norm, dtype, save)
        linear = octet.Linear(k, 192, params_dtype=dtype, device=DEVICE)
        with torch.no_grad():
            linear.weight.copy_(fused.weight)
            linear.bias.copy_(fused.bias)
        for _ in range(3):
            x, dy = data(m, k, dtype)
            got = run(fused, name, x, dy)[0]
            assert torch.equal(got, run(linear, name, normed(fused, norm, x), dy)[0]), (m, k)
        assert torch.equal(fused.weight.grad, linear.weight.grad), (m, k)
        assert torch.equal(fused.bias.grad, linear.bias.grad), (m, k)


@every_recipe
def test_gpu_fused__save_memory_computes_the_same_bits(name: str) -> None:
    for number, (m, k) in enumerate(SIZES):
        dtype, found = DTYPES[number % 3], []
        for save in ("speed", "memory"):
            torch.manual_seed(1)
            layer = octet.Linear(k, 192, params_dtype=dtype, device=DEVICE, save=save)
            torch.manual_seed(2)
            for _ in range(2):
                x, dy = data(m, k, dtype)
                kept = run(layer, name, x, dy)
            found.append([*kept, layer.weight.grad, layer.bias.grad])
        assert all(map(torch.equal, *found)), (m, k, dtype)


INVARIANT: dict[str, recipe.Recipe] = {
    "block": recipe.Float8BlockScaling(batch_invariant=True),
    "mxfp8": recipe.MXFP8BlockScaling(batch_invariant=True),
    "mxfp4": recipe.MXFP4BlockScaling(disable_stochastic_rounding=True, batch_invariant=True),
}


@pytest.mark.parametrize("name", INVARIANT)
@pytest.mark.parametrize("sizes", [(264, 200), (1024, 512), (70, 21)])
def test_gpu_fused__rows_do_not_see_their_batch(name: str, sizes: tuple[int, int]) -> None:
    k, n = sizes
    torch.manual_seed(1)
    layer = octet.Linear(k, n, params_dtype=torch.bfloat16, device=DEVICE)
    x = torch.randn(700, k, device=DEVICE).bfloat16()
    dy = torch.randn(700, n, device=DEVICE).bfloat16()

    def rows(first: int, count: int) -> list[torch.Tensor]:
        inp = x[first : first + count].clone().requires_grad_()
        with octet.autocast(recipe=INVARIANT[name]):
            y = layer(inp)
        y.backward(dy[first : first + count])
        return [y.detach(), inp.grad]

    whole = rows(0, 700)
    for first, count in (
        (0, 1),
        (5, 1),
        (0, 8),
        (3, 16),
        (100, 17),
        (64, 63),
        (1, 129),
        (0, 512),
    ):
        for got, want in zip(rows(first, count), whole, strict=True):
            assert torch.equal(got, want[first : first + count]), (first, count)


def train(name: str, save: str) -> list[int]:
    """What each step of a layer with its norm computes; its tensors stay where they are."""
    fused = layer_of(256, "RMSNorm", torch.bfloat16, save)
    torch.manual_seed(3)
    x, dy = data(160, 256, torch.bfloat16)
    x.requires_grad_()
    found = []
    for step in range(12):
        with octet.autocast(recipe=RECIPES[name]):
            y = fused(x)
        y.backward(dy)
        grads = (fused.weight.grad, fused.bias.grad, fused.layer_norm_weight.grad)
        found.append(digest(y, x.grad, *grads))
        with torch.no_grad():
            x.mul_(0.75 + step % 5 / 8)
            for p in fused.parameters():
                p -= 0.01 * p.grad
                p.grad = None
            x.grad = None
        del y, grads  # or they would be somewhere else every other time
    return found


@pytest.mark.parametrize("save", ["speed", "memory"])
@every_recipe
def test_gpu_fused__replays_compute_what_single_launches_do(name: str, save: str) -> None:
    allowed = _C.allow_replays(False)
    try:
        wanted = train(name, save)
        _C.allow_replays(True)
        assert train(name, save) == wanted
    finally:
        _C.allow_replays(allowed)


@every_norm
@every_recipe
def test_gpu_fused__captured_is_eager(name: str, norm: str) -> None:
    if ON_CPU:
        pytest.skip("a CPU captures nothing")
    fused = layer_of(264, norm, torch.bfloat16)
    if name == "delayed":  # whose state a capture may not make
        octet.prepare(fused, RECIPES[name])
    x, dy = data(300, 264, torch.bfloat16)
    warm = layer_of(264, norm, torch.bfloat16)
    run(warm, name, x, dy)
    inp = x.clone().requires_grad_()
    for t in (inp, *fused.parameters()):
        t.grad = torch.zeros_like(t)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), octet.autocast(recipe=RECIPES[name]):
        for t in (inp, *fused.parameters()):
            t.grad.zero_()
        y = fused(inp)
        y.backward(dy)
    eager = layer_of(264, norm, torch.bfloat16)
    for scale in (1.0, 2.0):
        inp.data.copy_(x * scale)
        graph.replay()
        want = run(eager, name, x * scale, dy)
        assert torch.equal(y.detach(), want[0])
        assert torch.equal(inp.grad, want[1])
        assert torch.equal(fused.layer_norm_weight.grad, eager.layer_norm_weight.grad)
        for p in eager.parameters():
            p.grad = None
