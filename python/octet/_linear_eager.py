"""Eager calls of a Linear. A call like the last one reuses its decisions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch._C import (
    _are_functorch_transforms_active,
    _current_graph_task_id,
    _is_any_autocast_enabled,
)
from torch.nn import Parameter
from torch.nn.functional import linear as torch_linear

import torch
from octet._dtypes import HIGH_PRECISION
from octet._foreign import infers_shapes
from octet._function import Ranks, apply_eagerly, apply_split, linear_op, run_forward
from octet._linear_call import text_of
from octet._linear_run import LinearRun
from octet._sharded import is_sharded
from octet._signatures import (
    READ_CACHE,
    Backward,
    Forward,
    backward_signature,
    buffers_of,
    forward_signature,
)
from octet._verbose import VERBOSE
from octet.recipe import CustomRecipe
from octet.state import seeds
from octet.state.active import constant_weights_here, current
from octet.state.recompute import NO_RECIPE, CallRecipe, may_run_again
from octet.tensor import QuantizedTensor
from torch import is_grad_enabled, is_inference_mode_enabled


class CallDecision(NamedTuple):
    """What an eager call decided, and the key by which a like call is recognized."""

    key: Any
    recipe: CallRecipe = NO_RECIPE
    reusable: bool = False  # False: such calls are decided one by one
    task: tuple[str, Forward, Backward | None] | None = None
    takes_bias: bool = False
    # names of the buffers of a quantized weight that the op takes
    weight: tuple[str, ...] | None = None
    cached: tuple[str, ...] = ()  # the same for a cached weight
    state: tuple[str, ...] = ()  # names of other tensors that the op takes
    draws: bool = False  # whether it draws a seed
    records: bool = False  # whether it records amaxes
    # whether the op can be called directly, its first output being the result
    is_direct: bool = False
    ranks: Ranks = None  # the group that the layer is split over


class EagerLinear(LinearRun):
    """A linear layer's eager calls."""

    def _run_eagerly(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """The fast path of eager calls. A call with the same key as the last one reuses its
        decisions; all other calls go to _run."""
        own = self.__dict__
        parameters = own["_parameters"]
        weight = parameters.get("weight")
        kind = type(weight)
        if (
            (kind is not Parameter and kind is not QuantizedTensor)
            or type(inp) is not torch.Tensor
            or is_first_microbatch
            or fp8_output
            or fp8_grad
            or "bias" not in parameters
            or _current_graph_task_id() != -1
            or _is_any_autocast_enabled()
            or _are_functorch_transforms_active()
        ):
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        bias, region, shape = parameters["bias"], current(), inp.shape
        prologue = own.get("_prologue")
        vectors = () if prologue is None else self._vectors()
        if (
            region.text == "none"
            and own["_is_usual"]
            and self._is_like_torchs(inp, weight, bias)
        ):
            calls = own["_calls"]
            calls.last = "none"
            if may_run_again():
                calls.note_first(NO_RECIPE, True)
            return torch_linear(inp, weight, bias)
        hooks = own["_load_state_dict_post_hooks"]
        grad = is_grad_enabled()
        # A quantized weight needs no cast, so nothing of it is cached.
        quantized, cached = None, None
        if kind is QuantizedTensor:
            quantized = weight._text
        elif (is_first_microbatch is False or constant_weights_here() is not None) and (
            region.enabled or region.calibrating
        ):
            cache = own["_weight_cache"]
            stale = cache.unrecorded and own["training"]
            if cache.tensor is None or stale or not cache.fresh.value:
                return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
            cached = cache.tensor
        # Shapes and devices of weight and bias are not in the key: the op checks them.
        key = (
            region.recipe,
            region.enabled,
            region.calibrating,
            grad,
            not grad and is_inference_mode_enabled(),
            None if cached is None else cached._text,
            inp.requires_grad,
            inp.dtype,
            inp.device,
            weight.requires_grad,
            weight.dtype,
            quantized,
            None if bias is None else (bias.requires_grad, bias.dtype),
            None if prologue is None else [(v.requires_grad, v.dtype) for v in vectors],
            own["training"],
            own["_made_as"],
            bool(hooks) and is_sharded(hooks),
            shape if self.sequence_parallel else None,  # ranks share the rows
        )
        calls = own["_calls"]
        decided = calls.decided
        if decided is None or decided.key != key:
            if infers_shapes():  # not remembered, because such a call records nothing
                return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
            decided = calls.decided = self._decide(key, inp, weight, bias)
        columns = own["in_features"] if prologue is None else self._columns()
        if not decided.reusable or not shape or shape[-1] != columns:
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        recipe, task, ranks = decided.recipe, decided.task, decided.ranks
        if ranks is not None and task is not None:
            self._compare_ranks(task[0], inp, recipe)
        if task is None:  # nothing is quantized
            calls.last = "none"
            if may_run_again():
                calls.note_first(recipe, True)
            if weight.shape != (own["out_features"], shape[-1]) or (
                bias is not None and bias.shape != weight.shape[:1]
            ):
                self._check_parameters(inp.device, weight, bias)
            return torch_linear(inp, weight, bias)
        has_graph = task[2] is not None
        if recipe.rule is None or not decided.records:
            updates, calls.last = None, recipe.text
            if may_run_again():
                self._note_first(recipe, has_graph)
        elif infers_shapes():
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        else:
            updates = self._begin(region.step, recipe.rule, has_graph)
            calls.last = recipe.text
            if may_run_again():
                self._note_first(recipe, has_graph)
                if cached is not None:
                    self._note_cast(recipe, (READ_CACHE,))
        tensors = [inp, weight]
        if decided.weight is not None:
            tensors[1:] = [getattr(weight, name) for name in decided.weight]
        if decided.takes_bias:
            tensors.append(bias)
        tensors.extend(vectors)
        if decided.state or decided.draws:
            self._append_extra_tensors(tensors, decided, cached)
        sizes = [*shape[:-1], own["in_features"], own["out_features"]]
        if has_graph:
            operands = (inp, weight, bias) if decided.takes_bias else (inp, weight)
            if ranks is not None:
                return apply_split((task, updates, ranks), sizes, tensors, *operands)
            return apply_eagerly((task, updates), sizes, tensors, *operands, *vectors)
        if decided.is_direct:
            return linear_op(tensors, sizes, task[0])[0]
        return run_forward(task, sizes, tensors, ranks=ranks)[0]

    def _is_like_torchs(
        self, inp: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> bool:
        """Whether torch's linear accepts the operands as they are."""
        own, shape = self.__dict__, inp.shape
        dtype, device, rows = inp.dtype, inp.device, own["out_features"]
        return bool(
            type(weight) is Parameter
            and dtype in HIGH_PRECISION
            and weight.dtype is dtype
            and weight.device == device
            and shape
            and shape[-1] == own["in_features"]
            and weight.shape == (rows, shape[-1])
            and (
                bias is None
                or (bias.dtype is dtype and bias.device == device and bias.shape == (rows,))
            )
        )

    def _append_extra_tensors(
        self, tensors: list[torch.Tensor], decided: CallDecision, cached: QuantizedTensor | None
    ) -> None:
        """Appends what a call takes besides its operands."""
        buffers = self._buffers
        if decided.draws:
            seed = seeds.draw(tensors[0].device)
        for name in decided.state:
            if name == "cache":
                tensors.extend([getattr(cached, part) for part in decided.cached])
            else:
                tensors.append(seed if name == "seed" else buffers[name])

    def _decide(
        self,
        key: tuple[Any, ...],
        inp: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> CallDecision:
        """The decisions for calls like this one."""
        region = current()
        if isinstance(region.recipe, CustomRecipe) and (region.enabled or region.calibrating):
            return CallDecision(key)
        recipe, cached = self._recipe_in(region), key[5]
        if inp.dtype not in HIGH_PRECISION or self.return_bias:
            return CallDecision(key)
        if self.fuse_wgrad_accumulation or self.delay_wgrad_compute or len(self._parts) > 1:
            return CallDecision(key)
        split = self.tp_size > 1
        usual = cached is None and type(weight) is Parameter and self._prologue is None
        if split and not (usual and self._tp_group):
            return CallDecision(key)
        if self._is_plain(recipe, inp, weight, bias):
            if self._prologue is not None:
                return CallDecision(key)
            self._check_parameters(inp.device, weight, bias)
            return CallDecision(key, recipe, True)
        options = self._options(recipe, weight, None, False, False)
        if cached is not None and READ_CACHE not in options:
            options += (READ_CACHE,)
        call = self._call((inp, weight, bias), recipe.text, options, self._records())
        if call.has_others:  # the cached weight lacks a direction
            return CallDecision(key)
        if VERBOSE:
            self._announce(call.words, inp.dtype, inp.shape)
        if recipe.rule is not None:
            self._need_scaling(recipe.text)
        words, back = call.words, None
        weight_text = text_of(weight)
        flat = weight_text is not None or call.cache != "none"
        if any(self._wants(inp, weight, bias)) or self._vectors_want():
            back = backward_signature(words, inp.dtype, flat)
        signature = forward_signature(words, flat)
        return CallDecision(
            key,
            recipe,
            True,
            (words, signature, back),
            call.takes_bias,
            None if weight_text is None else buffers_of(words, "weight", weight_text),
            () if call.cache == "none" else buffers_of(words, "weight.cached", cached),
            call.tensors,
            self._draws((inp, weight, bias), recipe.text, options, call),
            self._records(),
            signature.is_simple and not (signature.writes or signature.lent or split),
            self._ranks(),
        )


def _never_compile(function: Callable[..., Any]) -> None:
    """Tells Dynamo to skip a function and all that it calls. Otherwise, after a graph break, it
    would compile eager code piece by piece."""
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)


_never_compile(EagerLinear._run_eagerly)
