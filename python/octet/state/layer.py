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
from octet.state.scaling import SLOTS, PendingUpdate, StepWatch, Unread
from octet.state.weights import WeightCache
from octet.tensor import Carried, QuantizedTensor

# the registry's change count and the rows at the last run of the function below
_made_everywhere = (0, 0)


def _make_scaling_everywhere(rows: int) -> None:
    """Makes the buffers of all existing layers. Does nothing if no layer was added since."""
    global _made_everywhere
    if _made_everywhere != (registry.CHANGES[0], rows):
        _made_everywhere = registry.CHANGES[0], rows
        for layer in registry.all_layers():
            layer._make_scaling(rows)


class LayerState(torch.nn.Module):
    """A linear layer's live state. Delayed scaling's state is buffers, made when the layer
    first uses it."""

    _parts: tuple[tuple[str, int], ...]
    _tp_group: str = ""  # name of the group that the layer is split over; "" if it is not split

    def _label(self) -> str:
        raise NotImplementedError

    def _weight_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _init_state(self) -> None:
        self._weight_cache = WeightCache(self)
        self._pending = PendingUpdate()
        self._calls = CallLog()
        self._step_watch = StepWatch(self)
        registry.register(self)

    def reset_state(self) -> None:
        """Resets the state: scales become 1, histories 0, and the cached weight is dropped."""
        with torch.no_grad():
            for name in SLOTS:
                held = self._buffers.get(name)
                if held is not None:
                    scaling.make_fresh(held)
        self._pending.clear()
        self._forget()

    def _forget(self) -> None:
        """Drops what was derived from tensors that may have been replaced."""
        self._weight_cache.clear()
        self._pending.forget_tensors()
        self._calls.clear()

    # ---- delayed scaling's buffers ---------------------------------------------------------

    def _present_parameters(self) -> list[torch.Tensor]:
        """The layer's parameters. If torch's parametrizations took them away, those of the
        parametrizations."""
        own = [p for p in self._parameters.values() if p is not None]
        return own or list(self.parameters())

    def _device(self) -> torch.device:
        """The device of the layer's parameters; the CPU if they are on meta."""
        device = self._present_parameters()[0].device
        return torch.device("cpu") if device.type == "meta" else device

    def _has_scaling(self, rows: int, device: torch.device) -> bool:
        """Whether the buffers are there already, so that _make_scaling has nothing to do."""
        held = [self._buffers.get(name) for name in SLOTS]
        if any(buffer is None or buffer.device != device for buffer in held):
            return False
        if any(isinstance(buffer, Unread) for buffer in held):
            return False
        return min(scaling.rows_of(buffer) for buffer in held) >= rows

    def _make_scaling(self, rows: int) -> None:
        """Makes buffers with that many rows of history, where they are missing, are on meta, or
        have fewer rows. Existing values stay."""
        parameters = self._present_parameters()
        if not parameters:
            return  # the layer is being changed right now
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
                more = rows - scaling.rows_of(held)
                if more > 0:
                    self._buffers[name] = torch.nn.functional.pad(held, (0, 0, 0, more))
        self._pending.forget_tensors()

    def _need_scaling(self, recipe: str) -> None:
        """Makes sure, in eager code, that the layer has the buffers of a delayed recipe."""
        rows = _texts.history_rows(recipe)
        held = self._buffers.get("fp8_state")
        waits = any(isinstance(self._buffers.get(name), Unread) for name in SLOTS)
        short = held is None or scaling.rows_of(held) < rows
        if short or held.device != self._device() or waits:
            self._make_scaling(rows)

    @traced_as_constant
    def _need_scaling_in_graph(self, recipe: str) -> bool:
        """The same while code is traced, but for all layers. Otherwise compiled code that
        serves many layers would be traced again for each layer that lacks the buffers. A layer
        that does not use its buffers does not save them."""
        self._need_scaling(recipe)
        scaling.watch_optimizers()
        _make_scaling_everywhere(_texts.history_rows(recipe))
        return True

    def _saved_buffers(self) -> list[str]:
        """The names of buffers that belong in the state_dict: those of a prepared layer, or of
        one that used them."""
        names = [name for name in SLOTS if self._buffers.get(name) is not None]
        persistent = [n for n in names if n not in self._non_persistent_buffers_set]
        if persistent or not names:
            return persistent
        held = [self._buffers[name] for name in names]
        used = not all(state.is_meta or scaling.is_fresh(state) for state in held)
        return names if used else []

    # ---- moving and copying ----------------------------------------------------------------

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "LayerState":
        """Moves the state with the layer, but keeps its values and float32, whatever `fn` does
        to parameters (it may change their dtype, or leave memory uninitialized)."""
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
            self._make_scaling(max(scaling.rows_of(held) for held in state.values()))
            if parameters[0].is_shared() and not parameters[0].is_cuda:
                for name in state:
                    self._buffers[name].share_memory_()
        self._forget()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        registry.register(self)
        self._weight_cache.bind(self)
        self._step_watch.bind(self)
        self._pending.copied()
        region = current()
        if not (region.enabled or region.calibrating):
            self._pending.clear()
        elif self._pending.waits:  # a copy of a layer that recorded in this step
            step = region.step
            if reduction.group_for(self._pending.rule, step.group, self._tp_group):
                self._pending.clear()  # what it recorded counts in its next step
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
        """Loads. State is either what was saved or fresh: what a checkpoint lacks is reset. So
        a checkpoint of any recipe loads. TransformerEngine's ``_extra_state`` and the
        ``rounding_state`` of older versions are ignored. Scales and histories of older
        versions, which were buffers of their own, are loaded."""
        state_dict = restored_under(state_dict, prefix)
        named = {prefix + name: name for name in scaling.SAVED}
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
        """Loads delayed scaling's state: what was saved, the rest reset. On an error nothing
        changes."""
        try:
            with torch.no_grad():
                states = scaling.states_of(saved, prefix)
        except ValueError as error:
            error_msgs.append(str(error))
            return
        if states:
            self._make_scaling(max(scaling.rows_of(state) for state in states.values()))
        with torch.no_grad():
            for name in SLOTS:
                held = self._buffers.get(name)
                if held is None:
                    continue
                scaling.make_fresh(held)
                if name in states and not states[name].is_meta:
                    held[: states[name].shape[0]].copy_(states[name])
        self._pending.clear()


def _buffer(name: str) -> property:
    """A property for a buffer of delayed scaling. Reading it makes the buffers if there are
    none."""

    def read(layer: LayerState) -> torch.Tensor:
        if layer._buffers.get(name) is None:
            layer._make_scaling(scaling.DEFAULT_ROWS)
        return layer._buffers[name]

    def write(layer: LayerState, tensor: torch.Tensor) -> None:
        layer._make_scaling(scaling.DEFAULT_ROWS)
        layer._buffers[name] = tensor

    return property(read, write, doc=f"Delayed scaling's {name.removeprefix('fp8_')}.")


def _part(name: str, part: str) -> property:
    """A part of such a buffer: a view. Assigned to, it would be a tensor beside the state that
    calls use; torch.func.functional_call assigns, too."""
    is_scale = part.endswith("scale")

    def read(layer: LayerState) -> torch.Tensor:
        state = getattr(layer, name)
        return state[0] if is_scale else state[1:]

    def write(layer: LayerState, tensor: torch.Tensor) -> None:
        del tensor
        raise AttributeError(
            f"{layer._label()}: {part} is a view of {name}; write into it "
            f"(layer.{part}.copy_(...)), or give {name}, of which "
            f"{'row 0 is' if is_scale else 'the rows from 1 on are'} the {part}"
        )

    return property(read, write, doc=f"Delayed scaling's {part.removeprefix('fp8_')}, a view.")


for _name, _parts in scaling.PARTS.items():
    setattr(LayerState, _name, _buffer(_name))
    for _each in _parts:
        setattr(LayerState, _each, _part(_name, _each))
del _name, _parts, _each
