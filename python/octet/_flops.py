"""What torch.utils.flop_counter counts of the ops: their products, whatever multiplies them."""

import math
from typing import Any

from torch.utils.flop_counter import register_flop_formula

import torch
from octet import _ops, _plans


def _formula(kind: str, first: int) -> None:
    """Registers an op, the sizes and text of which are arguments `first` and the next."""
    packet = getattr(torch.ops.octet, kind)
    of = kind.removesuffix("_into").removesuffix("_seeded").removesuffix("_drawn")

    def flop(*args: Any, **_: Any) -> Any:  # noqa: ANN401
        return 2 * _plans.products(of, args[first + 1]) * math.prod(args[first])

    register_flop_formula(packet, get_raw=True)(flop)


def _phase(*args: Any, **_: Any) -> Any:  # noqa: ANN401
    *_, sizes, text, plan, phase = args
    found = _plans.phases(_plans.LINEAR_PLANS[plan], text).phases[phase]
    return 2 * found.products * math.prod(sizes)


register_flop_formula(torch.ops.octet.linear_phase, get_raw=True)(_phase)
for _kind in ("linear", "linear_backward", "linear_wgrad"):
    _formula(_kind, 1)
    _formula(f"{_kind}_into", 2)
_formula("linear_seeded", 2)
_formula("linear_drawn", 3)
del _kind, _ops  # imported for the ops that it registers
