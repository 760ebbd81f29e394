"""A layer's state: delayed scaling's scales and amaxes, the random step, a cached weight."""

from collections.abc import Callable
from typing import Any

import torch
from octet import _delayed, _ops, _texts
from octet._autocast import LAYERS
from octet._state import ACTIVE
from octet.recipe import DelayedScaling
from octet.tensor import QuantizedTensor

HISTORY = 1024  # rows of amax history that a layer starts with
_STATE = {
    "fp8_scale": (3,),
    "fp8_amax_history": (HISTORY, 3),
    "fp8_grad_scale": (2,),
    "fp8_grad_amax_history": (HISTORY, 2),
}


def _make_room_everywhere(recipe: str) -> bool:
    for layer in list(LAYERS):
        layer._lengthen(_texts.history_rows(recipe))
    return True


# Runs while a graph is traced: a buffer that is made inside one cannot be written by backward.
_make_room_everywhere._dynamo_marked_constant = True  # type: ignore[attr-defined]


class LayerState(torch.nn.Module):
    """The part of a layer that moves while it trains, as buffers that are saved once used."""

    def _make_state(self, device: torch.device | str | None) -> None:
        for key, shape in _STATE.items():
            state = torch.empty(shape, dtype=torch.float32, device=device)
            self.register_buffer(key, state, persistent=False)
        self.register_buffer(
            "rounding_state", torch.empty(2, dtype=torch.int64, device=device), persistent=False
        )
        self._cache: QuantizedTensor | None = None
        self._own_weight: torch.Tensor | None = (
            None  # the same, of a recipe with a user's quantizers
        )
        self._own_maker = ""
        self._moved = False
        self._delayed_recipe: DelayedScaling | None = None
        LAYERS.add(self)

    def reset_state(self) -> None:
        """Forgets amaxes, scales and the cached weight; takes a new seed for rounding."""
        with torch.no_grad():
            for key in _STATE:
                getattr(self, key).fill_(0.0 if key.endswith("history") else 1.0)
            # From a copy of torch's generator, so that a layer draws what nn.Linear draws.
            generator = torch.Generator()
            generator.set_state(torch.get_rng_state())
            base = torch.randint(2**62, (1,), generator=generator, device="cpu")
            self.rounding_state.copy_(torch.cat([base, torch.zeros_like(base)]))
        self._cache = self._own_weight = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        LAYERS.add(self)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "LayerState":
        """Moves the state with the layer, but keeps it float32."""
        state = {key: getattr(self, key) for key in _STATE}
        super()._apply(fn, recurse)
        for key, old in state.items():
            new = getattr(self, key)
            if new.dtype != old.dtype:
                setattr(self, key, old.to(new.device))
        self._cache = self._own_weight = None
        return self

    # ---- saving ----------------------------------------------------------------------------

    def _used_state(self) -> list[str]:
        """State that has moved; a layer that never used it saves weight and bias alone."""
        if self.fp8_scale.is_meta:
            return []
        used = [
            key
            for key in _STATE
            if not bool((getattr(self, key) == (0.0 if key.endswith("history") else 1.0)).all())
        ]
        return used + (["rounding_state"] if int(self.rounding_state[1]) else [])

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key in self._used_state():
            value = getattr(self, key)
            destination[prefix + key] = value if keep_vars else value.detach()

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
        """State that a checkpoint lacks starts afresh, so any recipe's checkpoint loads."""
        named = {prefix + key: key for key in (*_STATE, "rounding_state")}
        plain = {key: value for key, value in state_dict.items() if key not in named}
        super()._load_from_state_dict(
            plain, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        with torch.no_grad():
            for key, name in named.items():
                if key not in state_dict:
                    continue
                if name.endswith("history"):
                    self._lengthen(len(state_dict[key]))
                    getattr(self, name).zero_()[: len(state_dict[key])] = state_dict[key]
                else:
                    getattr(self, name).copy_(state_dict[key])
        self._cache = self._own_weight = None

    # ---- delayed scaling -------------------------------------------------------------------

    def _make_room(self, recipe: str) -> None:
        """Room for all the rows that a recipe asks for; in traced code, before it runs."""
        if torch.compiler.is_compiling():
            _make_room_everywhere(recipe)
        else:
            self._lengthen(_texts.history_rows(recipe))

    def _lengthen(self, rows: int) -> None:
        more = rows - self.fp8_amax_history.shape[0]
        if more > 0:
            for key in ("fp8_amax_history", "fp8_grad_amax_history"):
                longer = torch.nn.functional.pad(getattr(self, key), (0, 0, 0, more))
                setattr(self, key, longer)

    def _record(self, amax: torch.Tensor, recipe: DelayedScaling) -> None:
        """Notes this call's amaxes; leaving the autocast moves the scales."""
        _ops.delayed_record(self.fp8_amax_history, amax)
        region = ACTIVE.region
        if region.traced:
            region.used.append((self, recipe))
        else:
            self._moved = True
            self._delayed_recipe = recipe

    def _roll(self, recipe: DelayedScaling) -> None:
        _delayed.update(self.fp8_scale, self.fp8_amax_history, [], recipe, "input")
