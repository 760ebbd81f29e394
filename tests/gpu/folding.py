"""MXFP8 folded into blocks of 128, from its definition, in double precision."""

from typing import NamedTuple

from octet import _ops

import torch

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
STEPS = {"e4m3": 2.0**-9, "e5m2": 2.0**-16}  # between subnormal numbers
DIGITS = {"e4m3": 3, "e5m2": 2}  # of a mantissa
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class Folded(NamedTuple):
    exact: torch.Tensor  # what the MXFP8 bytes are worth
    folded: torch.Tensor  # the same in blocks of 128
    bound: torch.Tensor  # of their difference


def rounded(x: torch.Tensor, fmt: str) -> torch.Tensor:
    """To the nearest number of the format, ties to even, subnormal ones included."""
    _, exponent = torch.frexp(x.nan_to_num())
    step = torch.exp2(exponent.double() - 1 - DIGITS[fmt]).clamp(min=STEPS[fmt])
    return torch.round(x / step) * step


def fold(x: torch.Tensor, fmt: str = "e4m3") -> Folded:
    """A matrix on the CPU by its rowwise bytes, with blocks of 128 along the columns."""
    rows, cols = x.shape
    data, scales = _ops.quantize(x.contiguous(), [], f"{NAMES[x.dtype]} mxfp8:{fmt}+row")[:2]
    codes = data.view(TYPES[fmt]).double()
    blocks = scales[:rows, : -(-cols // 32)].double() - 127
    groups = torch.nn.functional.pad(blocks, (0, -blocks.shape[1] % 4), value=-127.0)
    tops = groups.view(rows, -1, 4).amax(2).repeat_interleave(128, 1)[:, :cols]
    own = blocks.repeat_interleave(32, 1)[:, :cols]
    moved = rounded(codes * torch.exp2(own - tops), fmt) * torch.exp2(tops)
    bound = torch.where(own < tops, STEPS[fmt] / 2 * torch.exp2(tops), 0.0)
    return Folded(codes * torch.exp2(own), moved, bound)


def fold_columns(x: torch.Tensor, fmt: str = "e4m3") -> Folded:
    """By its columnwise bytes, with blocks of 128 along the rows."""
    return Folded(*(part.t() for part in fold(x.t(), fmt)))


def deviation(a: Folded, b: Folded) -> torch.Tensor:
    """How far the product a b^T of folded rows may be from the exact one's."""
    x, y = a.exact.abs().nan_to_num(), b.exact.abs().nan_to_num()
    return a.bound @ y.t() + x @ b.bound.t() + a.bound @ b.bound.t()


KINDS = ("normal", "outliers", "tails", "blocks", "zeros", "tiny")


def numbers(
    kind: str, rows: int, cols: int, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Matrices that fold easily, and such that do not."""
    x = torch.randn(rows, cols, dtype=torch.float64)
    size = (rows, -(-cols // 32))
    if kind == "outliers":
        x[:, ::37] *= 100
    elif kind == "tails":
        x *= torch.exp2(4 * torch.randn(rows, cols, dtype=torch.float64))
    elif kind == "blocks":  # one huge block beside others of every size below
        exponents = torch.randint(-24, 1, size).double()
        x *= torch.exp2(exponents).repeat_interleave(32, 1)[:, :cols]
    elif kind == "zeros":
        x *= (torch.rand(size) < 0.3).double().repeat_interleave(32, 1)[:, :cols]
    elif kind == "tiny":  # codes that are all subnormal beside one that is not
        x = torch.where(torch.rand(rows, cols) < 0.01, x, x * 2.0**-14)
    most = float(torch.finfo(dtype).max) / 2
    return x.clamp(-most, most).to(dtype)
