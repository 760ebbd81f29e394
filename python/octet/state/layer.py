"""The part of a layer that holds live state: how it is made, saved, loaded, moved and
copied."""

from collections.abc import Callable
from typing import Any

import torch
from octet import _texts
from octet._constant import traced_as_constant
from octet._flat import restored_under
from octet.state import reduction, registry, scaling
from octet.state.active import current, no_dispatch_modes
from octet.state.recompute import CallLog
from octet.state.scaling import SLOTS, PendingUpdate, Unread
from octet.state.weights import WeightCache
from octet.tensor import Carried, QuantizedTensor

_made_everywhere = (0, 0)  # registry's changes and the rows of then


def _make_scaling_everywhere(rows: int) -> None:
    """Buffers for all layers there are; while nothing changes, once."""
    global _made_everywhere
    if _made_everywhere != (registry.CHANGES[0], rows):
        _made_everywhere = registry.CHANGES[0], rows
        for layer in registry.all_layers():
            layer._make_scaling(rows)


class LayerState(torch.nn.Module):
    """A linear layer's live state. Delayed scaling's is in buffers, once the layer uses it."""

    _parts: tuple[tuple[str, int], ...]
    _tp_group: str = ""  # the name of the group that the layer is split over, if it is

    def _label(self) -> str:
        raise NotImplementedError

    def _weight_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _init_state(self) -> None:
        self._weight_cache = WeightCache(self)
        self._pending = PendingUpdate()
        self._calls = CallLog()
        registry.register(self)

    def reset_state(self) -> None:
        """Starts afresh: scales 1, histories 0, no cached weight."""
        with torch.no_grad():
            for name in SLOTS:
                held = self._buffers.get(name)
                if held is not None:
                    held.fill_(0.0 if scaling.is_history(name) else 1.0)
        self._pending.clear()
        self._forget()

    def _forget(self) -> None:
        """Drops what was derived from tensors that may be others by now."""
        self._weight_cache.clear()
        self._pending.forget_tensors()
        self._calls.clear()

    # ---- delayed scaling's buffers ---------------------------------------------------------

    def _present_parameters(self) -> list[torch.Tensor]:
        """The layer's own parameters, or those of torch's parametrizations, which have taken
        them away."""
        own = [p for p in self._parameters.values() if p is not None]
        return own or list(self.parameters())

    def _device(self) -> torch.device:
        """Where the layer's parameters are; the CPU for those that have no memory yet."""
        device = self._present_parameters()[0].device
        return torch.device("cpu") if device.type == "meta" else device

    def _has_scaling(self, rows: int, device: torch.device) -> bool:
        """Whether _make_scaling would find nothing to do."""
        held = [self._buffers.get(name) for name in SLOTS]
        if any(buffer is None or buffer.device != device for buffer in held):
            return False
        if any(isinstance(buffer, Unread) for buffer in held):
            return False
        lengths = [self._buffers[name].shape[0] for name in SLOTS if scaling.is_history(name)]
        return min(lengths) >= rows

    def _make_scaling(self, rows: int) -> None:
        """Buffers for that many rows of history: where there are none, or they have no memory,
        or their history is too short. What is there stays."""
        parameters = self._present_parameters()
        if not parameters:
            return  # somebody is changing the layer
        device = self._device()
        if self._has_scaling(rows, device):
            return
        if scaling.is_captured(device):
            raise RuntimeError(
                f"{self._label()}: delayed scaling's state is to be made inside a CUDA graph, "
                "whose replays would make it again; call octet.prepare(model, recipe) "
                "or run a step before the capture"
            )
        waits = all(p.is_meta for p in parameters)
        with no_dispatch_modes(), torch.no_grad(), torch.inference_mode(False):
            for name in SLOTS:
                held = self._buffers.get(name)
                if isinstance(held, Unread) and not waits:
                    held = self._buffers[name] = held.plain()
                if held is None or held.is_meta:
                    made = scaling.fresh(name, rows, device)
                    made = made.as_subclass(Unread) if waits else made
                    is_new = name not in self._buffers
                    self._buffers[name] = made
                    if is_new:
                        self._non_persistent_buffers_set.add(name)
                    continue
                if held.device != device and not held.is_meta:
                    held = self._buffers[name] = held.to(device)
                if scaling.is_history(name) and held.shape[0] < rows:
                    more = rows - held.shape[0]
                    self._buffers[name] = torch.nn.functional.pad(held, (0, 0, 0, more))
        self._pending.forget_tensors()

    def _need_scaling(self, recipe: str) -> None:
        """Makes sure, in eager code, that the layer has the state of a delayed recipe."""
        rows = _texts.history_rows(recipe)
        held = self._buffers.get("fp8_amax_history")
        waits = any(isinstance(self._buffers.get(name), Unread) for name in SLOTS)
        if held is None or held.shape[0] < rows or held.device != self._device() or waits:
            self._make_scaling(rows)

    @traced_as_constant
    def _need_scaling_in_graph(self, recipe: str) -> bool:
        """The same while code is traced, and for all layers: compiled code that serves many of
        them would be traced again for each that lacks the buffers. A layer that does not use
        them does not save them."""
        self._need_scaling(recipe)
        scaling.watch_optimizers()
        _make_scaling_everywhere(_texts.history_rows(recipe))
        return True

    def _saved_buffers(self) -> list[str]:
        """State that belongs into a state_dict: of a prepared layer, or used."""
        names = [name for name in SLOTS if self._buffers.get(name) is not None]
        persistent = [n for n in names if n not in self._non_persistent_buffers_set]
        if persistent or not names:
            return persistent
        used = any(
            bool((self._buffers[n] != (0.0 if scaling.is_history(n) else 1.0)).any())
            for n in names
            if not self._buffers[n].is_meta
        )
        return names if used else []

    # ---- moving and copying ----------------------------------------------------------------

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "LayerState":
        """Moves the state along with the layer, but keeps its values and its float32, whatever
        `fn` does to parameters: change their dtype, or leave their memory uninitialized."""
        state = {name: self._buffers.pop(name) for name in SLOTS if name in self._buffers}
        quantized = [p for p in self._parameters.values() if isinstance(p, QuantizedTensor)]
        carried = [Carried(parameter) for parameter in quantized]
        try:
            super()._apply(fn, recurse)
            for each in carried:
                each.put_back()
        finally:
            self._buffers.update(state)
        parameters = self._present_parameters()
        if state and parameters and not parameters[0].is_meta:
            rows = max(t.shape[0] for name, t in state.items() if scaling.is_history(name))
            self._make_scaling(rows)
            if parameters[0].is_shared() and not parameters[0].is_cuda:
                for name in state:
                    self._buffers[name].share_memory_()
        self._forget()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        registry.register(self)
        self._weight_cache.bind(self)
        self._pending.copied()
        region = current()
        if not (region.enabled or region.calibrating):
            self._pending.clear()
        elif self._pending.waits:  # a copy of a layer that was used in this step
            step = region.step
            if reduction.group_for(self._pending.rule, step.group, self._tp_group):
                self._pending.clear()  # what it has recorded counts in its next step
                return
            step.recorded.append(self)
            self._pending.step = step.id

    # ---- saving and loading ----------------------------------------------------------------

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self._save_scaling(destination, prefix, keep_vars)

    def _save_scaling(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Saves delayed scaling's state."""
        for name in self._saved_buffers():
            value = self._buffers[name]
            destination[prefix + name] = value if keep_vars else value.detach()

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
        """State is either what was saved or fresh: what a checkpoint lacks starts afresh, so
        any recipe's checkpoint loads. TransformerEngine's ``_extra_state`` is ignored, and the
        ``rounding_state`` of older versions."""
        state_dict = restored_under(state_dict, prefix)
        named = {prefix + name: name for name in SLOTS}
        ignored = {prefix + "_extra_state", prefix + "rounding_state"}
        plain = {k: v for k, v in state_dict.items() if k not in named and k not in ignored}
        state = {name: self._buffers.pop(name) for name in SLOTS if name in self._buffers}
        try:
            super()._load_from_state_dict(
                plain, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )
        finally:
            self._buffers.update(state)
        saved = {name: state_dict[key] for key, name in named.items() if key in state_dict}
        brings_weight = any(prefix + name in state_dict for name in self._weight_names())
        if saved or brings_weight:
            self._load_scaling(saved, prefix, error_msgs)
        self._forget()

    def _load_scaling(
        self, saved: dict[str, torch.Tensor], prefix: str, error_msgs: list[str]
    ) -> None:
        """Delayed scaling's state: what was saved, and the rest afresh. All or nothing."""
        for name, value in saved.items():
            shape = tuple(value.shape)
            rows = (shape[0],) if scaling.is_history(name) and shape else ()
            if shape != (*rows, SLOTS[name]) or rows == (0,):
                wanted = f"(rows, {SLOTS[name]})" if rows else f"({SLOTS[name]},)"
                error_msgs.append(
                    f"size mismatch for {prefix}{name}: it is {shape} in the checkpoint, "
                    f"{wanted} in the layer"
                )
                return
        # Copies: what is loaded may be the buffers themselves.
        saved = {n: v if v.is_meta else v.detach().clone() for n, v in saved.items()}
        if saved:
            lengths = [v.shape[0] for n, v in saved.items() if scaling.is_history(n)]
            self._make_scaling(max(lengths, default=1))
        with torch.no_grad():
            for name in SLOTS:
                held = self._buffers.get(name)
                if held is None:
                    continue
                held.fill_(0.0 if scaling.is_history(name) else 1.0)
                if name in saved and not saved[name].is_meta:
                    value = saved[name]
                    (held[: value.shape[0]] if scaling.is_history(name) else held).copy_(value)
        self._pending.clear()


def _buffer(name: str) -> property:
    """A buffer of delayed scaling as an attribute: a layer that has none yet makes it."""

    def read(layer: LayerState) -> torch.Tensor:
        if layer._buffers.get(name) is None:
            layer._make_scaling(scaling.DEFAULT_ROWS)
        return layer._buffers[name]

    def write(layer: LayerState, tensor: torch.Tensor) -> None:
        layer._make_scaling(scaling.DEFAULT_ROWS)
        layer._buffers[name] = tensor

    return property(read, write, doc=f"Delayed scaling's {name.removeprefix('fp8_')}.")


for _name in SLOTS:
    setattr(LayerState, _name, _buffer(_name))
del _name
