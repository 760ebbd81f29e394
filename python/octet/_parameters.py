"""A layer's weight and bias: how they are made, initialized, split and stored quantized."""

import math
from collections.abc import Callable
from typing import Any

import torch
from octet import _custom, _distribute, _signatures, _texts
from octet._dtypes import HIGH_PRECISION
from octet._sharded import is_dtensor
from octet.quantizers import Float8CurrentScalingQuantizer, from_text
from octet.recipe import Recipe
from octet.state.active import QUANTIZED_INIT, QuantizedInit
from octet.state.calls import StatefulCalls
from octet.tensor import QuantizedTensor

Split = tuple[str, ...] | list[str] | dict[str, int] | None


def _has_default_device() -> bool:
    """Whether torch has a default device, set by set_default_device or a context."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    return any(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def default_device(device: torch.device | str | None) -> torch.device | str | None:
    """The device for new parameters: a GPU if there is one, unless the user chose another."""
    if device is None and torch.cuda.is_available() and not _has_default_device():
        return "cuda"
    return device


def _shared_rows(
    parts: tuple[tuple[str, int], ...], ranks: int, label: str
) -> tuple[tuple[str, int], ...]:
    """The parts of a rank's share: each part is split over the ranks."""
    for prefix, rows in parts:
        if rows % ranks:
            raise ValueError(
                f"{label}: {prefix}weight has {rows} rows, which {ranks} ranks cannot share "
                f"equally; make them a multiple of {ranks}"
            )
    return tuple((prefix, rows // ranks) for prefix, rows in parts)


def _parts(split: Split, rows: int, label: str) -> tuple[tuple[str, int], ...]:
    """Prefix and rows of each parameter; a single one has no prefix."""
    if split is None:
        return (("", rows),)
    prefixes = [name.rstrip("_") + "_" for name in split]
    if len(set(prefixes)) < len(prefixes):
        raise ValueError(
            f"{label}: parameters_split={split!r} names a parameter twice; name each once"
        )
    if isinstance(split, dict):
        counts = list(split.values())
        if sum(counts) != rows or min(counts, default=0) < 0:
            raise ValueError(
                f"{label}: parameters_split={split!r} does not add up to {rows} rows"
            )
        return tuple(zip(prefixes, counts, strict=True))
    if not split or rows % len(split):
        raise ValueError(
            f"{label}: parameters_split={split!r}: {rows} rows do not split into {len(split)}; "
            "give a dict of the rows of each"
        )
    return tuple((prefix, rows // len(split)) for prefix in prefixes)


def stored_text(weight: torch.Tensor, recipe: Recipe) -> str:
    """The quantizer by which a recipe stores a weight. For delayed scaling it uses the weight's
    own amax."""
    where = _signatures.device_options(weight.device.type, weight.device.index)
    text = _signatures.stored_weight(_custom.stored_text(recipe), weight.dtype, where)
    if _texts.takes_scale(text):
        usages = dict(zip(("rowwise", "columnwise"), _texts.usages(text), strict=True))
        element = _texts.element_format(text)
        text = Float8CurrentScalingQuantizer(element, **usages).text
    return text


def quantized_weight(weight: torch.nn.Parameter, recipe: Recipe) -> torch.nn.Parameter:
    """A weight stored quantized by a recipe; unchanged if the recipe does not quantize
    weights."""
    text = stored_text(weight, recipe)
    if _texts.scheme(text) == "none":
        return weight
    return _distribute.changed(weight, from_text(text).quantize)


class Parameters(StatefulCalls):
    """The parameters of a linear layer."""

    in_features: int
    out_features: int
    fuse_wgrad_accumulation: bool
    init_method: Callable[[torch.Tensor], Any] | None
    _given_memory: frozenset[str] = frozenset()  # parameters that were on meta before
    _local: Any = None  # the local parts, while a call runs on DTensors
    parallel_mode: str | None
    tp_size: int

    def _draw_share(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        raise NotImplementedError

    def _mark_parameters(self) -> None:
        raise NotImplementedError

    def _make_vectors(self, dtype: torch.dtype, device: torch.device | str | None) -> None:
        """Makes the norm's parameters, if the layer begins with a norm."""

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Registers a parameter; raises if a quantized weight would be stored decoded."""
        if is_dtensor(param):
            held = self._parameters.get(name)
            error = _distribute.would_decode(self._label(), name, held, param)
            if error is not None:
                raise error
            _distribute.mark(param)
        held = self._parameters.get(name)
        super().register_parameter(name, param)
        if held is not None and held.is_meta and type(param) is torch.nn.Parameter:
            self._given_memory = self._given_memory | {name}

    def _forget(self) -> None:
        if self._given_memory:
            self._given_memory = frozenset()
        super()._forget()

    def _make_parameters(
        self,
        split: Split,
        bias: bool,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        """Makes and initializes parameters and state; quantized inside quantized_model_init."""
        dtype = dtype or torch.get_default_dtype()
        if dtype not in HIGH_PRECISION:
            raise ValueError(
                f"{self._label()}: params_dtype is {dtype}; it is float32, bfloat16 or float16"
            )
        device = default_device(device)
        times = self.tp_size if self.parallel_mode == "column" else 1
        parts = _parts(split, self.out_features * times, self._label())
        self._parts = _shared_rows(parts, times, self._label())
        if len(self._parts) > 1 and self.fuse_wgrad_accumulation:
            raise ValueError(
                f"{self._label()}: fuse_wgrad_accumulation needs one weight; leave out "
                f"parameters_split={split!r}"
            )
        self._make_vectors(dtype, device)
        for prefix, rows in self._parts:
            weight = torch.empty(rows, self.in_features, dtype=dtype, device=device)
            self.register_parameter(f"{prefix}weight", torch.nn.Parameter(weight))
            part = torch.empty(rows, dtype=dtype, device=device) if bias else None
            made = None if part is None else torch.nn.Parameter(part)
            self.register_parameter(f"{prefix}bias", made)
        self._init_state()
        self.reset_parameters()
        init = QUANTIZED_INIT.value
        if init is not None and init.enabled:
            self._quantize_weight(init)
        self._mark_parameters()

    def _shape(self) -> tuple[int, int]:
        """The shape of the weight in a call."""
        if self._local is not None:
            return self._local.weight.shape
        return self.out_features, self.in_features

    def _weight_names(self) -> tuple[str, ...]:
        return tuple(f"{prefix}weight" for prefix, _ in self._parts)

    def _whole(self, kind: str) -> torch.Tensor | None:
        """The weight or the bias, as one tensor."""
        if self._local is not None:
            return getattr(self._local, kind)
        if len(self._parts) == 1:
            # Read from the dictionary, which is faster; with torch's parametrizations it is not
            # there.
            found = self._parameters.get(kind)
            return getattr(self, self._parts[0][0] + kind) if found is None else found
        parts = [getattr(self, prefix + kind) for prefix, _ in self._parts]
        if parts[0] is None:
            return None
        for part, (prefix, _) in zip(parts, self._parts, strict=True):
            if part.device != parts[0].device:
                first = self._parts[0][0] + kind
                raise ValueError(
                    f"{self._label()}: {prefix}{kind} is on {part.device}, {first} on "
                    f"{parts[0].device}; they make one product: move them to one device"
                )
        return torch.cat(parts)

    def _quantize_weight(self, init: QuantizedInit) -> None:
        """Stores the weight quantized."""
        if len(self._parts) > 1:
            names = [f"{prefix}weight" for prefix, _ in self._parts]
            raise ValueError(
                f"{self._label()}: quantized_model_init makes one quantized weight, but "
                f"parameters_split makes {', '.join(names)}; leave out one of the two"
            )
        (name,) = [f"{prefix}weight" for prefix, _ in self._parts]
        plain = getattr(self, name)
        weight = quantized_weight(plain, init.recipe)
        setattr(self, name, weight)
        if init.preserve and weight is not plain:
            weight._high_precision_init_val = plain.detach().cpu()

    def reset_parameters(self) -> None:
        """Initializes weight and bias again and resets all state."""
        with torch.no_grad():
            weight, bias = self._whole("weight"), self._whole("bias")
            weight = weight.dequantize() if isinstance(weight, QuantizedTensor) else weight
            if self.tp_size > 1:
                self._draw_share(weight, bias)
            else:
                self._draw_parameters(weight, bias, self.in_features)
                self._spread("weight", weight)
                self._spread("bias", bias)
        self.reset_state()

    def _reset_vector(self, name: str) -> None:
        """Sets a parameter of a norm to its first values."""
        raise NotImplementedError

    def _reset_some(self, names: set[str]) -> None:
        """Draws some of the parameters again; the others stay."""
        if self.tp_size > 1:
            raise ValueError(
                f"{self._label()}: {', '.join(sorted(names))} were not loaded, and ranks draw "
                "the parameters of a layer together; call its reset_parameters() on all ranks, "
                "or load them"
            )
        shape = self._shape()
        for kind, sizes in (("weight", shape), ("bias", shape[:1])):
            if not any(prefix + kind in names for prefix, _ in self._parts):
                continue
            like = self._parameters[self._parts[0][0] + kind]
            drawn = torch.empty(sizes, dtype=like.dtype, device=like.device)
            drawn_as = (drawn, None) if kind == "weight" else (None, drawn)
            self._draw_parameters(*drawn_as, self.in_features)
            at = 0
            for prefix, rows in self._parts:
                if prefix + kind in names:
                    self._parameters[prefix + kind].copy_(drawn[at : at + rows])
                at += rows
        own = {prefix + kind for prefix, _ in self._parts for kind in ("weight", "bias")}
        for name in names - own:
            self._reset_vector(name)

    def _draw_parameters(
        self, weight: torch.Tensor | None, bias: torch.Tensor | None, in_features: int
    ) -> None:
        """Initializes a weight, a bias, or both, of a layer with this many inputs."""
        bound = 1 / math.sqrt(in_features) if in_features else 0.0
        if weight is not None and self.init_method is not None:
            self.init_method(weight)
        elif weight is not None and weight.shape[1] == in_features:
            torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
        elif weight is not None:
            torch.nn.init.uniform_(weight, -bound, bound)
        if bias is not None:
            torch.nn.init.uniform_(bias, -bound, bound)

    def _spread(self, kind: str, whole: torch.Tensor | None) -> None:
        """Copies the whole into its parts. A single plain part is the whole itself."""
        at = 0
        for prefix, rows in self._parts:
            part = getattr(self, prefix + kind)
            if whole is not None and part is not whole:
                part.copy_(whole[at : at + rows])
            at += rows
