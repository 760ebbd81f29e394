"""A layer's last call, so that an eager one like it is not decided again."""

from typing import Any, NamedTuple

import torch
from octet._delayed import Rule
from octet._problem import Backward, Call, Forward
from octet._state import current
from octet.recipe import CustomRecipe
from torch import is_grad_enabled


class Said(NamedTuple):
    """What an autocast says to a layer."""

    recipe: str  # its text
    words: tuple[str, ...] = ()  # what it adds to a call's
    rule: Rule | None = None  # delayed scaling's
    custom: CustomRecipe | None = None  # the recipe itself, where quantizers are a user's


def key_of(
    own: dict[str, Any], inp: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[Any, ...]:
    """All that decides what an eager call does, but for its sizes; `own` is the layer's."""
    region = current()
    return (
        region.recipe,
        region.enabled,
        region.calibrating,
        is_grad_enabled(),
        inp.requires_grad,
        inp.dtype,
        inp.device,
        weight.requires_grad,
        weight.dtype,
        weight.device,
        None if bias is None else (bias.requires_grad, bias.dtype),
        own["return_bias"],
        own["fuse_wgrad_accumulation"],
        own["save_original_input"],
        own["delay_wgrad_compute"],
    )


class Memo:
    """What a layer's last call did, and the key that a call like it has."""

    __slots__ = ("has_graph", "key", "said", "serves", "state", "takes_bias", "task")

    def __init__(
        self,
        key: Any,  # noqa: ANN401
        said: Said | None = None,
        call: Call | None = None,
        signatures: tuple[Forward, Backward | None] | None = None,
    ) -> None:
        self.key = key
        self.said = said
        self.serves = call is not None
        if call is not None:
            self.has_graph = signatures[1] is not None
            self.task = call.problem, *signatures
            self.takes_bias = call.takes_bias
            self.state = call.tensors  # of the layer's: what it takes besides its operands
