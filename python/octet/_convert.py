"""convert and unconvert: nn.Linear layers of a model become octet.Linear, and back."""

import warnings

from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import torch
from octet import _custom
from octet._conv1d import Conv1DLinear, conv1d_class
from octet._distribute import local_of
from octet._dtypes import HIGH_PRECISION
from octet._layer_swap import (
    converted,
    dequantized,
    replace_parameters,
    transposed,
    unconverted,
)
from octet._parameters import quantized_weight
from octet._progress import Progress
from octet._sharded import is_dtensor, is_sharded
from octet._where import Where, check, is_linear, layers_hint, selects
from octet.linear import SAVES, AnyLinear, Linear, checked_save
from octet.recipe import Recipe
from octet.tensor import QuantizedTensor

Parameter = torch.nn.Parameter
_TARGETS = {"convert": "octet.Linear", "unconvert": "nn.Linear"}


# ---- which layers ----------------------------------------------------------------------------


class _Model:
    """A model during convert: which layers are replaced, and which are left and why."""

    def __init__(self, model: torch.nn.Module, where: Where, verb: str) -> None:
        self.model, self.where, self.verb = model, where, verb
        self.left: dict[str, str] = {}
        modules = list(model.modules())
        # layers whose weight another module reads directly, without calling the layer
        self.read = {
            id(m.out_proj) for m in modules if isinstance(m, torch.nn.MultiheadAttention)
        }
        self.holders: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        for module in modules:
            for key, parameter in module._parameters.items():
                self.holders.setdefault(id(parameter), []).append((module, key))

    def chosen(self) -> list[tuple[str, torch.nn.Module]]:
        """The linear layers of any kind that ``where`` selects, each by its first name."""
        return [
            (name, module)
            for name, module in self.model.named_modules()
            if is_linear(module)
            if selects(self.where, name, module)
        ]

    def refuse(self, name: str, why: str, what: str = "") -> None:
        """Leaves a layer as it is; raises if the user chose the layer."""
        name = name or "the model"
        if self.where is not None or self.verb == "unconvert":
            what = what or f"cannot become an {_TARGETS[self.verb]}"
            raise ValueError(f"{self.verb}: {name} {what}: {why}; leave it out with where=")
        self.left[name] = why

    def warn(self) -> None:
        """Gives one warning for all layers that were left."""
        if self.left:
            lines = "".join(f"\n  {name}: {why}" for name, why in self.left.items())
            warnings.warn(f"{self.verb} left these layers as they are:{lines}", stacklevel=3)

    def shared_otherwise(self, weight: Parameter, among: set[torch.nn.Module]) -> str:
        """Another module that holds a weight of these layers, if there is one."""
        for module, key in self.holders.get(id(weight), []):
            if module not in among or key != "weight":
                return type(module).__name__
        return ""

    def replace(self, made: dict[torch.nn.Module, torch.nn.Module]) -> torch.nn.Module:
        """Puts new layers in place of old ones. Returns the model, which may itself be one of
        them."""
        for parent in list(self.model.modules()):
            for key, child in parent._modules.items():
                if child in made:
                    parent._modules[key] = made[child]
        return made.get(self.model, self.model)


def _refusal(model: _Model, module: torch.nn.Module, base: type) -> str:
    """Why a layer cannot become an octet.Linear; empty if it can."""
    if type(module).forward is not base.forward or "forward" in vars(module):
        return f"it is a {type(module).__name__} with a forward of its own"
    if vars(module).get("_compiled_call_impl") is not None:
        return "it is compiled by its compile(): convert it before"
    if id(module) in model.read:
        return "it is never called: nn.MultiheadAttention reads its weight"
    weight = module._parameters.get("weight")
    if weight is None or "bias" not in module._parameters:
        return "its weight or bias is not a parameter of it (it is parametrized)"
    if isinstance(weight, torch.nn.parameter.UninitializedParameter):
        return "its weight is not there yet (it is lazy): call the model once before"
    for key, parameter in module._parameters.items():
        if parameter is None:
            continue
        if parameter.dtype not in HIGH_PRECISION:
            return f"it is {parameter.dtype}, not float32, bfloat16 or float16"
        is_quantized = isinstance(parameter, QuantizedTensor)
        if not is_quantized and is_traceable_wrapper_subclass(parameter.data):
            kind = type(parameter.data).__name__
            return f"its {key} is a {kind}: convert it before that is made"
    has_hooks = weight._backward_hooks or weight._post_accumulate_grad_hooks
    if base is not torch.nn.Linear and has_hooks:
        return "it has hooks on its weight, whose gradient would come transposed"
    return ""


def _candidates(model: _Model) -> dict[torch.nn.Module, str]:
    """The layers to replace, by their first name."""
    found: dict[torch.nn.Module, str] = {}
    for name, module in model.chosen():
        if isinstance(module, AnyLinear):
            continue
        base = torch.nn.Linear if isinstance(module, torch.nn.Linear) else conv1d_class(module)
        why = _refusal(model, module, base)
        if why:
            model.refuse(name, why)
        else:
            found[module] = name
    conv1ds = {module for module in found if not isinstance(module, torch.nn.Linear)}
    for module in conv1ds:
        other = model.shared_otherwise(module._parameters["weight"], conv1ds)
        if other:
            model.refuse(found.pop(module), f"its weight, (in, out), is also that of a {other}")
    return found


# ---- the two ---------------------------------------------------------------------------------


def _weight_refusal(layer: Linear) -> str:
    """Why a layer's weight cannot be stored quantized; empty if it can."""
    if len(layer._parts) > 1:
        names = ", ".join(f"{prefix}weight" for prefix, _ in layer._parts)
        return f"parameters_split makes several, {names}"
    if layer._parameters.get(layer._parts[0][0] + "weight") is None:
        return "it is not a parameter of the layer (it is parametrized)"
    return ""


def _weights_to_quantize(
    model: _Model, found: dict[torch.nn.Module, str], done: dict[torch.nn.Module, str]
) -> list[tuple[torch.nn.Module, str]]:
    """The layers whose weights are to be quantized, with the weights' names. All or none."""
    layers = [(layer, "weight") for layer in found]
    for layer, name in done.items():
        why = _weight_refusal(layer)
        if why:
            model.refuse(name, f"its weight stays plain: {why}", "cannot be stored quantized")
        else:
            layers.append((layer, layer._parts[0][0] + "weight"))
    for layer, key in layers:
        weight = layer._parameters[key]
        name = found.get(layer, done.get(layer)) or "the model"
        if is_dtensor(weight) and is_sharded(layer._load_state_dict_post_hooks):
            raise ValueError(
                f"convert(weights=...): fully_shard has cut the weight of {name}; call convert "
                "before fully_shard"
            )
        if weight.is_meta and not isinstance(local_of(weight), QuantizedTensor):
            raise ValueError(
                f"convert(weights=...): {name} is on meta, where there is nothing to quantize; "
                "load its weights before (load_state_dict(..., assign=True), or to_empty and "
                "reset_parameters), or convert it without weights="
            )
    return layers


def _quantize_weights(model: torch.nn.Module, weights: list[Parameter], recipe: Recipe) -> None:
    """Puts quantized weights in place of these; a large model takes a while."""
    plain = [w for w in weights if not isinstance(local_of(w), QuantizedTensor)]
    progress = Progress("octet.convert: weights", len(set(plain)))

    def cast(weight: Parameter) -> Parameter:
        made = quantized_weight(weight, recipe)
        progress.step()
        return made

    try:
        replace_parameters(model, plain, cast)
    finally:
        progress.end()


def _check_saves(model: torch.nn.Module, save: str) -> None:
    """Raises if an octet layer of the model was made with another ``save``."""
    for name, layer in model.named_modules():
        if isinstance(layer, AnyLinear) and layer.save != save:
            raise ValueError(
                f"convert(save={save!r}): {name or 'the model'} is a layer of Octet's already, "
                f"with save={layer.save!r}; set its save, or leave out save"
            )


def _read_what_is_kept(model: torch.nn.Module) -> set[torch.nn.Module]:
    from octet import _fuse

    return _fuse.read_what_is_kept(model)


def _fused(model: torch.nn.Module, where: Where, save: str) -> dict[str, str]:
    """Fuses norms with the layers behind them. Returns the reasons why others were left."""
    from octet import _fuse  # imported late: it reads source code, and few users need it

    found = _fuse.find(model, lambda name, layer: selects(where, name, layer), save)
    if not (found.actions or found.left or found.is_done):
        chosen = "" if where is None else f" that where={where!r} chooses"
        raise ValueError(
            f"convert(fuse=True): {type(model).__name__} has nothing{chosen} that is known to "
            f"be fusable: decoder layers of {_fuse.FAMILIES}; leave out fuse, or use "
            "octet.LayerNormLinear and octet.LayerNormMLP in the model"
        )
    if found.left and where is not None:
        name, why = next(iter(found.left.items()))
        raise ValueError(f"convert(fuse=True): {name}: {why}; leave it out with where=")
    _fuse.fuse(model, found)
    return found.left


def convert(
    model: torch.nn.Module,
    where: Where = None,
    weights: Recipe | None = None,
    fuse: bool = False,
    save: str | None = None,
) -> torch.nn.Module:
    """Replaces the nn.Linear layers of a model, in place, by octet.Linear; returns the model.

    The new layers have the very parameters of the old ones (optimizers, tied weights and
    ``state_dict`` names stay), their hooks and attributes. ``where`` chooses: a pattern of
    qualified names or several (``"blocks.*.mlp.*"``), or a function of name and layer. A second
    call changes nothing.

    A layer that cannot become an octet.Linear (a ``forward`` of its own, a parametrized weight,
    a lazy layer that is not called yet, another dtype) stays as it is, and one warning names
    all of these; if ``where`` chose it, it is a ValueError.

    ``weights=recipe`` also quantizes the weights of these layers, and of octet.Linear layers
    that are there already, as ``quantized_model_init(recipe=recipe)`` would have. Each is a new
    parameter under its old name: make the optimizer afterwards. Tied weights stay tied.

    transformers' Conv1D (GPT-2) is converted, too. The new layer's weight is (out, in), a new
    parameter; its ``state_dict`` keeps Conv1D's layout, (in, out), so that checkpoints load
    either way. Only a quantized weight is saved as it is, as ``weight_t``.

    A module that reads the weight of a layer instead of calling it computes as before. So
    ``nn.MultiheadAttention`` does with its ``out_proj``, which cannot be converted, and in
    evaluation ``nn.TransformerEncoderLayer`` with all of its layers, which compute by the
    recipe in training; ``torch.backends.mha.set_fastpath_enabled(False)`` makes it call them.

    ``fuse=True`` also makes one layer of a norm and the linear layers that read it: in decoder
    layers of transformers' Llama, Qwen2, Qwen3, Mistral and GPT-2, the norm with q, k and v,
    and the norm with the whole MLP. Parameters, their names and the ``state_dict`` stay. A norm
    whose result somebody else may read is left, and a warning says why; see docs/prologues.md.

    ``save="memory"`` makes all new layers save less for backward. Of what ``fuse`` joins, an
    MLP's gate and up are then saved in 8 bits, which changes gradients a little. A layer behind
    the attention of these models saves its input itself, which the attention holds anyway, but
    under delayed scaling.

    >>> linear = torch.nn.Linear
    >>> model = torch.nn.Sequential(linear(8, 8), torch.nn.ReLU(), linear(8, 4))
    >>> octet.convert(model, where=lambda name, layer: layer.out_features > 4)
    Sequential(
      (0): Linear(8, 8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=4, bias=True)
    )
    """
    check("convert", model, where)
    if weights is not None:
        if not isinstance(weights, Recipe):
            raise TypeError(f"weights is {weights!r}; it is a recipe of octet.recipe, or None")
        _custom.stored_text(weights)  # raises if weights cannot be stored by this recipe
        if fuse:
            raise ValueError(
                "convert(fuse=True, weights=...): a fused layer joins plain weights, which are "
                "quantized as one at each call; leave out one of the two"
            )
    if save is not None:
        _check_saves(model, checked_save("convert", save))
    unfused = _fused(model, where, save or SAVES[0]) if fuse else {}
    look = _Model(model, where, "convert")
    found = _candidates(look)
    done = {module: name for name, module in look.chosen() if isinstance(module, AnyLinear)}
    if not found and not done and not look.left:
        chosen = "" if where is None else f" that where={where!r} chooses"
        raise ValueError(
            f"convert: there is no nn.Linear in {type(model).__name__}{chosen}"
            f"{layers_hint(model, where)}"
        )
    stored = [] if weights is None else _weights_to_quantize(look, found, done)
    made = {module: converted(module, name) for module, name in found.items()}
    turned = [m.weight for m in made.values() if isinstance(m, Conv1DLinear)]
    for layer in made.values():
        layer.save = save or SAVES[0]
    for module in _read_what_is_kept(model) if save == "memory" else ():
        if module in made:
            made[module]._input_is_kept = True
    model = look.replace(made)
    replace_parameters(model, turned, transposed)
    if weights is not None:
        held = [made.get(layer, layer)._parameters[key] for layer, key in stored]
        _quantize_weights(model, held, weights)
    look.left.update(unfused)
    look.warn()
    return model


def _is_linear_alone(layer: torch.nn.Module) -> bool:
    """Whether a layer is an octet.Linear without a norm or activation."""
    return isinstance(layer, Linear) or getattr(type(layer), "_is_linear_alone", False)


def _unconvert_refusal(layer: Linear) -> str:
    """Why an octet.Linear cannot become an nn.Linear; empty if it can."""
    if type(layer).forward is not Linear.forward or "forward" in vars(layer):
        return f"it is a {type(layer).__name__} with a forward of its own"
    if vars(layer).get("_compiled_call_impl") is not None:
        return "it is compiled by its compile(): unconvert it before"
    if len(layer._parts) > 1:
        names = ", ".join(f"{prefix}weight" for prefix, _ in layer._parts)
        return f"its weight is in parts, {names} (parameters_split)"
    if layer._parameters.get("weight") is None or "bias" not in layer._parameters:
        return "its weight or bias is not a parameter of it by that name"
    for option in ("return_bias", "fuse_wgrad_accumulation", "delay_wgrad_compute"):
        if getattr(layer, option):
            return f"it has {option}=True, which an nn.Linear does not do"
    return ""


def unconvert(model: torch.nn.Module, where: Where = None) -> torch.nn.Module:
    """Gives back, in place, the layers that ``convert`` replaced; returns the model.

    An octet.Linear that was made as one becomes an nn.Linear. Parameters, hooks, attributes and
    names stay; a quantized weight becomes a plain one, a new parameter, and so does that of a
    Conv1D. What delayed scaling has recorded is lost. ``where`` chooses as for ``convert``.
    What ``fuse=True`` joined is taken apart again, with the parameters as they are now.
    A layer that an nn.Linear cannot stand for (``parameters_split``, ``return_bias``,
    ``fuse_wgrad_accumulation``, ``delay_wgrad_compute``) is a ValueError.

    >>> model = octet.convert(torch.nn.Sequential(torch.nn.Linear(8, 4)))
    >>> octet.unconvert(model)
    Sequential(
      (0): Linear(in_features=8, out_features=4, bias=True)
    )
    """
    from octet import _fuse

    check("unconvert", model, where)
    has_fused = any(isinstance(m, AnyLinear) and _fuse.is_fused(m) for m in model.modules())
    if has_fused and where is not None:
        raise ValueError(
            "unconvert(where=...): layers of the model are fused, and are taken apart all at "
            "once; leave out where"
        )
    _fuse.unfuse(model)
    look = _Model(model, where, "unconvert")
    chosen = look.chosen()
    for name, module in chosen:
        if isinstance(module, AnyLinear) and not _is_linear_alone(module):
            look.refuse(
                name, f"it begins with {module._norm_or_act()}, which nn.Linear does not"
            )
    found = {module: name for name, module in chosen if _is_linear_alone(module)}
    conv1ds = {module for module in found if isinstance(module, Conv1DLinear)}
    for layer, name in found.items():
        why = _unconvert_refusal(layer)
        if not why and layer in conv1ds:
            other = look.shared_otherwise(layer.weight, conv1ds)
            why = f"its weight is also that of a {other}" if other else ""
        if why:
            look.refuse(name, why)
    if not chosen and not has_fused:
        words = "" if where is None else f" that where={where!r} chooses"
        raise ValueError(
            f"unconvert: there is no octet.Linear in {type(model).__name__}{words}"
            f"{layers_hint(model, where)}"
        )
    made = {layer: unconverted(layer) for layer in found}
    model = look.replace(made)
    held = [layer.weight for layer in made.values()]
    quantized = [weight for weight in held if isinstance(local_of(weight), QuantizedTensor)]
    replace_parameters(model, quantized, dequantized)
    turned = [made[layer].weight for layer in conv1ds]
    replace_parameters(model, turned, transposed)
    return model
