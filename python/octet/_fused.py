"""The modules that ``convert(fuse=True)`` puts in place of norms and the layers behind them.

The model keeps its module names. In place of a norm or a linear layer stands a module that
holds the same parameters under the same names, and lends them to the fused layer that
multiplies. So ``state_dict``, optimizers and tied weights stay as they were.
"""

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.compiler import is_dynamo_compiling

import torch
from octet._constant import traced_as_constant
from octet._conv1d import Conv1DState
from octet._fuse_group import Group
from octet._lent import ActivatedLinear, LentLinear
from octet._sharded import is_dtensor
from octet.linear import AnyLinear
from octet.norm_linear import LayerNormLinear
from octet.state.scaling import SLOTS, Unread, rows_of

Lent = list[tuple[Any, dict[str, str]]]  # a fused layer, and {name here: name there}


class _Part(torch.nn.Module):
    """A module that does its part of a fused layer's work, and computes nothing by itself."""

    def settle(self, group: Group, turns: "Turns | None" = None) -> None:
        """Says in which decoder layer all the parts are, once it is made."""
        home = group.decoder, group.name or type(group.decoder).__name__
        self.__dict__["home"], self.__dict__["turns"] = home, turns
        self.__dict__["own"] = frozenset(vars(self))

    def _begin_turn(self) -> None:
        """This part has run; another one is to take what it has made."""
        if is_dynamo_compiling():
            self._trace_turn()
        else:
            self.__dict__["turns"].begin()

    @traced_as_constant
    def _trace_turn(self) -> bool:
        self.__dict__["turns"].trace()
        return True

    def _end_turn(self) -> None:
        """This part takes what another one has made."""
        if not is_dynamo_compiling():
            self.__dict__["turns"].end(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Part":
        """A copy, together with all the parts: parameters of a single one would be read by
        nobody, or saved by nobody."""
        home = self.__dict__.get("home")
        if home is not None and id(home[0]) not in memo:
            raise ValueError(
                f"{_name_of(self)} is fused with other layers there and cannot be copied alone "
                f"(PEFT's modules_to_save does); copy {home[1]} as a whole, or call "
                "octet.unconvert(model) first"
            )
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__setstate__(copy.deepcopy(self.__dict__, memo))
        return made

    def _hand_back(self, was: torch.nn.Module) -> None:
        """Gives the module that was here what users have added to this one: hooks (the very
        dictionaries, so that their handles remove them) and attributes."""
        own = self.__dict__.get("own", frozenset()) | {"own", "_watch"}
        for key, value in vars(self).items():
            if key not in own or ("_hook" in key and value):
                vars(was)[key] = value


def _name_of(part: _Part) -> str:
    """A part in words."""
    was = part.__dict__.get("was", (part,))[0]
    return f"the {type(was).__name__} of {part.__dict__['home'][1]}"


class Turns:
    """Calls of one part of a fused layer that wait for the call of the next.

    Parts compute what the modules that were there did only together: one that is called alone
    is refused. Compiled code does not count."""

    def __init__(self) -> None:
        self._waiting: deque[None] = deque(maxlen=64)
        self._is_traced = False

    def begin(self) -> None:
        """The first part has run."""
        self._waiting.append(None)

    def end(self, part: _Part) -> None:
        """The last part runs."""
        try:
            self._waiting.pop()
        except IndexError:
            if not self._is_traced:
                raise _alone(part) from None

    def trace(self) -> None:
        """Compiled code runs the first part, and perhaps eager code the last."""
        self._is_traced = True


def _alone(part: _Part) -> RuntimeError:
    return RuntimeError(
        f"{_name_of(part)} is fused with other layers there and computes nothing alone; call "
        f"{part.__dict__['home'][1]} as a whole, or call octet.unconvert(model) first"
    )


class Holder(_Part):
    """Stands in place of a module: holds its parameters and lends them to a fused layer."""

    # the original module without parameters; a tuple, so that it is no submodule
    was: tuple[torch.nn.Module, ...]

    def __init__(self, was: torch.nn.Module) -> None:
        super().__init__()
        self.__dict__["was"] = (was,)
        self.__dict__["lent"] = []
        self._parameters.update(was._parameters)
        was._parameters.update(dict.fromkeys(was._parameters))
        self.training = was.training

    def lend(self, layer: "_Borrower", names: dict[str, str]) -> None:
        """Lends parameters to a fused layer. `names` maps their names here to the layer's
        names."""
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
        """The original module, with the parameters as they are now."""
        (was,) = self.__dict__["was"]
        was._parameters.update(self._parameters)
        self._hand_back(was)
        if isinstance(was, AnyLinear):
            was._forget()
        return was.train(self.training)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Registers a parameter, also in the fused layers."""
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


class _Borrower(_Part, AnyLinear):
    """A fused layer that uses parameters of holders."""

    def _took(self) -> None:
        """Called after parameters changed, perhaps to another device: state follows them."""
        held = [p for p in self._parameters.values() if p is not None]
        states = [self._buffers.get(name) for name in SLOTS]
        rows = [rows_of(state) for state in states if state is not None]
        # Those that nobody has read since they were made on meta stay so until the first call:
        # a loader may be at work, and fill memory of its own for what its checkpoint lacks.
        waits = any(isinstance(state, Unread) for state in states)
        if rows and held and not held[0].is_meta and not waits:
            self._make_scaling(max(rows))
        self._forget()

    @traced_as_constant
    def _check_lent(self) -> bool:
        """Makes sure that the layer multiplies by the parameters that the holders hold."""
        for holder in self.__dict__["holders"]:
            for layer, names in holder.__dict__["lent"]:
                if layer is not self:
                    continue
                for own, theirs in names.items():
                    if own not in holder._parameters:
                        raise NotImplementedError(
                            f"{_name_of(holder)} is fused with other layers there, and its "
                            f"{own} is not a parameter any more (pruned or parametrized); do "
                            "that before convert(fuse=True), which then leaves the layer, or "
                            "call octet.unconvert(model) first"
                        )
                    held = holder._parameters[own]
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

    def _check(self) -> None:
        """Runs _check_lent. Adds a guard to compiled code: the layer and its holders still have
        the same parameters. Otherwise the code is traced again."""
        self._check_lent()
        if not is_dynamo_compiling():
            return
        for holder in self.__dict__["holders"]:
            for layer, names in holder.__dict__["lent"]:
                if layer is self:
                    for own, theirs in names.items():
                        if holder._parameters[own] is not self._parameters[theirs]:
                            raise RuntimeError(
                                f"{self._label()}: {theirs} changed while code was traced"
                            )


class _Borrowing(_Borrower, LentLinear):
    """A fused layer all of whose parameters belong to holders."""

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "_Borrowing":
        """Skips the parameters: the holders move them, and state follows."""
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
        self._check()
        return super().forward(*args, **kwargs)


class ActivatedProjection(_Borrowing, ActivatedLinear):
    """An activation and the linear layer that reads it."""

    _public_name = "LayerNormMLP.fc2"

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """See octet.Linear."""
        self._check()
        return super().forward(*args, **kwargs)


_NORM = ("layer_norm_weight", "layer_norm_bias")


class _WasConv1D(_Part, Conv1DState):
    """A fused layer in place of a Conv1D, with its parameters."""

    def restored(self) -> torch.nn.Module:
        """The Conv1D; its weight is still (out, in)."""
        (was,) = self.__dict__["was"]
        was._parameters.update({n: self._parameters[n] for n in was._parameters})
        self._hand_back(was)
        return was.train(self.training)


class NormedConv1D(_WasConv1D, _Borrower, LayerNormLinear):
    """A norm, whose parameters a holder has, and the layer that reads it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """See LayerNormLinear."""
        self._end_turn()
        self._check()
        return super().forward(*args, **kwargs)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "NormedConv1D":
        """Skips the norm's parameters: the holder moves them."""
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


# ---- modules in place of others -------------------------------------------------------------


class FusedNorm(Holder):
    """In place of a norm: computes the norm and everything made from its result."""

    def __init__(self, was: torch.nn.Module, *layers: AnyLinear) -> None:
        super().__init__(was)
        self.linear = layers[0]
        self.then = layers[1] if len(layers) > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All projections of norm(x) side by side, or the whole MLP."""
        y = self.linear(x)
        if self.then is None:
            return y
        y = self.then(y)
        self._begin_turn()
        return y

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
    """In place of a linear layer: takes its columns of the fused layer's output."""

    def __init__(self, was: torch.nn.Module, start: int, width: int) -> None:
        super().__init__(was)
        self.in_features, self.out_features = was.in_features, was.out_features
        self.start, self.width = start, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This layer's columns."""
        if x.shape[-1] != self.width:
            raise _alone(self)
        return x[..., self.start : self.start + self.out_features]


class Passing(Holder):
    """In place of a module whose work the fused layer has done or will do."""

    def __init__(self, was: torch.nn.Module, **children: torch.nn.Module) -> None:
        super().__init__(was)
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input."""
        return x

    def restored(self) -> torch.nn.Module:
        """The original module, with its original children."""
        was = super().restored()
        for name, child in self._modules.items():
            was._modules[name] = child.restored() if isinstance(child, Holder) else child
        return was


class PassingBefore(Passing):
    """In the place of a norm that the layer behind it computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What it is given."""
        self._begin_turn()
        return x


class PassingAfter(Passing):
    """In the place of an MLP that the norm before it has computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What it is given."""
        self._end_turn()
        return x


class Absorbed(Holder):
    """In the place of a layer that nobody calls any more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Refused."""
        del x
        raise _alone(self)
