"""OCTET_VERBOSE=1: prints a line on stderr when a layer's call is planned for the first
time."""

import os
import sys
import weakref
from typing import Any

import torch
from octet import _C, _signatures

VERBOSE = os.environ.get("OCTET_VERBOSE", "0") not in ("", "0")
_UNKNOWN_ROWS = 1024  # rows are not known when a graph is compiled

_said: "weakref.WeakKeyDictionary[torch.nn.Module, set[str]]" = weakref.WeakKeyDictionary()


def _products(words: str, sizes: tuple[int, int, int], dtype: torch.dtype) -> str:
    """How the products of forward and backward are multiplied."""
    found = list(_C.product_facts("linear", words, sizes))
    if _signatures.forward_signature(words).has_backward:
        back = _signatures.gradient_words(words, dtype, None)
        found += _C.product_facts("linear_backward", back, sizes)
    kinds = {row[0]: row[1] for row in found}
    if len(set(kinds.values())) == 1:
        return next(iter(kinds.values()))
    return ", ".join(f"{gemm} {how}" for gemm, how in kinds.items())


def announce(layer: Any, words: str, rows: int | None, dtype: torch.dtype) -> None:  # noqa: ANN401
    """Prints how a layer's call is planned, once for each kind of call. `rows` is None during
    tracing."""
    said = _said.setdefault(layer, set())
    if words in said:
        return
    said.add(words)
    k, n = layer._ends()
    sizes = (_UNKNOWN_ROWS if rows is None else rows, k, n)
    stored, alive, *_ = _C.measure("linear", words, sizes)
    compiled = "" if rows is not None else " (compiled for any m)"
    print(
        f"octet: {layer.name or layer._label()}: linear m={sizes[0]} k={k} n={n} {words}"
        f"{compiled}: {_products(words, sizes, dtype)}, saves {stored + alive} B",
        file=sys.stderr,
        flush=True,
    )
