"""Gradients of recipes with state, element by element, against a double-precision Linear."""

import octet
from laws import RECIPES, assert_product, inputs, layer, step, within

import torch

# ---- delayed scaling: the products of bytes that are known -----------------------------------


def decoded(x: torch.Tensor, scale: torch.Tensor, fp8: str) -> torch.Tensor:
    """What delayed scaling makes of a tensor by a scale that it has."""
    q = octet.Float8Quantizer(scale.reshape(1).clone(), torch.zeros(1), fp8)
    return q(x.reshape(-1, x.shape[-1])).dequantize(torch.float32).double()


def test_gradients__delayed_scaling_multiplies_the_decoded_bytes() -> None:
    linear, active = layer(), RECIPES["delayed"]
    x, grad = inputs()
    for factor in (1.0, 3.0, 0.25):
        scale, back = linear.fp8_scale.clone(), linear.fp8_grad_scale.clone()
        y, dx, dw, db, *_ = step(linear, within(active, linear), x * factor, grad / factor)
        w = decoded(linear.weight.detach(), scale[1], "e4m3")
        xq = decoded(x * factor, scale[0], "e4m3")
        dy = decoded(grad / factor, back[0], "e5m2")
        assert_product(y, xq, w.T, linear.bias.detach().double())
        assert_product(dx, dy, w)
        assert_product(dw, dy.T, xq)
        rows = (grad / factor).reshape(-1, 44).double()
        assert_product(db, torch.ones(1, len(rows)).double(), rows)


# ---- NVFP4: stochastic rounding and the transform, within what they may err ------------------

SIGNS = torch.tensor([-1.0 if 0xD7E8 >> r & 1 else 1.0 for r in range(16)]).double()
HADAMARD = torch.tensor(
    [[(-1.0) ** bin(r & c).count("1") / 4 for r in range(16)] for c in range(16)]
).double()


def transformed(x: torch.Tensor) -> torch.Tensor:
    """Sixteen rows at a time, the missing ones zero; it is orthonormal."""
    rows = -(-x.shape[0] // 16) * 16
    padded = torch.zeros(rows, x.shape[1], dtype=torch.float64)
    padded[: x.shape[0]] = x
    groups = padded.reshape(-1, 16, x.shape[1]) * SIGNS[:, None]
    return (HADAMARD @ groups).reshape(rows, -1)


def largest(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The largest magnitude of each block, at each of its elements."""
    m, k = x.shape
    padded = torch.zeros(-(-m // rows) * rows, -(-k // columns) * columns, dtype=x.dtype)
    padded[:m, :k] = x.abs()
    blocks = padded.reshape(padded.shape[0] // rows, rows, -1, columns)
    amax = blocks.amax((1, 3), keepdim=True).expand_as(blocks)
    return amax.reshape(padded.shape)[:m, :k]


def error(x: torch.Tensor, rows: int, columns: int, stochastic: bool) -> torch.Tensor:
    """How far a decoded element may be from x.

    A block's scale is amax/6 in E4M3, off by at most 2^-4 of it, or by half a subnormal step of
    the tensor's own scale. Codes are at most 2 scales apart: that is the most that stochastic
    rounding errs, nearest rounding half as much; beyond 6 scales a value is cut off."""
    amax = largest(x, rows, columns)
    tiny = 2.0**-10 * x.abs().max() / 448 / 6
    step = (2 if stochastic else 1) * (amax / 6 * (1 + 2.0**-4) + tiny)
    return torch.maximum(step, amax * 2.0**-4 + 6 * tiny) * (1 + 2.0**-20)


def assert_within(
    y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, ea: torch.Tensor, eb: torch.Tensor
) -> None:
    """y is a b, where elements of a and b err by as much as ea and eb; and not for nothing."""
    exact = a @ b
    size = (a.abs() + ea) @ (b.abs() + eb)
    bound = ea @ b.abs() + a.abs() @ eb + ea @ eb + (a.shape[1] + 2) * 2.0**-23 * size
    bound = bound + 2.0**-8 * (exact.abs() + bound)
    found = (y.double().reshape(exact.shape) - exact).abs()
    assert bool((found <= bound).all())
    assert found.max() > 0


def test_gradients__default_nvfp4_errs_as_much_as_its_steps_allow() -> None:
    linear, active = layer(), RECIPES["nvfp4"]
    x, grad = inputs()
    w = linear.weight.detach().double()
    rows, dy = x.reshape(-1, 70).double(), grad.reshape(-1, 44).double()
    ew = error(w, 16, 16, stochastic=False)
    tx, tdy = transformed(rows), transformed(dy)
    # The transform is rounded to bfloat16 before its blocks are.
    etx = error(tx, 16, 1, stochastic=False) + 2.0**-8 * largest(tx, 16, 1)
    etdy = error(tdy, 16, 1, stochastic=True) + 2.0**-8 * largest(tdy, 16, 1)
    means = [torch.zeros(()), torch.zeros(())]
    for seed in range(24):
        y, dx, dw, *_ = step(linear, within(active, linear), x, grad, seed)
        b = linear.bias.detach().double()
        assert_within(
            y.reshape(-1, 44).double() - b, rows, w.T, error(rows, 1, 16, False), ew.T
        )
        assert_within(dx, dy, w, error(dy, 1, 16, True), ew)
        assert_within(dw, tdy.T, tx, etdy.T, etx)
        means = [means[0] + dx.double() / 24, means[1] + dw.double() / 24]
    # Every draw is another, and their mean comes closer than one draw, as 24 fair draws do.
    for mean, last, exact in zip(means, (dx, dw), (dy @ w, dy.T @ rows), strict=True):
        assert (mean - last.double()).abs().max() > 0
        assert (mean.reshape(exact.shape) - exact).norm() < 0.8 * (
            last.double().reshape(exact.shape) - exact
        ).norm()
