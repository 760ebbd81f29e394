"""Replaces one layer by another: members, hooks, attributes, parameters."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from octet._conv1d import Conv1DLinear
from octet._distribute import changed
from octet._flat import restore_before_loading
from octet.linear import AnyLinear, Linear
from octet.state.active import QUANTIZED_INIT
from octet.state.scaling import SLOTS
from octet.tensor import QuantizedTensor

Parameter = torch.nn.Parameter


class Origin(NamedTuple):
    """What a converted layer was before."""

    cls: type
    hidden: dict[str, Any]  # its attributes whose names octet.Linear uses itself


def _blank(cls: type, in_features: int, out_features: int, dtype: torch.dtype) -> Any:  # noqa: ANN401
    """An octet layer on meta; ignores quantized_model_init."""
    init, QUANTIZED_INIT.value = QUANTIZED_INIT.value, None
    try:
        return cls(in_features, out_features, params_dtype=dtype, device="meta")
    finally:
        QUANTIZED_INIT.value = init


def _take_hooks(to: torch.nn.Module, module: torch.nn.Module) -> None:
    """Moves the hooks of a module. It moves the dictionaries themselves, so that their handles
    still remove them."""
    for key, value in vars(module).items():
        if "_hook" in key:
            vars(to)[key] = value
    for hook in to._load_state_dict_pre_hooks.values():
        if getattr(hook, "with_module", False):  # the wrapper passes the module to its hook
            hook.module = weakref.ref(to)


def _take_members(to: torch.nn.Module, module: torch.nn.Module, but: set[str]) -> None:
    """Copies the parameters, buffers and submodules of a module."""
    to._parameters.clear()
    to._parameters.update(module._parameters)
    to._buffers.update({k: v for k, v in module._buffers.items() if k not in but})
    to._non_persistent_buffers_set.update(module._non_persistent_buffers_set - but)
    to._modules.update(module._modules)


def converted(module: torch.nn.Module, name: str) -> Linear:
    """An octet.Linear with the parameters, hooks and attributes of another layer."""
    weight = module._parameters["weight"]
    if isinstance(module, torch.nn.Linear):
        layer = _blank(Linear, module.in_features, module.out_features, weight.dtype)
        usual = vars(torch.nn.Module()).keys() | {"in_features", "out_features"}
    else:
        layer = _blank(Conv1DLinear, *weight.shape, weight.dtype)
        usual = vars(torch.nn.Module()).keys()
    layer.name = name or None
    _take_members(layer, module, set())
    hidden: dict[str, Any] = {}
    for key, value in vars(module).items():
        if key not in vars(layer):
            vars(layer)[key] = value
        elif key not in usual and "_hook" not in key:
            hidden[key] = value
    _take_hooks(layer, module)
    layer._origin = Origin(type(module), hidden)
    return layer.train(module.training)


def unconverted(layer: Linear) -> torch.nn.Module:
    """The layer that an octet.Linear was before, or an nn.Linear."""
    cls, hidden = getattr(layer, "_origin", Origin(torch.nn.Linear, {}))
    blank = _blank(Linear, 1, 1, torch.float32)
    made = cls.__new__(cls)
    torch.nn.Module.__init__(made)
    _take_members(made, layer, set(SLOTS))
    own = vars(blank).keys() | {"_origin"}
    vars(made).update({k: v for k, v in vars(layer).items() if k not in own})
    vars(made).update(hidden)
    _take_hooks(made, layer)
    if isinstance(made, torch.nn.Linear):
        made.in_features, made.out_features = layer.in_features, layer.out_features
    return made.train(layer.training)


# ---- parameters that are replaced ------------------------------------------------------------


def _carry(new: Parameter, old: Parameter) -> Parameter:
    """Copies user attributes (main_grad, ...), hooks and the gradient to a new parameter."""
    own = vars(new).keys()
    if isinstance(old, QuantizedTensor):
        own = own | vars(QuantizedTensor(old.buffers(), old._text, old.dtype, old.shape)).keys()
        own = own | {"_is_param", "_high_precision_init_val"}
    vars(new).update({key: value for key, value in vars(old).items() if key not in own})
    if old.grad is not None:
        new.grad = old.grad if old.grad.shape == new.shape else old.grad.t().contiguous()
    if old._backward_hooks is not None:
        new._backward_hooks = old._backward_hooks
    if old._post_accumulate_grad_hooks is not None:
        new._post_accumulate_grad_hooks = old._post_accumulate_grad_hooks
    return new


def replace_parameters(
    model: torch.nn.Module,
    weights: Sequence[Parameter],
    change: Callable[[Parameter], Parameter],
) -> None:
    """Replaces parameters everywhere in the model, so that tied parameters stay tied."""
    made = {weight: change(weight) for weight in dict.fromkeys(weights)}
    for old, new in made.items():
        if new is not old:
            _carry(new, old)
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter in made:
                module._parameters[key] = made[parameter]
                if isinstance(made[parameter], QuantizedTensor) and not isinstance(
                    module, AnyLinear
                ):  # octet layers load flat state dicts, a tied embedding needs the hook
                    module.register_load_state_dict_pre_hook(restore_before_loading)
        if isinstance(module, AnyLinear):
            module._forget()


def transposed(weight: Parameter) -> Parameter:
    return Parameter(weight.detach().t().contiguous(), weight.requires_grad)


def dequantized(weight: Parameter) -> Parameter:
    return changed(weight, QuantizedTensor.dequantize)
