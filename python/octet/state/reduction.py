"""Delayed scaling over ranks: scales are updated by the largest amax of a group of ranks.

Where ranks reduce, the scales of gradients, too, are updated at the end of a step and not in
backward: so one collective serves all layers of a step, forward and backward. What a backward
recorded after its step has ended is reduced at the optimizer's step, before it can be saved. It
counts at the end of the next step, before another backward reads it.
"""

from typing import Any

import torch
from octet import _C
from octet._constant import constant, traced_as_constant
from octet.recipe import DelayedScaling
from octet.state.scaling_rule import Rule


@constant
def _reduces(text: str) -> bool:
    return bool(_C.fields("recipe", text)["reduce_amax"])


def group_for(rule: Rule, given: str, shared: str) -> str:
    """The name of the group whose ranks agree on the amaxes of a rule: the one that autocast
    was given, or else the one that the layer is split over. Empty where there is none.

    Other ranks are not made to wait for one another unasked: stages of a pipeline would do so
    for ever."""
    group = given or shared
    if not group:
        return ""
    text = rule.text if isinstance(rule, DelayedScaling) else rule
    return group if _reduces(text) else ""


@traced_as_constant
def _is_alone(group: str) -> bool:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(group).size() == 1


@traced_as_constant
def check_covers(given: str, shared: str, label: str) -> bool:
    """The ranks that share a tensor's bytes share its scale: amaxes are reduced over them
    all."""
    from torch.distributed import get_process_group_ranks
    from torch.distributed.distributed_c10d import _resolve_process_group

    reduced, sharing = (
        set(get_process_group_ranks(_resolve_process_group(name))) for name in (given, shared)
    )
    if sharing - reduced:
        raise ValueError(
            f"{label}: ranks of tp_group share quantized bytes and so one scale, but "
            f"amax_reduction_group lacks rank {min(sharing - reduced)}; give octet.autocast a "
            "group that has all of tp_group, or none"
        )
    return True


def _reduce(histories: list[torch.Tensor], group: str) -> None:
    from torch.distributed import _functional_collectives  # noqa: F401  (registers the ops)

    c10d = torch.ops._c10d_functional
    rows = [history[0] for history in histories]
    reduced = c10d.wait_tensor(c10d.all_reduce(torch.cat(rows), "max", group))
    start = 0
    for row in rows:
        row.copy_(reduced[start : start + row.shape[0]])
        start += row.shape[0]


def reduce_all(histories: list[tuple[torch.Tensor, str]]) -> None:
    """Makes the newest amaxes of histories the largest of their groups: one collective for each
    group (and device)."""
    found: dict[Any, list[torch.Tensor]] = {}
    for history, group in histories:
        found.setdefault((group, history.device), []).append(history)
    for (group, _), members in found.items():
        if not _is_alone(group):
            _reduce(members, group)
