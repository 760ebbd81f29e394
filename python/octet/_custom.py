"""Quantizers that a user wrote: their ``quantize`` runs first, and the ops take its result.

Input and weight are quantized before the layer's autograd function, grad_output inside its
backward. The gradient passes straight through both. A quantizer returns a QuantizedTensor or a
plain tensor; that is multiplied and saved for backward.
"""

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from torch.compiler import is_dynamo_compiling

import torch
from octet import _function, _ops, _sharded, _signatures
from octet._function import LinearFunction
from octet._signatures import Options
from octet.quantizers import Quantizer
from octet.recipe import CustomRecipe, Recipe
from octet.state.recompute import NO_RECIPE
from octet.tensor import QuantizedTensor, straight_through

if TYPE_CHECKING:
    from octet.linear import Linear


class Own(NamedTuple):
    """The user's quantizers, by role. None if the role has a quantizer of Octet's, or none."""

    recipe: str  # recipe text for the roles that the C core quantizes
    stored: Quantizer | None  # the weight's quantizer, the user's or Octet's
    input: Quantizer | None
    weight: Quantizer | None
    output: Quantizer | None
    grad_output: Quantizer | None
    grad_input: Quantizer | None
    grad_weight: Quantizer | None


class Asked(NamedTuple):
    """The arguments of a layer's forward except its input."""

    is_first_microbatch: bool | None
    fp8_output: bool
    fp8_grad: bool


def own_of(recipe: CustomRecipe, name: str | None) -> Own:
    """Separates the user's quantizers of a recipe from Octet's own."""
    answers = recipe.answers("linear", name or "")
    own = {role: q for role, q in answers.items() if not q._is_core}
    if own and recipe.backward_override is not None:
        role = next(iter(own))
        raise ValueError(
            f"{recipe!r}: backward_override={recipe.backward_override!r} needs Octet's own "
            f"quantizers, and {type(own[role]).__name__} for {role} has a quantize of its own"
        )
    return Own(
        recipe.text_of(answers),
        answers.get("weight"),
        own.get("input"),
        own.get("weight"),
        own.get("output"),
        own.get("grad_output"),
        own.get("grad_input"),
        own.get("grad_weight"),
    )


def stored_text(recipe: Recipe) -> str:
    """The recipe's text for weights that are stored quantized. Optimizer steps requantize by
    it."""
    if not isinstance(recipe, CustomRecipe):
        return recipe.text
    own = own_of(recipe, None)
    if own.weight is not None:
        raise ValueError(
            f"quantized_model_init({recipe!r}): {type(own.weight).__name__} has a quantize of "
            "its own, which an optimizer's step would not call; keep such weights plain"
        )
    return recipe.text_for("linear", "")


def _text_of(tensor: torch.Tensor) -> str | None:
    return tensor._text if isinstance(tensor, QuantizedTensor) else None


def _quantized(
    quantizer: Quantizer | None, tensor: torch.Tensor | None, role: str, label: str
) -> Any:  # noqa: ANN401
    """Calls a quantizer and checks that shape and dtype stayed the same."""
    if quantizer is None or tensor is None or isinstance(tensor, QuantizedTensor):
        return tensor
    with torch.no_grad():
        made = quantizer.quantize(tensor.detach())
    if not isinstance(made, torch.Tensor):
        raise TypeError(
            f"{label}: {type(quantizer).__name__}.quantize returned {type(made).__name__} for "
            f"{role}; return a QuantizedTensor or a tensor"
        )
    if made.shape != tensor.shape or made.dtype != tensor.dtype:
        raise ValueError(
            f"{label}: {type(quantizer).__name__}.quantize returned {tuple(made.shape)} of "
            f"{made.dtype} for {role}; it was given {tuple(tensor.shape)} of {tensor.dtype} "
            "and must keep both"
        )
    return made


class Fixed(NamedTuple):
    """Everything about a call except its tensors."""

    words: str
    # words of the op for the bias gradient, which sums the unquantized gradient; "" if not
    # needed
    bias_words: str
    ends: tuple[int, int]  # K and N
    label: str
    weight: Quantizer | None
    # how many parameters backward makes the weight from again; 0 if the weight is saved
    made_of: int
    ranks: tuple[str, int] | None  # name and size of the group that the layer is split over


class _CustomFunction(torch.autograd.Function):
    """Linear of operands that are quantized already; its backward quantizes grad_output."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        fixed: Fixed,
        grad_output: Quantizer | None,
        grad_input: Quantizer | None,
        grad_weight: Quantizer | None,
        used_input: torch.Tensor | None,
        used_weight: torch.Tensor | None,
        inp: torch.Tensor,
        weight: torch.Tensor,
        *others: torch.Tensor,
    ) -> Any:  # noqa: ANN401
        # None stands for the operand itself: Dynamo does not accept the same tensor twice.
        x = inp if used_input is None else used_input
        w = weight if used_weight is None else used_weight
        ctx.fixed, ctx.own = fixed, (grad_output, grad_input, grad_weight)
        if fixed.made_of == 1:
            others = (*others, weight)
        placed = fixed.words, fixed.ranks, fixed.made_of
        output = LinearFunction.forward(ctx, placed, None, fixed.ends, x, w, *others)
        if not is_dynamo_compiling():
            ctx.call = *ctx.call[:4], (ref(inp), ref(weight))
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        if is_dynamo_compiling() or not torch.is_grad_enabled():
            return _once(ctx, grad)
        with torch.no_grad():
            grads = _backward(ctx, grad)
        return _function.refusing(ctx, grad, grads, 6)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
    fixed, (own_dy, own_dx, own_dw) = ctx.fixed, ctx.own
    dy = _quantized(own_dy, grad, "grad_output", fixed.label)
    own_w = fixed.weight

    def cast(weight: torch.Tensor) -> torch.Tensor:
        return _quantized(own_w, weight, "weight", fixed.label)

    grads = list(_function._backward(ctx, dy, cast)[3:])
    if fixed.made_of == 1:
        grads.pop()  # the weight's, which is an argument already
    if fixed.bias_words:
        words = _signatures.gradient_words(fixed.bias_words, grad.dtype, None)
        (grads[2],) = _ops.linear_backward([grad], ctx.call[2], words)
    grads[0] = _quantized(own_dx, grads[0], "grad_input", fixed.label)
    grads[1] = _quantized(own_dw, grads[1], "grad_weight", fixed.label)
    return *([None] * 6), *grads


_once = torch.autograd.function.once_differentiable(_backward)


def _options(layer: "Linear", weight: torch.Tensor, asked: Asked, own: Own) -> Options:
    options: Options = layer._parallel_options + _sharded.options(layer)
    if layer._returns_bias():
        options += (("return_bias", True),)
    if asked.fp8_output and own.output is None:
        options += (("quantize_output", True),)
    if asked.fp8_grad and own.grad_input is None:
        options += (("quantize_grad_input", True),)
    if layer.save_original_input and own.input is None:
        options += (("save_original_input", True),)
    if layer.delay_wgrad_compute:
        options += (("delay_wgrad", True),)
    if layer.fuse_wgrad_accumulation and weight.requires_grad:
        options += layer._main_grad_options(weight, asked.is_first_microbatch)
    return options


def _weight(layer: "Linear", weight: torch.Tensor, asked: Asked, own: Own) -> torch.Tensor:
    """The quantized weight; the first microbatch's cached one where the caller asks for it and
    it is still valid."""
    first = asked.is_first_microbatch
    if first is None:
        return _quantized(own.weight, weight, "weight", layer._label())
    maker = "" if own.stored is None else f"{type(own.stored).__name__} {own.stored.text}"
    cache = layer._weight_cache
    if (
        not first
        and cache.user_tensor is not None
        and cache.user_quantizer == maker
        and cache.fresh.value
    ):
        return cache.user_tensor
    cache.user_tensor = _quantized(own.stored, weight, "weight", layer._label())
    cache.user_quantizer, cache.fresh.value = maker, True
    return cache.user_tensor


def _made_of(
    layer: "Linear", weight: torch.Tensor, used: torch.Tensor, asked: Asked
) -> list[torch.Tensor]:
    """The parameters from which backward makes the weight again: those that fully_shard holds,
    unless the caller caches the quantized weight anyway."""
    if asked.is_first_microbatch is not None:
        return []
    if not layer._is_sharded():
        return []
    return _sharded.parameters(layer) or ([] if used is weight else [weight])


def _check(layer: "Linear", own: Own) -> None:
    """Raises for layer options that a user's quantizer does not support."""
    if layer.save_original_input and own.input is not None:
        raise ValueError(
            f"{layer._label()}: save_original_input quantizes the input again in backward, "
            f"which {type(own.input).__name__} with its own quantize does not: leave it out"
        )
    if layer.fuse_wgrad_accumulation and own.grad_weight is not None:
        raise ValueError(
            f"{layer._label()}: fuse_wgrad_accumulation adds grad_weight to main_grad, so "
            f"{type(own.grad_weight).__name__} cannot quantize it: answer None for grad_weight"
        )
    if layer.fuse_wgrad_accumulation and layer._bias_main_grad_options(None):
        raise ValueError(
            f"{layer._label()}: bias.main_grad gets no gradient under quantizers of a user's: "
            "leave it out, and the bias gets its gradient as usual"
        )
    if layer.delay_wgrad_compute and own.grad_weight is not None:
        raise ValueError(
            f"{layer._label()}: delay_wgrad_compute leaves grad_weight for later, so "
            f"{type(own.grad_weight).__name__} cannot quantize it: answer None for grad_weight"
        )


def forward(
    layer: "Linear",
    inp: torch.Tensor,
    recipe: CustomRecipe,
    asked: Asked,
) -> Any:  # noqa: ANN401
    """A layer's forward under a recipe with quantizers that a user wrote."""
    own = own_of(recipe, layer.name)
    _check(layer, own)
    label = layer._label()
    weight, bias = layer._whole("weight"), layer._whole("bias")
    used = (_quantized(own.input, inp, "input", label), _weight(layer, weight, asked, own))
    wants = layer._wants(inp, weight, bias)
    dtypes = (inp.dtype, weight.dtype, None if bias is None else bias.dtype)
    texts = (_text_of(used[0]), _text_of(used[1]))
    layer._check_parameters(inp.device, weight, bias)
    where = _signatures.device_options(inp.device.type, inp.device.index)
    options = _options(layer, weight, asked, own) + where
    apart = wants[2] and own.grad_output is not None
    call = _signatures.call_of(
        dtypes, texts, own.recipe, (*wants[:2], wants[2] and not apart), options
    )
    sums = _signatures.call_of(dtypes, texts, own.recipe, (False, False, True), where)
    if call.error:
        raise ValueError(f"{label}: {call.error}")
    if layer.tp_size > 1:  # each rank quantizes its own part; sums over ranks are plain tensors
        layer._compare_ranks(call.words, inp, NO_RECIPE)
    made_of = _made_of(layer, weight, used[1], asked)
    fixed = Fixed(
        call.words,
        sums.words if apart else "",
        layer._ends(),
        label,
        own.weight,
        len(made_of),
        layer._ranks(),
    )
    others = [bias] if call.takes_bias else []
    for name in call.tensors:
        drawn = name == "seed"
        others.append(
            layer._draw(inp) if drawn else layer._extra_tensor(name, layer._buffers, weight)
        )
    output = _CustomFunction.apply(
        fixed,
        own.grad_output,
        own.grad_input if asked.fp8_grad else None,
        own.grad_weight,
        None if used[0] is inp else used[0],
        None if used[1] is weight else used[1],
        inp,
        layer._in_graph(weight, wants),
        *others,
        *(made_of if len(made_of) > 1 else ()),
    )
    if asked.fp8_output and own.output is not None:
        output = straight_through(output, _quantized(own.output, output, "output", label))
    return (output, bias) if layer.return_bias else output
