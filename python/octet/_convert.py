"""convert: every nn.Linear of a model becomes an octet.Linear of the same parameters."""

import fnmatch
from collections.abc import Callable, Sequence

import torch
from octet._dtypes import HIGH_PRECISION
from octet.state.active import QUANTIZED_INIT
from octet.linear import Linear

Where = str | Sequence[str] | Callable[[str, torch.nn.Module], bool] | None


def _selects(where: Where, name: str, module: torch.nn.Module) -> bool:
    if where is None:
        return True
    if callable(where):
        return bool(where(name, module))
    patterns = [where] if isinstance(where, str) else where
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _refusal(module: torch.nn.Linear) -> str:
    """Why a layer cannot become an octet.Linear; empty where it can."""
    if type(module).forward is not torch.nn.Linear.forward:
        return f"it is a {type(module).__name__} with a forward of its own"
    weight = module._parameters.get("weight")
    if weight is None or "bias" not in module._parameters:
        return "its weight or bias is not a parameter of it (it is parametrized)"
    if isinstance(weight, torch.nn.parameter.UninitializedParameter):
        return "its weight is not there yet: call the model once before"
    for parameter in module._parameters.values():
        if parameter is not None and parameter.dtype not in HIGH_PRECISION:
            return f"it is {parameter.dtype}, not float32, bfloat16 or float16"
    return ""


def _converted(module: torch.nn.Linear, name: str) -> Linear:
    """An octet.Linear with the parameters, hooks and attributes of a torch one."""
    weight, init = module.weight, QUANTIZED_INIT.value
    QUANTIZED_INIT.value = (
        None  # the parameters are there: nothing is made that could be quantized
    )
    try:
        layer = Linear(
            module.in_features,
            module.out_features,
            bias=module.bias is not None,
            params_dtype=weight.dtype,
            device="meta",
            name=name or None,
        )
    finally:
        QUANTIZED_INIT.value = init
    layer._parameters.update(module._parameters)
    for key, value in vars(module).items():
        if "_hooks" in key or key not in vars(layer):
            vars(layer)[key] = value
    return layer.train(module.training)


def _candidates(model: torch.nn.Module, where: Where) -> dict[torch.nn.Linear, str]:
    """The layers to replace, by their first name; one that cannot be is an error."""
    found: dict[torch.nn.Linear, str] = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or isinstance(module, Linear):
            continue
        if not _selects(where, name, module):
            continue
        refusal = _refusal(module)
        if refusal and where is None and type(module).forward is not torch.nn.Linear.forward:
            continue
        if refusal:
            raise ValueError(
                f"convert: {name or 'the model'} cannot become an octet.Linear: {refusal}; "
                "leave it out with where="
            )
        found[module] = name
    return found


def convert(model: torch.nn.Module, where: Where = None) -> torch.nn.Module:
    """Replaces the nn.Linear layers of a model, in place, by octet.Linear; returns the model.

    The new layers have the very parameters of the old ones (optimizers, tied weights and
    ``state_dict`` names stay), their hooks and attributes. ``where`` chooses: a pattern of
    qualified names or several (``"blocks.*.mlp.*"``), or a function of name and layer. A
    subclass with a ``forward`` of its own stays as it is. A second call changes nothing.

    A module that reads the weight of such a layer instead of calling it computes as before:
    ``nn.MultiheadAttention`` its ``out_proj``, ``nn.TransformerEncoderLayer`` in evaluation all
    of its layers, unless ``torch.backends.mha.set_fastpath_enabled(False)``.

    >>> linear = torch.nn.Linear
    >>> model = torch.nn.Sequential(linear(8, 8), torch.nn.ReLU(), linear(8, 4))
    >>> octet.convert(model, where=lambda name, layer: layer.out_features > 4)
    Sequential(
      (0): Linear(8, 8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=4, bias=True)
    )
    """
    found = _candidates(model, where)
    done = [
        name
        for name, module in model.named_modules()
        if isinstance(module, Linear) and _selects(where, name, module)
    ]
    if not found and not done:
        chosen = "" if where is None else f" that where={where!r} chooses"
        raise ValueError(f"convert: there is no nn.Linear in {type(model).__name__}{chosen}")
    made = {module: _converted(module, name) for module, name in found.items()}
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child in made:
                parent._modules[key] = made[child]
    return made.get(model, model)
