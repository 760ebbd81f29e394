"""Delayed scaling over ranks: scales are updated by the largest amax of all ranks of a
group.

Where ranks reduce, the scales of gradients, too, are updated at the end of a step and not in
backward: so one collective serves all layers of a step, forward and backward. What a backward
recorded after its step has ended is reduced at the optimizer's step, before it can be saved. It
counts at the end of the next step, before another backward reads it.
"""

from typing import Any

import torch
from octet import _C, _parallel
from octet._constant import constant, traced_as_constant
from octet.recipe import DelayedScaling
from octet.state.scaling_rule import Rule

_COMPARED: set[Any] = set()  # groups, and what their ranks were found to reduce alike


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


def _reduce(states: list[torch.Tensor], group: str) -> None:
    from torch.distributed import _functional_collectives  # noqa: F401  (registers the ops)

    c10d = torch.ops._c10d_functional
    rows = [state[1] for state in states]  # the amaxes of the current step
    reduced = c10d.wait_tensor(c10d.all_reduce(torch.cat(rows), "max", group))
    start = 0
    for row in rows:
        row.copy_(reduced[start : start + row.shape[0]])
        start += row.shape[0]


def _by_group(states: list[tuple[torch.Tensor, str]]) -> dict[Any, list[torch.Tensor]]:
    """States by group and device, but those of groups of one rank."""
    found: dict[Any, list[torch.Tensor]] = {}
    for state, group in states:
        if not _is_alone(group):
            found.setdefault((group, state.device), []).append(state)
    return found


def check_alike(states: list[tuple[torch.Tensor, str]], labels: list[str]) -> None:
    """All ranks of a group reduce as many amaxes; compared before each number of them is
    reduced the first time (OCTET_CHECK_RANKS). A rank that has run another number of layers
    would wait for ever, or get amaxes of others."""
    for (group, device), members in _by_group(states).items():
        text = " ".join(str(state.shape[1]) for state in members)
        if not _parallel.is_new(_COMPARED, (group, text)):
            continue
        found = _parallel.disagreement(text, ", ".join(labels), group, device)
        if found:
            lines = "".join(f"\n  rank {i}: {who}" for i, who in enumerate(found))
            raise ValueError(
                f"the ranks of group {group!r} reduce amaxes of different layers of delayed "
                "scaling; each step, all ranks must run the same layers (or give "
                f"reduce_amax=False):{lines}"
            )
        _COMPARED.add((group, text))


def reduce_all(states: list[tuple[torch.Tensor, str]]) -> None:
    """Makes the newest amaxes of states the largest of their groups: one collective for each
    group (and device)."""
    for (group, _), members in _by_group(states).items():
        _reduce(members, group)
