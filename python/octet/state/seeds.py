"""Random numbers of stochastic rounding: from torch's generator of the device, as dropout's.

A call that rounds at random, in forward or in its backward, draws one seed in forward, where the
order of a program is fixed. So ``torch.manual_seed``, saved generator states, checkpoints and
CUDA graphs work by torch's own rules, and a layer holds no random state.
"""

from typing import Any

import torch
from octet._constant import traced_as_constant

_LIBRARY = torch.library.Library("octet", "FRAGMENT")
_LIBRARY.define(
    "draw_seed(Tensor like, int call) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
)


def draw(device: torch.device) -> torch.Tensor:
    """A seed on a device, from torch's default generator there."""
    return torch.empty(1, dtype=torch.int64, device=device).random_()


_LIBRARY.impl("draw_seed", lambda like, call: draw(like.device), "CompositeExplicitAutograd")


@torch.library.register_fake("octet::draw_seed")
def _(like: torch.Tensor, call: int) -> torch.Tensor:
    return like.new_empty([1], dtype=torch.int64)


@traced_as_constant
def _number() -> int:
    """How many draws this graph has by now: two of one number could be taken for the same."""
    context: Any = torch._guards.TracingContext.get()
    context.octet_draws = getattr(context, "octet_draws", 0) + 1
    return context.octet_draws


def draw_in_graph(like: torch.Tensor) -> torch.Tensor:
    """A seed in traced code."""
    return torch.ops.octet.draw_seed.default(like.detach(), _number())
