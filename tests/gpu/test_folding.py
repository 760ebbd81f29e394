"""The bound of folded MXFP8 holds for its definition; no GPU is needed for that."""

import pytest
from folding import KINDS, STEPS, TYPES, deviation, fold, fold_columns, numbers, rounded

import torch


@pytest.mark.parametrize("fmt", TYPES)
def test_folding__rounding_is_the_formats(fmt: str) -> None:
    """Codes are kept, their middles go to the even one, and others to the nearest."""
    codes = torch.arange(127 if fmt == "e4m3" else 124, dtype=torch.uint8)
    values = codes.view(TYPES[fmt]).double()
    assert torch.equal(rounded(values, fmt), values)
    even = values[(codes[:-1] + codes[:-1] % 2).long()]
    assert torch.equal(rounded((values[1:] + values[:-1]) / 2, fmt), even)
    assert torch.equal(rounded(-values[1:] * 1.0001, fmt), -values[1:])


@pytest.mark.parametrize("fmt", TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_folding__numbers_and_products_move_within_the_bound(kind: str, fmt: str) -> None:
    x, w = fold(numbers(kind, 75, 300), fmt), fold(numbers(kind, 40, 300))
    assert ((x.folded - x.exact).abs() <= x.bound).all()
    moved = (x.folded @ w.folded.t() - x.exact @ w.exact.t()).abs()
    assert (moved <= deviation(x, w) * (1 + 1e-9)).all()


def test_folding__some_numbers_move() -> None:
    """Else nothing above could fail."""
    x = fold(numbers("blocks", 64, 256))
    assert ((x.folded - x.exact).abs() > x.bound * 0.9).any()
    assert torch.equal(x.folded[x.bound == 0], x.exact[x.bound == 0])


@pytest.mark.parametrize(
    ("kind", "limit"), [("normal", 1e-6), ("outliers", 5e-6), ("tails", 5e-5)]
)
def test_folding__products_move_little(kind: str, limit: float) -> None:
    """By the norms of the rows."""
    x, w = fold(numbers(kind, 256, 1024)), fold(numbers("normal", 256, 1024))
    moved = x.folded @ w.folded.t() - x.exact @ w.exact.t()
    norms = x.exact.norm(dim=1)[:, None] * w.exact.norm(dim=1)[None]
    assert float((moved.norm(dim=1) / norms.norm(dim=1)).max()) < limit


def test_folding__a_block_of_subnormal_codes_vanishes_under_a_huge_one() -> None:
    x = torch.full((1, 128), 2.0**-20, dtype=torch.bfloat16)
    x[0, 0] = 448.0
    found = fold(x)
    assert found.folded[0, 0] == 448.0
    assert found.folded[0, 32:].count_nonzero() == 0
    assert (found.bound[0, 32:] == STEPS["e4m3"] / 2).all()


def test_folding__columns_are_the_rows_of_the_transpose() -> None:
    x = numbers("blocks", 130, 70)
    assert torch.equal(fold_columns(x).folded, fold(x.t()).folded.t())
