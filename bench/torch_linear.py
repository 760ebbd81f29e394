"""torch's own Linear here: forward and backward, and one built on torch._scaled_mm."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn


def median_us(step: Callable[[], object], seconds: float = 1.5, least: int = 7) -> float:
    """The median time of a call, in microseconds, over about that many seconds."""
    step()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < until:
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def linear_us(m: int, k: int, n: int, dtype: torch.dtype) -> float:
    layer = nn.Linear(k, n, bias=False, dtype=dtype)
    x = torch.randn(m, k, dtype=dtype, requires_grad=True)
    dy = torch.randn(m, n, dtype=dtype)

    def step() -> None:
        layer.weight.grad = x.grad = None
        layer(x).backward(dy)

    return median_us(step)


class ScaledLinear(torch.autograd.Function):
    """Per-tensor FP8 with torch's cast and torch._scaled_mm, as one would write it by hand."""

    @staticmethod
    def cast(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax().float().clamp(min=1e-12) / 448.0
        return (x.float() / scale).to(torch.float8_e4m3fn), scale

    @staticmethod
    def product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
        """a (M, K) times b (N, K) transposed."""
        return torch._scaled_mm(
            a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16
        )

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, w: Tensor) -> Tensor:
        qx, qw = ScaledLinear.cast(x), ScaledLinear.cast(w)
        ctx.save_for_backward(*qx, *qw)
        return ScaledLinear.product(qx, qw)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, sx, w, sw = ctx.saved_tensors
        qdy = ScaledLinear.cast(dy.contiguous())
        turned = (qdy[0].t().contiguous(), qdy[1])
        dx = ScaledLinear.product(qdy, (w.t().contiguous(), sw))
        dw = ScaledLinear.product(turned, (x.t().contiguous(), sx))
        return dx, dw


def scaled_us(m: int, k: int, n: int) -> float:
    x = torch.randn(m, k, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(n, k, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(m, n, dtype=torch.bfloat16)

    def step() -> None:
        x.grad = w.grad = None
        ScaledLinear.apply(x, w).backward(dy)

    return median_us(step)


def main() -> None:
    """m k n threads: prints the three medians in microseconds."""
    m, k, n, threads = (int(word) for word in sys.argv[1:5])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    bf16, f32 = linear_us(m, k, n, torch.bfloat16), linear_us(m, k, n, torch.float32)
    print(f"{bf16:.1f} {f32:.1f} {scaled_us(m, k, n):.1f}")


if __name__ == "__main__":
    main()
