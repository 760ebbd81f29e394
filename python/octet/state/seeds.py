"""Random numbers for stochastic rounding come from torch's generator of the device, as
dropout's do.

A call that rounds at random, in forward or in its backward, draws one seed in forward, where
the order of a program is fixed. So ``torch.manual_seed``, saved generator states, checkpoints
and CUDA graphs work by torch's own rules, and a layer holds no random state.
"""

from collections.abc import Sequence
from typing import Any

import torch

_LIBRARY = torch.library.Library("octet", "FRAGMENT")
# Traced code calls the first op; the graph then holds the second. In a graph each draw takes
# the draw before it as an argument. Otherwise a compiler could merge two draws or reorder them.
_LIBRARY.define("draw_seed(Tensor like) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.define(
    "draw_seed_after(Tensor like, Tensor[] before) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
)


# one tensor for each device, the model for empty_like
_LIKE: dict[torch.device, torch.Tensor] = {}


def draw(device: torch.device) -> torch.Tensor:
    """Draws a seed from torch's default generator of a device."""
    like = _LIKE.get(device)
    if like is None:
        like = _LIKE[device] = torch.empty(1, dtype=torch.int64, device=device)
    return torch.empty_like(like).random_()


def _draw_after(like: torch.Tensor, before: Sequence[torch.Tensor]) -> torch.Tensor:
    del before
    return draw(like.device)


@torch.library.register_fake("octet::draw_seed_after")
def _(like: torch.Tensor, before: Sequence[torch.Tensor]) -> torch.Tensor:
    return like.new_empty([1], dtype=torch.int64)


def _graph_in_making() -> Any:  # noqa: ANN401
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL)


def last_in_graph() -> list[torch.Tensor]:
    """The last draw in the graph that is being built, if any: the `before` of the next one."""
    seed = getattr(_graph_in_making(), "octet_last_seed", None)
    return [] if seed is None else [seed]


def drawn_in_graph(seed: torch.Tensor) -> torch.Tensor:
    """Makes a draw the last one of the graph that is being built."""
    graph = _graph_in_making()
    if graph is not None:
        graph.octet_last_seed = seed
    return seed


def _draw_in_order(like: torch.Tensor) -> torch.Tensor:
    """Adds a draw to the graph that is being built, after the last one."""
    return drawn_in_graph(torch.ops.octet.draw_seed_after(like, last_in_graph()))


_LIBRARY.impl("draw_seed_after", _draw_after, "CompositeExplicitAutograd")
_LIBRARY.impl("draw_seed", _draw_in_order, "CompositeImplicitAutograd")


def draw_in_graph(like: torch.Tensor) -> torch.Tensor:
    """Draws a seed in traced code."""
    return torch.ops.octet.draw_seed.default(like.detach())
