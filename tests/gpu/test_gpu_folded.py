"""Folded MXFP8 on the GPU: what is multiplied, how far it is off, and that it is one result."""

from collections.abc import Callable
from typing import Any

import octet
import pytest
from folding import KINDS, Folded, deviation, fold, fold_columns, numbers
from laws import compiled, step, within
from octet import recipe

import torch

pytestmark = pytest.mark.skipif(
    octet.support()["mxfp8"] != "folded", reason="this GPU does not fold MXFP8"
)

FOLDED, EXACT = recipe.MXFP8BlockScaling(), recipe.MXFP8BlockScaling(product="exact")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SHAPES = [
    (128, 128, 128),
    (256, 512, 384),
    (64, 96, 48),
    (39, 70, 44),
    (250, 1003, 509),
    (129, 4104, 777),
    (64, 128, 50257),
    (1030, 257, 129),
    (17, 1024, 1000),
    (7, 1024, 1000),
    (1, 9, 17),
]


def linear(weight: torch.Tensor, **options: Any) -> octet.Linear:  # noqa: ANN401
    """A layer on the GPU with this weight, without a bias unless one is asked for."""
    options = {"bias": False, "params_dtype": weight.dtype, **options}
    made = octet.Linear(weight.shape[1], weight.shape[0], device="cuda", **options)
    with torch.no_grad():
        made.weight.copy_(weight)
    return made


def results(
    layer: octet.Linear, active: recipe.Recipe, x: torch.Tensor, dy: torch.Tensor
) -> list[torch.Tensor]:
    """Output, gradient of the input, gradient of the weight."""
    return [t.cpu() for t in step(layer, within(active, layer), x.cuda(), dy.cuda())[:3]]


# ---- what is multiplied ----------------------------------------------------------------------


def one(size: int, dtype: torch.dtype) -> torch.Tensor:
    """The identity: a product with it is the other operand, folded, to the bit."""
    return torch.eye(size, dtype=dtype)


def assert_is(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Every number; f16 does not hold the small ones exactly."""
    assert torch.equal(found, wanted.to(found.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(128, 256), (48, 64), (300, 200), (33, 130), (96, 272)])
def test_gpu_folded__operands_are_the_references(
    sizes: tuple[int, int], kind: str, dtype: torch.dtype
) -> None:
    m, k = sizes
    x, w = numbers(kind, m, k, dtype), numbers(kind, m, k, dtype)
    # fprop and dgrad of the identity as weight: x and dy by rows.
    y, dx, _ = results(linear(one(k, dtype)), FOLDED, x, w)
    assert_is(y, fold(x).folded)
    assert_is(dx, fold(w).folded)
    # Inputs and gradients that are the identity: w by rows, by columns.
    y, _, dw = results(linear(w), FOLDED, one(k, dtype), numbers(kind, k, m, dtype))
    assert_is(y.t(), fold(w).folded)
    _, dx, _ = results(linear(w), FOLDED, numbers(kind, m, k, dtype), one(m, dtype))
    assert_is(dx, fold_columns(w).folded)
    # wgrad: dy and x by columns.
    dy = numbers(kind, k, m, dtype)
    _, _, dw = results(linear(w), FOLDED, one(k, dtype), dy)
    assert_is(dw, fold_columns(dy).folded.t())
    _, _, dw = results(linear(w), FOLDED, x, one(m, dtype))
    assert_is(dw, fold_columns(x).folded)


def test_gpu_folded__gradients_of_e5m2_are_the_references() -> None:
    hybrid = recipe.MXFP8BlockScaling(fp8_format=recipe.Format.HYBRID)
    for kind in KINDS:
        dy = numbers(kind, 144, 200)
        _, dx, _ = results(linear(one(200, dy.dtype)), hybrid, torch.zeros_like(dy), dy)
        assert_is(dx, fold(dy, "e5m2").folded)


# ---- how far it is off -----------------------------------------------------------------------


def largest(of: Folded) -> torch.Tensor:
    """The largest number of each 128 along the product."""
    short = -of.exact.shape[1] % 128
    return torch.nn.functional.pad(of.exact.abs(), (0, short)).unflatten(1, (-1, 128)).amax(2)


def near(
    folded: torch.Tensor, exact: torch.Tensor, a: Folded, b: Folded, sums: float = 0.0
) -> None:
    """Within the bound of folding, the precision of FP8 sums, and a rounding of each result.

    A tensor core adds 32 terms at a time to those of the same 128 before them. All are cut off
    13 bits below the largest: each of 128 terms and four sums may lose so much. On average the
    loss is far smaller."""
    x, y = folded.double(), exact.double()
    terms = a.exact.abs() @ b.exact.abs().t()
    eps = torch.finfo(folded.dtype).eps
    rest = deviation(a, b) + 2 * eps * y.abs() + sums
    slack = rest + 2.0**-13 * (4 * terms + 128 * largest(a) @ largest(b).t())
    assert torch.isfinite(x).all()
    assert ((x - y).abs() <= slack).all(), float(((x - y).abs() / slack).max())
    usual = rest + 2.0**-10 * terms
    assert (x - y).square().mean() <= usual.square().mean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SHAPES)
def test_gpu_folded__products_are_the_exact_ones_within_the_bound(
    sizes: tuple[int, int, int], kind: str
) -> None:
    m, k, n = sizes
    x, dy, w = numbers(kind, m, k), numbers(kind, m, n), numbers("normal", n, k)
    y, dx, dw = results(linear(w), FOLDED, x, dy)
    y_exact, dx_exact, dw_exact = results(linear(w), EXACT, x, dy)
    near(y, y_exact, fold(x), fold(w))
    near(dx, dx_exact, fold(dy), Folded(*(part.t() for part in fold_columns(w))))
    rows = Folded(*(part.t() for part in fold_columns(dy)))
    near(dw, dw_exact, rows, Folded(*(part.t() for part in fold_columns(x))))


@pytest.mark.parametrize("sizes", [(256, 512, 384), (250, 1003, 509), (7, 40, 1000)])
def test_gpu_folded__bias_and_main_grad(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    x, dy, w = numbers("blocks", m, k), numbers("blocks", m, n), numbers("normal", n, k)
    found = []
    for active in (FOLDED, EXACT):
        layer = linear(w, bias=True, fuse_wgrad_accumulation=True)
        with torch.no_grad():
            layer.bias.copy_(torch.linspace(-4, 4, n))
        layer.weight.main_grad = torch.full_like(layer.weight, 0.5, dtype=torch.float32)
        y = step(layer, within(active, layer), x.cuda(), dy.cuda())[0]
        found.append((y.cpu(), layer.weight.main_grad.cpu()))
    (y, dw), (y_exact, dw_exact) = found
    near(y, y_exact, fold(x), fold(w), sums=2.0**-20)
    rows = Folded(*(part.t() for part in fold_columns(dy)))
    near(dw, dw_exact, rows, Folded(*(part.t() for part in fold_columns(x))), sums=2.0**-20)


def quantized(w: torch.Tensor, active: recipe.Recipe) -> octet.Linear:
    with octet.quantized_model_init(recipe=active):
        return linear(w)


@pytest.mark.parametrize("two_d", [False, True])
def test_gpu_folded__weights_that_arrive_quantized_or_cached(two_d: bool) -> None:
    w, x = numbers("normal", 384, 512), numbers("outliers", 96, 512)
    options = {"enable_2d_quantization": two_d}
    folded = recipe.MXFP8BlockScaling(**options)
    exact = recipe.MXFP8BlockScaling(**options, product="exact")
    dy = numbers("normal", 96, 384)
    for make in (linear, lambda w: quantized(w, folded)):
        near(*(results(make(w), r, x, dy)[0] for r in (folded, exact)), fold(x), fold(w))
    layer = linear(w)
    with octet.autocast(recipe=folded), torch.no_grad():
        first = layer(x.cuda(), is_first_microbatch=True)
        again = layer(x.cuda(), is_first_microbatch=False)
    assert torch.equal(first, again)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_gpu_folded__few_rows_of_a_cached_weight_are_exact(rows: int) -> None:
    w, x = numbers("blocks", 256, 512), numbers("blocks", rows, 512)
    found = []
    for active in (FOLDED, EXACT):
        layer = linear(w)
        with octet.autocast(recipe=active), torch.no_grad():
            layer(numbers("normal", 64, 512).cuda(), is_first_microbatch=True)
            found.append(layer(x.cuda(), is_first_microbatch=False))
    assert torch.equal(*found)


def test_gpu_folded__nan_is_where_it_is_exactly() -> None:
    x, w, dy = (
        numbers("normal", 200, 300),
        numbers("normal", 96, 300),
        numbers("normal", 200, 96),
    )
    x[3, 5] = x[150, 299] = dy[7, 90] = float("nan")
    for a, b in zip(
        results(linear(w), FOLDED, x, dy), results(linear(w), EXACT, x, dy), strict=True
    ):
        assert a.isnan().any()
        assert torch.equal(a.isnan(), b.isnan())


# ---- one result ------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(256, 512, 384), (39, 70, 44), (1, 64, 32)])
def test_gpu_folded__eager_equals_compiled_and_runs_again(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    x, dy, w = numbers("blocks", m, k), numbers("blocks", m, n), numbers("normal", n, k)
    layer = linear(w)
    want = results(layer, FOLDED, x, dy)
    for _ in range(3):
        assert all(map(torch.equal, results(layer, FOLDED, x, dy), want))
    call: Callable[..., Any]
    call, counter = compiled(within(FOLDED, layer))
    found = step(layer, call, x.cuda(), dy.cuda())[:3]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, want, strict=True))
    assert counter.frame_count == 1


def test_gpu_folded__what_is_saved_is_the_same() -> None:
    saved = []
    for active in (FOLDED, EXACT):
        layer, kept = linear(numbers("normal", 64, 96)), []
        with (
            torch.autograd.graph.saved_tensors_hooks(
                lambda t, to=kept: to.append(t) or t, lambda t: t
            ),
            octet.autocast(recipe=active),
        ):
            layer(numbers("normal", 48, 96).cuda().requires_grad_())
        saved.append([(t.dtype, t.shape) for t in kept])
    assert saved[0] == saved[1]
