"""A layer's state: delayed scaling's scales and amaxes, the random step, a cached weight."""

import zlib
from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling, is_dynamo_compiling

import torch
from octet import _delayed, _kept_weight, _texts
from octet._autocast import LAYERS, all_layers
from octet._flat import restored_under
from octet._recompute import (
    REMEMBERED,
    Log,
    Said,
    Way,
    is_checkpointed,
    is_recomputing,
    may_recompute,
    unseen,
)
from octet._state import Step, Token, current
from octet.tensor import Carried, QuantizedTensor

HISTORY = 1024  # rows of amax history that a layer starts with
_STATE = {
    "fp8_scale": (3,),
    "fp8_amax_history": (HISTORY, 3),
    "fp8_grad_scale": (2,),
    "fp8_grad_amax_history": (HISTORY, 2),
}


def _make_room_everywhere(rows: int) -> bool:
    for layer in all_layers():
        layer._lengthen(rows)
    return True


# Runs while a graph is traced: a buffer that is made inside one cannot be written by backward.
_make_room_everywhere._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _keep_scales_everywhere() -> bool:
    Way.moves_unseen = True
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        for layer in all_layers():
            layer._log.before_moving()
    return True


# Runs while a graph is traced that will move scales without saying so.
_keep_scales_everywhere._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Use:
    """Delayed scaling's step of a layer: whether its scales wait to be moved, and by what."""

    def __init__(self) -> None:
        self.token: Token | None = None  # of the step that moves them
        self.end()

    def end(self) -> None:
        """The step is over: nothing waits, and nothing of a user's is kept."""
        self.waits = False
        self.rule: _delayed.Rule = ""
        self.scale: torch.Tensor | None = None
        self.history: torch.Tensor | None = None

    def forget_state(self) -> None:
        """The layer's own are new tensors: those of the call are they no more."""
        self.scale = self.history = None

    def taken(self, layer: "LayerState") -> tuple[torch.Tensor, torch.Tensor, _delayed.Rule]:
        """What moves by what, now that the step ends: the layer's scales and history, or those
        that it was given for the call (torch.func.functional_call); compiled code does not say.
        """
        scale, history, rule = self.scale, self.history, self.rule
        if scale is None:
            state = layer._buffers
            scale, history = state["fp8_scale"], state["fp8_amax_history"]
        self.end()
        return scale, history, rule


class LayerState(torch.nn.Module):
    """The part of a layer that moves while it trains, as buffers that are saved once used."""

    _lacks_seed = False  # it came from meta, and by no name: all such layers have one seed

    def _label(self) -> str:
        raise NotImplementedError

    def _make_state(self, device: torch.device | str | None) -> None:
        for key, shape in _STATE.items():
            state = torch.empty(shape, dtype=torch.float32, device=device)
            self.register_buffer(key, state, persistent=False)
        self.register_buffer(
            "rounding_state", torch.empty(2, dtype=torch.int64, device=device), persistent=False
        )
        self._cache: QuantizedTensor | None = None
        self._cache_memory: list[torch.Tensor] = []  # its buffers, where compiled code made it
        self._number = _kept_weight.number(self)
        # The same, of a recipe with a user's quantizers.
        self._own_weight: torch.Tensor | None = None
        self._own_maker = ""
        self._use = Use()
        self._log = Log()
        LAYERS[id(self)] = self

    def reset_state(self, name: str = "") -> None:
        """Forgets amaxes, scales and the cached weight; takes a new seed for rounding.

        Layers that draw nothing between each other's seeds round alike, unless by their names.
        """
        for key in (*_STATE, "rounding_state"):
            self._reset(key, name)
        self._cache = self._own_weight = None
        self._lacks_seed = False

    def _reset(self, key: str, name: str) -> None:
        """One buffer of the state as a new layer's."""
        with torch.no_grad():
            if key in _STATE:
                getattr(self, key).fill_(0.0 if key.endswith("history") else 1.0)
                return
            # From a copy of torch's generator, so that a layer draws what nn.Linear draws.
            generator = torch.Generator()
            generator.set_state(torch.get_rng_state())
            base = torch.randint(2**62, (1,), generator=generator, device="cpu")
            base ^= zlib.crc32(name.encode()) << 29
            self.rounding_state.copy_(torch.cat([base, torch.zeros_like(base)]))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        LAYERS[id(self)] = self
        self._number = _kept_weight.number(self)
        region = current()
        if not (region.enabled or region.calibrating):
            self._use.end()
        elif self._use.waits:  # a copy of a layer that was used in this step
            region.step.used.append(self)
            self._use.token = region.step.token

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "LayerState":
        """Moves the state with the layer, but keeps it float32."""
        state = {key: getattr(self, key) for key in _STATE}
        quantized = [p for p in self._parameters.values() if isinstance(p, QuantizedTensor)]
        carried = [Carried(parameter) for parameter in quantized]
        was_meta = self.fp8_scale.is_meta
        super()._apply(fn, recurse)
        if was_meta and not self.fp8_scale.is_meta:
            self.reset_state()  # there was nothing to move
            self._lacks_seed = True
        for each in carried:
            each.put_back()
        for key, old in state.items():
            new = getattr(self, key)
            if new.dtype != old.dtype:
                setattr(self, key, old.to(new.device))
        self._use.forget_state()
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
        state_dict = restored_under(state_dict, prefix)
        named = {prefix + key: key for key in (*_STATE, "rounding_state")}
        plain = {key: value for key, value in state_dict.items() if key not in named}
        super()._load_from_state_dict(
            plain, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        self._leave_meta()
        has_weight = any(
            prefix + key in state_dict for key in self._parameters if key != "bias"
        )
        for key, name in named.items():
            if key in state_dict:
                self._load_state(name, state_dict[key], key, error_msgs)
            elif has_weight and (name in _STATE or self._lacks_seed):
                self._reset(name, prefix)
            elif has_weight:
                self.rounding_state[1] = 0
        self._cache = self._own_weight = None

    def _leave_meta(self) -> None:
        """State of a layer that was made on meta and whose parameters a checkpoint brought."""
        parameters = [p for p in self._parameters.values() if p is not None]
        if self.fp8_scale.is_meta and parameters and not parameters[0].is_meta:
            for key in (*_STATE, "rounding_state"):
                state = torch.empty_like(getattr(self, key), device=parameters[0].device)
                setattr(self, key, state)
            self.reset_state()
            self._lacks_seed = True

    def _load_state(
        self, name: str, saved: torch.Tensor, key: str, error_msgs: list[str]
    ) -> None:
        """Copies what was saved; a history may be of any length."""
        own = getattr(self, name)
        skipped = int(name.endswith("history"))
        if saved.dim() != own.dim() or saved.shape[skipped:] != own.shape[skipped:]:
            error_msgs.append(
                f"size mismatch for {key}: it is {tuple(saved.shape)} in the checkpoint, "
                f"{tuple(own.shape)} in the layer"
            )
            return
        with torch.no_grad():
            if skipped:
                self._lengthen(len(saved))
                getattr(self, name).zero_()[: len(saved)] = saved
            else:
                own.copy_(saved)

    # ---- delayed scaling -------------------------------------------------------------------

    def _make_room(self, recipe: str) -> None:
        """Room for all the rows that a recipe asks for; in traced code, before it runs."""
        rows = _texts.history_rows(recipe)
        if rows <= HISTORY:
            return
        if is_compiling():
            _make_room_everywhere(rows)
        else:
            self._lengthen(rows)

    def _lengthen(self, rows: int) -> None:
        more = rows - self.fp8_amax_history.shape[0]
        if more > 0:
            for key in ("fp8_amax_history", "fp8_grad_amax_history"):
                longer = torch.nn.functional.pad(getattr(self, key), (0, 0, 0, more))
                setattr(self, key, longer)
            self._use.forget_state()

    def _note_use(self, said: Said, has_graph: bool) -> _delayed.Rule | None:
        """Notes by what a call quantizes, and that leaving the outermost autocast moves scales.

        The rule for the first call under delayed scaling since then: its backward, the last one
        of the step, moves the scales of gradients; those of further calls only record."""
        if said.rule is not None:
            self._make_room(said.recipe)
        return self._note(said, has_graph)

    def _note(self, said: Said, has_graph: bool) -> _delayed.Rule | None:
        """_note_use of a layer that has room."""
        rule = said.rule
        if rule is not None and is_dynamo_compiling() and is_checkpointed():
            raise RuntimeError(
                f"{self._label()}: a checkpoint would run compiled code again by scales that "
                "have moved; under delayed scaling leave the layer out of the checkpoint or of "
                "the compiled code, or take a recipe without scales of its own"
            )
        is_first = rule is not None and self._is_first(rule)
        if not is_compiling():
            self._remember(said, is_first, has_graph)
        return rule if is_first else None

    def _remember(self, said: Said, is_first: bool, has_graph: bool) -> None:
        """For a checkpoint, which may run this call again."""
        log = self._log
        if is_first:
            log.has_turned = True
        if may_recompute():
            way = log.way_of(said)
            if said.rule is not None and way.scale is None:
                way.keep(self._buffers["fp8_scale"])
            way.waiting += not has_graph
            log.note(way)

    def _is_first(self, rule: _delayed.Rule) -> bool:
        step, use = current().step, self._use
        if step.traced:
            scale, history = self._buffers["fp8_scale"], self._buffers["fp8_amax_history"]
            is_first = all(scale is not s or rule != r for s, _, r in step.used)
            if is_first:
                step.used.append((scale, history, rule))
                _keep_scales_everywhere()
            return is_first
        if not is_compiling():
            return self._begins(step, rule)
        # It only tells the step: a comparison would be guarded.
        is_first, step.in_graph = not use.waits, True
        use.waits, use.rule, use.token = True, rule, step.token
        return is_first

    def _begins(self, step: Step, rule: _delayed.Rule) -> bool:
        """_is_first in a step and a call that are not traced."""
        use = self._use
        use.rule = rule
        if use.waits and use.token is step.token:  # or else another thread's waits
            return False
        step.used.append(self)
        state = self._buffers
        use.scale, use.history = state["fp8_scale"], state["fp8_amax_history"]
        use.waits, use.token = True, step.token
        return True

    def _unuse(self) -> None:
        """The call that began the layer's step has failed: another one may begin it."""
        used = current().step.used
        used[:] = [layer for layer in used if layer is not self]
        self._use.end()

    def _recomputed(self) -> Way | None:
        """What the first run of this call did, where a checkpoint runs it again."""
        if not is_recomputing() or self._log.is_empty():
            return None
        way = self._log.recall()
        if way is None:
            raise RuntimeError(
                f"{self._label()} is recomputed in backward, but its recipe or its scales have "
                f"changed more than {REMEMBERED} times since: run backward sooner"
            )
        return way

    def _state_again(self, way: Way) -> tuple[dict[str, torch.Tensor | None], Way | None]:
        """The state of the first run, and what decides whether its backward moves the scales.

        The scale is the one that the first run had, and its amaxes are recorded already. Where
        it left no graph (a reentrant checkpoint) the last run of the step moves the scales."""
        if way.said.rule is None:
            return self._buffers, None
        region = current()
        if region.enabled or region.calibrating:
            # It was left without moving the scales if that was under no_grad.
            self._is_first(way.said.rule)
        with unseen():
            nowhere = torch.empty_like(self._buffers["fp8_amax_history"][:1])
        first = {"fp8_scale": way.scale, "fp8_amax_history": nowhere}
        return {**self._buffers, **first}, way
