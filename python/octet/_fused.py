"""What ``convert(fuse=True)`` puts in the place of norms and the layers behind them.

A model keeps its modules' names: where a norm or a linear layer was stands a module that holds
the very parameters, under their names, and lends them to the layer that multiplies. So
``state_dict``, optimizers and tied weights stay as they were.
"""

from collections.abc import Callable
from typing import Any

import torch
from octet._constant import traced_as_constant
from octet._conv1d import Conv1DState
from octet._lent import ActivatedLinear, LentLinear
from octet._sharded import is_dtensor
from octet.linear import AnyLinear
from octet.norm_linear import LayerNormLinear
from octet.state import scaling
from octet.state.scaling import SLOTS

Lent = list[tuple[Any, dict[str, str]]]  # to which fused layer, and under which names


class Holder(torch.nn.Module):
    """Stands where a module was: holds its parameters and lends them to a fused layer."""

    was: tuple[torch.nn.Module, ...]  # that module, apart from its parameters; hidden

    def __init__(self, was: torch.nn.Module) -> None:
        super().__init__()
        self.__dict__["was"] = (was,)
        self.__dict__["lent"] = []
        self._parameters.update(was._parameters)
        was._parameters.update(dict.fromkeys(was._parameters))
        self.training = was.training

    def lend(self, layer: "_Borrower", names: dict[str, str]) -> None:
        """Lends parameters, by their names here, to a layer, by its names for them."""
        lent: Lent = self.__dict__["lent"]
        lent.append((layer, names))
        layer.__dict__.setdefault("holders", []).append(self)
        self._hand_over()

    def _hand_over(self) -> None:
        for layer, names in self.__dict__["lent"]:
            for own, theirs in names.items():
                layer._parameters[theirs] = self._parameters.get(own)
            layer._took()

    def restored(self) -> torch.nn.Module:
        """The module that was here, with the parameters as they are now."""
        (was,) = self.__dict__["was"]
        was._parameters.update(self._parameters)
        if isinstance(was, AnyLinear):
            was._forget()
        return was.train(self.training)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """As a module does; the fused layer gets it, too."""
        super().register_parameter(name, param)
        if "lent" in self.__dict__:
            self._hand_over()

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "Holder":
        super()._apply(fn, recurse)
        self._hand_over()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], *args: Any) -> None:  # noqa: ANN401
        super()._load_from_state_dict(state_dict, *args)
        self._hand_over()

    def extra_repr(self) -> str:
        """What print shows."""
        (was,) = self.__dict__["was"]
        return f"of {type(was).__name__}"


class _Borrower(AnyLinear):
    """A fused layer: parameters of it are holders'."""

    def _took(self) -> None:
        """After parameters have come, perhaps on another device: state follows them."""
        held = [p for p in self._parameters.values() if p is not None]
        rows = [self._buffers[n].shape[0] for n in SLOTS if self._has_history(n)]
        if rows and held and not held[0].is_meta:
            self._make_scaling(max(rows))
        self._forget()

    def _has_history(self, name: str) -> bool:
        return scaling.is_history(name) and self._buffers.get(name) is not None

    @traced_as_constant
    def _check_lent(self) -> bool:
        """What is multiplied by is what the holders hold."""
        for holder in self.__dict__["holders"]:
            for layer, names in holder.__dict__["lent"]:
                if layer is not self:
                    continue
                for own, theirs in names.items():
                    held = holder._parameters.get(own)
                    if is_dtensor(held):
                        raise ValueError(
                            f"{self._label()}: {theirs} is a DTensor: the layers that were "
                            "fused are to be sharded together (fully_shard of the whole "
                            "decoder layer), and parallelize_module is not for them; "
                            "octet.unconvert takes them apart"
                        )
                    if held is not self._parameters.get(theirs):
                        holder._hand_over()
        return True


class _Borrowing(_Borrower, LentLinear):
    """A fused layer all of whose parameters are holders'."""

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "_Borrowing":
        """Holders move the parameters; state follows those."""
        names = list(self._parameters)
        self._parameters.clear()
        try:
            super()._apply(fn, recurse)
        finally:
            self._parameters.update(dict.fromkeys(names))
            for holder in self.__dict__["holders"]:
                holder._hand_over()
        return self


class NormedProjections(_Borrowing, LayerNormLinear):
    """A norm and the linear layers that read it, as one product."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """See LayerNormLinear."""
        self._check_lent()
        return super().forward(*args, **kwargs)


class ActivatedProjection(_Borrowing, ActivatedLinear):
    """An activation and the linear layer that reads it."""

    _public_name = "LayerNormMLP.fc2"

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """See octet.Linear."""
        self._check_lent()
        return super().forward(*args, **kwargs)


_NORM = ("layer_norm_weight", "layer_norm_bias")


class _WasConv1D(Conv1DState):
    """A fused layer in the place of a Conv1D, with its parameters."""

    def restored(self) -> torch.nn.Module:
        """The Conv1D, with the weight still as (out, in)."""
        (was,) = self.__dict__["was"]
        was._parameters.update({n: self._parameters[n] for n in was._parameters})
        return was.train(self.training)


class NormedConv1D(_WasConv1D, _Borrower, LayerNormLinear):
    """A norm, which a holder has, and the layer that reads it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """See LayerNormLinear."""
        self._check_lent()
        return super().forward(*args, **kwargs)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "NormedConv1D":
        """The holder moves the norm's parameters."""
        held = dict(self._parameters)
        for name in _NORM:
            self._parameters.pop(name, None)
        try:
            super()._apply(fn, recurse)
        finally:
            moved = dict(self._parameters)
            self._parameters.clear()
            self._parameters.update({name: moved.get(name) for name in held})
            for holder in self.__dict__["holders"]:
                holder._hand_over()
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in _NORM:
            destination.pop(prefix + name, None)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        *args: Any,  # noqa: ANN401
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        missing: list[str] = args[2]
        missing[:] = [key for key in missing if key.removeprefix(prefix) not in _NORM]


class ActivatedConv1D(_WasConv1D, ActivatedLinear):
    """An activation and the layer that reads it."""

    _public_name = "LayerNormMLP.fc2"


# ---- in the places of modules ----------------------------------------------------------------


class FusedNorm(Holder):
    """In the place of a norm: the norm and all that was made of its result alone."""

    def __init__(self, was: torch.nn.Module, *layers: AnyLinear) -> None:
        super().__init__(was)
        self.linear = layers[0]
        self.then = layers[1] if len(layers) > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The projections of norm(x) side by side, or the whole MLP."""
        y = self.linear(x)
        return y if self.then is None else self.then(y)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        *args: Any,  # noqa: ANN401
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        for name in ("linear", "then"):
            layer = getattr(self, name)
            if layer is not None:
                brings = prefix + "weight" in state_dict
                layer._load_state(state_dict, f"{prefix}{name}.", brings, args[-1])


class Columns(Holder):
    """In the place of a linear layer: takes its columns of what the fused layer has made."""

    def __init__(self, was: torch.nn.Module, start: int) -> None:
        super().__init__(was)
        self.in_features, self.out_features = was.in_features, was.out_features
        self.start = start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Its columns."""
        return x[..., self.start : self.start + self.out_features]


class Passing(Holder):
    """In the place of a module whose work the fused layer has done."""

    def __init__(self, was: torch.nn.Module, **children: torch.nn.Module) -> None:
        super().__init__(was)
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What it is given."""
        return x

    def restored(self) -> torch.nn.Module:
        """The module that was here, with its children's."""
        was = super().restored()
        for name, child in self._modules.items():
            was._modules[name] = child.restored() if isinstance(child, Holder) else child
        return was
