"""FLOP counts of the ops for torch.utils.flop_counter: their matrix products."""

import math
from typing import Any

from torch.utils.flop_counter import register_flop_formula

import torch
from octet import _ops, _plans


def _formula(op: str, kind: str, first: int) -> None:
    """Registers the FLOP formula of an op that runs a plan of this kind. The op's sizes and
    text are its arguments number `first` and the next."""
    packet = getattr(torch.ops.octet, op)

    def flop(*args: Any, **_: Any) -> Any:  # noqa: ANN401
        return 2 * _plans.products(kind, args[first + 1]) * math.prod(args[first])

    register_flop_formula(packet, get_raw=True)(flop)


def _phase(*args: Any, **_: Any) -> Any:  # noqa: ANN401
    *_, sizes, text, plan, phase = args
    found = _plans.phases(_plans.LINEAR_PLANS[plan], text).phases[phase]
    return 2 * found.products * math.prod(sizes)


register_flop_formula(torch.ops.octet.linear_phase, get_raw=True)(_phase)
for _kind in ("linear", "linear_backward", "linear_wgrad"):
    _formula(_kind, _kind, 1)
    _formula(f"{_kind}_into", _kind, 2)
_formula("linear_seeded", "linear", 2)
_formula("linear_drawn", "linear", 3)
del _kind, _ops  # imported because it registers the ops
