"""torch's products at the shapes of bench/gemm.c, for comparison; needs torch.

python bench/gemm_torch.py [threads]
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

SHAPES = [(2048, 1024, 4096), (512, 2048, 2048)]  # M, K, N
RUNS = 7


def seconds(product: Callable[[], object]) -> float:
    """The median of several runs, two more being left out."""
    times = []
    for _ in range(RUNS + 2):
        start = time.perf_counter()
        product()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def line(
    name: str, gemm: str, shape: tuple[int, int, int], product: Callable[[], object]
) -> None:
    m, k, n = shape
    taken = seconds(product)
    speed = 2e-9 * m * k * n / taken
    print(
        f"{name:<16} {gemm:<6} {m:5} {k:5} {n:5}  {1e3 * taken:9.3f} {speed:9.1f}", flush=True
    )


def plain(shape: tuple[int, int, int], name: str, dtype: torch.dtype) -> None:
    m, k, n = shape
    x, w, dy = (torch.randn(size).to(dtype) for size in ((m, k), (n, k), (m, n)))
    line(name, "fprop", shape, lambda: torch.nn.functional.linear(x, w))
    line(name, "dgrad", shape, lambda: dy @ w)
    line(name, "wgrad", shape, lambda: dy.t() @ x)


def scaled(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    one = torch.ones(())
    x = torch.randn(m, k).to(torch.float8_e4m3fn)
    w = torch.randn(n, k).to(torch.float8_e4m3fn)

    def fprop() -> torch.Tensor:
        return torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16)

    line("torch scaled_mm", "fprop", shape, fprop)


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print(f"{'operands':<16} {'gemm':<6} {'M':>5} {'K':>5} {'N':>5}  {'ms':>9} {'GFLOP/s':>9}")
    with torch.no_grad():
        for shape in SHAPES:
            plain(shape, "torch f32", torch.float32)
            plain(shape, "torch bf16", torch.bfloat16)
            scaled(shape)


if __name__ == "__main__":
    main()
