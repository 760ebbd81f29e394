"""Layers whose parameters belong to other modules, and a layer that begins with an
activation."""

from typing import Any

import torch
from octet import _sharded
from octet._constant import traced_as_constant
from octet._prologue import Prologue
from octet.linear import AnyLinear
from octet.state.scaling import SAVED

IGNORED = ("_extra_state", "rounding_state")  # keys of TransformerEngine and of older versions


class LentLinear(AnyLinear):
    """A layer whose parameters belong to other modules. Those save and load them."""

    @traced_as_constant
    def _is_sharded(self) -> bool:
        """Whether fully_shard holds the parameters, of this layer or of an owner."""
        own = self.__dict__
        modules = (self, *own.get("owners", ()), *own.get("holders", ()))
        return any(_sharded.is_sharded(m._load_state_dict_post_hooks) for m in modules)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        self._save_scaling(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        del local_metadata, missing_keys, error_msgs
        for key in state_dict if strict else ():
            known = key.removeprefix(prefix) in (*SAVED, *IGNORED)
            if key.startswith(prefix) and not known:
                unexpected_keys.append(key)

    def _load_state(
        self, state: dict[str, Any], prefix: str, brings_weight: bool, error_msgs: list[str]
    ) -> None:
        """Loads delayed scaling's state from a state dict that the owner loads."""
        saved = {name: state[prefix + name] for name in SAVED if prefix + name in state}
        if saved or brings_weight:
            self._load_scaling(saved, prefix, error_msgs)
        self._forget()


class ActivatedLinear(AnyLinear):
    """y = act(x) w^T + b. With a gated activation the input has twice as many columns as the
    weight."""

    activation: str

    def __init__(self, in_features: int, out_features: int, **asked: Any) -> None:  # noqa: ANN401
        torch.nn.Module.__init__(self)
        self.activation = asked.pop("activation")
        super().__init__(in_features, out_features, **asked)

    def _find_prologue(self) -> Prologue | None:
        return Prologue(self.__dict__["activation"])
