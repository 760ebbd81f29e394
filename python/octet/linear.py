"""Linear: y = x w^T + b in FP8 or FP4, one graph node each way."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch._C import (
    _are_functorch_transforms_active,
    _current_graph_task_id,
    _is_any_autocast_enabled,
)
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Parameter
from torch.nn.functional import linear as torch_linear


import torch
from octet import _custom, _foreign, _texts, _wgrad
from octet._constant import constant, traced_as_constant
from octet._dtypes import HIGH_PRECISION, dtype_name
from octet._function import LinearFunction, apply_eagerly, apply_in_graph, run_forward
from octet._linear_protos import LinearProtos, Shapes, linear_protos
from octet._parameters import Parameters
from octet._problem import (
    FORWARD_STATE,
    Backward,
    Call,
    Forward,
    backward_signature,
    buffers_of,
    call_of,
    device_words,
    forward_signature,
    is_flat,
    is_plain_in_graph,
)
from octet.proto import TensorProto
from octet.recipe import CustomRecipe, DelayedScaling, Recipe
from octet.state import recompute, registry, scaling, seeds
from octet.state.active import (
    BACKWARD,
    CONSTANT_WEIGHTS,
    ENTERED,
    MAIN,
    Region,
    constant_weights_here,
    current,
    in_backward,
)
from octet.state.recompute import NO_RECIPE, CallRecipe, Run
from octet.state.scaling_rule import Rule, rule_of
from octet.tensor import QuantizedTensor, as_dtype
from torch import is_grad_enabled, is_inference_mode_enabled


linear_autograd = torch.ops.octet.linear_autograd.default


@constant
def _call_recipe(text: str, words: tuple[str, ...], rule: str | None) -> CallRecipe:
    return CallRecipe(text, words, rule)


@constant
def _is_high_precision(dtype: torch.dtype) -> bool:
    return dtype in HIGH_PRECISION


def _text_of(tensor: torch.Tensor | TensorProto) -> str | None:
    return tensor._text if isinstance(tensor, QuantizedTensor | TensorProto) else None


class Decided(NamedTuple):
    """What an eager call decided, and the key that a call like it has."""

    key: Any
    recipe: CallRecipe = NO_RECIPE
    serves: bool = False  # or else each call is decided by itself
    task: tuple[str, Forward, Backward | None] | None = None
    takes_bias: bool = False
    weight: tuple[str, ...] | None = None  # the buffers that a quantized weight hands over
    cached: tuple[str, ...] = ()  # and those of a cached one
    state: tuple[str, ...] = ()  # of the layer's: what it takes besides its operands
    draws: bool = False  # it draws a seed, which may be one of them


class Linear(Parameters):
    """A linear layer that quantizes by the recipe of the ``octet.autocast`` around it.

    Outside one it is ``torch.nn.Linear``: it computes the same, with all derivatives. It is an
    ``nn.Linear`` to other libraries, too: same parameters, same initialization.

    ``torch.utils.checkpoint`` recomputes what the first run computed, whichever autocast is
    active by then, under delayed scaling by the scales it had. In compiled code delayed
    scaling's layers belong outside of checkpoints; see docs/state.md for all the rules.

    >>> layer = octet.Linear(64, 32, device="cpu")
    >>> with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
    ...     layer(torch.randn(8, 64)).shape
    torch.Size([8, 32])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,  # noqa: ANN401
        tp_size: int = 1,
        get_rng_state_tracker: Callable[..., Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        parameters_split: tuple[str, ...] | list[str] | dict[str, int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        save_original_input: bool = False,
        name: str | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)  # and not nn.Linear's, which makes parameters
        _foreign.check_parallel_arguments(
            tp_size=tp_size,
            parallel_mode=parallel_mode,
            sequence_parallel=sequence_parallel,
            overlaps={
                "ub_overlap_ag": ub_overlap_ag,
                "ub_overlap_rs": ub_overlap_rs,
                "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad,
                "ub_bulk_dgrad": ub_bulk_dgrad,
                "ub_bulk_wgrad": ub_bulk_wgrad,
                "symmetric_ar_type": symmetric_ar_type,
            },
        )
        # Without a meaning in a layer that is not split over ranks.
        del tp_group, get_rng_state_tracker, rng_tracker_name, ub_name
        self.in_features, self.out_features = in_features, out_features
        self.name = name
        self.return_bias = return_bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.save_original_input = save_original_input
        self.delay_wgrad_compute = delay_wgrad_compute
        self._wgrads = _wgrad.Queue()
        self.init_method = init_method
        if params_dtype is not None and dtype is not None and params_dtype != dtype:
            raise ValueError(
                f"{self._label()}: params_dtype is {params_dtype}, but dtype {dtype}; give one"
            )
        self._make_parameters(parameters_split, bias, params_dtype or dtype, device)

    # ---- by which recipe -------------------------------------------------------------------

    def _label(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"octet.Linear{name} ({self.in_features} -> {self.out_features})"

    def _recipe_for(self, recipe: Recipe | None, enabled: bool) -> CallRecipe:
        """What a recipe asks of this layer."""
        words = () if enabled else ("calibrate",)
        if isinstance(recipe, CustomRecipe):
            answers = recipe.answers("linear", self.name or "")
            has_own = enabled and not all(q._is_core for q in answers.values())
            text = recipe.text_of(answers)
            return CallRecipe(text, words, None, recipe if has_own else None)
        rule = rule_of(recipe) if isinstance(recipe, DelayedScaling) else None
        if isinstance(rule, DelayedScaling):
            return CallRecipe(recipe.text, words, rule)
        return _call_recipe(recipe.text, words, rule)

    def _recipe_in(self, region: Region) -> CallRecipe:
        """What an autocast asks of this layer."""
        if region.enabled or region.calibrating:
            return self._recipe_for(region.recipe, region.enabled)
        return NO_RECIPE

    def _recipe_in_backward(self, region: Region) -> tuple[CallRecipe, Run | None]:
        """The recipe of an eager call inside a backward, and the run that it repeats, if any: see
        octet.state.recompute."""
        now = self._recipe_in(region)
        run, is_forgotten = self._calls.first_run()
        if region.in_backward:  # its recipe decides; if it is the first run's, so do the scales
            return now, run if run is not None and run.recipe == now else None
        if is_forgotten:
            raise recompute.forgotten(self._label())
        if run is not None:
            return run.recipe, run
        last = self._calls.last
        if last is not None and last != now.name:
            raise recompute.refused(self._label(), now.name, last)
        return now, None

    def _recipe_in_graph(self, region: Region) -> CallRecipe:
        """The recipe of a traced call; one inside a backward repeats the last call's."""
        now = self._recipe_in(region)
        if not in_backward():
            if is_dynamo_compiling() and not recompute.is_in_subgraph():
                self._calls.last = now.name
            return now
        text = recompute.recipe_in_graph(now, region, self._calls.last, self._label())
        if text.startswith("delayed") and not region.in_backward:
            raise RuntimeError(
                f"{self._label()}: a checkpoint runs compiled code again by scales that have "
                "been updated since; under delayed scaling leave the layer out of the "
                "checkpoint or of the compiled code, or take a recipe without scales"
            )
        return now if text == now.text else _call_recipe(text, (), None)

    def _records(self) -> bool:
        """Whether a call records amaxes, as BatchNorm its statistics: in training. Compiled code
        cannot tell inference_mode from no_grad: it records only where gradients are on."""
        region = current()
        if region.calibrating and not region.enabled:
            return True
        if is_compiling():
            return self.training and is_grad_enabled()
        return self.training and not is_inference_mode_enabled()

    # ---- what a call is asked --------------------------------------------------------------

    def _hands_bias_back(self) -> bool:
        """Whether there is a bias that is not added."""
        return self.return_bias and getattr(self, f"{self._parts[0][0]}bias") is not None

    def _main_grad(self, weight: torch.Tensor) -> torch.Tensor:
        """What backward adds the weight's gradient to."""
        found = getattr(weight, "main_grad", None)
        if not isinstance(found, torch.Tensor):
            given = "there is none" if found is None else f"it is a {type(found).__name__}"
        elif found.shape != weight.shape or not _is_high_precision(found.dtype):
            given = f"it is {tuple(found.shape)} of {found.dtype}"
        elif found.device != weight.device:
            given = f"it is on {found.device}, the weight on {weight.device}"
        elif not found.is_contiguous():
            given = "it is not contiguous"
        else:
            return found
        raise ValueError(
            f"{self._label()}: fuse_wgrad_accumulation adds to weight.main_grad, but {given}; "
            f"make it a contiguous tensor {tuple(weight.shape)} of float32, bfloat16 or float16"
        )

    def _main_grad_words(self, weight: torch.Tensor, is_first: bool | None) -> tuple[str, ...]:
        """The words for what backward does to main_grad: the first microbatch overwrites it, as
        does every one where the weight says ``overwrite_main_grad``."""
        overwrites = is_first or getattr(weight, "overwrite_main_grad", False)
        return (
            "main_grad=overwrite" if overwrites else "main_grad=add",
            f"main_grad_dtype={dtype_name(self._main_grad(weight).dtype)}",
        )

    def _cache_words(self, is_first_microbatch: bool | None) -> tuple[str, ...]:
        """Whether a call casts the weight for later ones, or reads what an earlier one cast."""
        cache = self._weight_cache
        if is_first_microbatch is None:
            constant = constant_weights_here()
            if constant is None:
                return ()
            if constant.traced:  # its own graph: what was cast in it is known
                if all(cache is not other for other in constant.cast):
                    constant.cast.append(cache)
                    return ("cache=write",)
                return ("cache=read",)
        elif is_first_microbatch:
            return ("cache=write",)
        return ("cache=read" if cache.fresh.value and cache.text != "none" else "cache=write",)

    def _options(
        self,
        recipe: CallRecipe,
        weight: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> tuple[str, ...]:
        words = recipe.words
        quantizes = recipe.text != "none" and not words
        if self._hands_bias_back():
            words += ("return_bias",)
        if fp8_output and quantizes:
            words += ("quantize_output",)
        if fp8_grad and quantizes:
            words += ("quantize_grad_input",)
        if self.save_original_input:
            words += ("save_original_input",)
        if self.delay_wgrad_compute:
            words += ("delay_wgrad",)
        if quantizes:
            words += self._cache_words(is_first_microbatch)
        if self.fuse_wgrad_accumulation and weight.requires_grad:
            words += self._main_grad_words(weight, is_first_microbatch)
        return words

    def _checked(self, inp: torch.Tensor | TensorProto) -> Any:  # noqa: ANN401
        """The input in the dtype that torch.autocast asks for."""
        if not isinstance(inp, torch.Tensor | TensorProto):
            raise TypeError(f"{self._label()}: input is a {type(inp).__name__}, not a tensor")
        if not _is_high_precision(inp.dtype):
            raise ValueError(
                f"{self._label()}: input is {inp.dtype}; cast it to float32, bfloat16 or "
                "float16"
            )
        shape = inp.shape
        if not shape or shape[-1] != self.in_features:
            raise ValueError(
                f"{self._label()}: input is {tuple(shape)}; its last axis must be "
                f"{self.in_features}"
            )
        if _is_any_autocast_enabled() and torch.is_autocast_enabled(inp.device.type):
            dtype = torch.get_autocast_dtype(inp.device.type)
            return as_dtype(inp, dtype) if isinstance(inp, QuantizedTensor) else inp.to(dtype)
        return inp

    def _check_parameters(
        self, device: torch.device, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """Weight and bias have the shapes that the layer says, are where the input is, and are
        of dtypes that are multiplied."""
        shape = (self.out_features, self.in_features)
        for name, found, wanted in (("weight", weight, shape), ("bias", bias, shape[:1])):
            if found is None:
                continue
            if found.shape != wanted:
                raise ValueError(
                    f"{self._label()}: {name} is {tuple(found.shape)}; it must be {wanted}"
                )
            if found.device != device:
                raise ValueError(
                    f"{self._label()}: input is on {device}, {name} on {found.device}; move "
                    "one of them"
                )
            if not _is_high_precision(found.dtype):
                raise ValueError(
                    f"{self._label()}: {name} is {found.dtype}; cast it to float32, bfloat16 "
                    "or float16"
                )
            _foreign.refuse_dtensor(self._label(), name, found)

    def _wants(
        self,
        inp: torch.Tensor | TensorProto,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> tuple[bool, bool, bool]:
        """Which of the three get a gradient."""
        grad = is_grad_enabled()
        return (
            grad and inp.requires_grad,
            grad and weight.requires_grad,
            grad and bias is not None and bias.requires_grad and not self.return_bias,
        )

    def _call(
        self,
        operands: tuple[torch.Tensor | TensorProto, torch.Tensor, torch.Tensor | None],
        recipe: str,
        options: tuple[str, ...],
        records: bool,
    ) -> Call:
        """The call, if the C core has nothing against it. A cached weight that lacks a direction
        is cast again: by traced code for this call alone, which may not replace what it is
        guarded on."""
        inp, weight, bias = operands
        self._check_parameters(inp.device, weight, bias)
        wants = self._wants(inp, weight, bias)
        dtypes = (inp.dtype, weight.dtype, None if bias is None else bias.dtype)
        texts = (_text_of(inp), _text_of(weight))
        options += device_words(inp.device.type, inp.device.index)
        call = call_of(dtypes, texts, recipe, wants, options, records)
        if call.cache != "none" and not _texts.covers(self._weight_cache.text, call.cache):
            if is_compiling():  # for this call alone: other memory would be a guard that fails
                options = tuple(o for o in options if o != "cache=read")
            else:
                options = tuple("cache=write" if o == "cache=read" else o for o in options)
            call = call_of(dtypes, texts, recipe, wants, options, records)
        if call.error:
            raise ValueError(f"{self._label()}: {call.error}")
        return call

    def _draws(
        self,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        recipe: str,
        options: tuple[str, ...],
        call: Call,
    ) -> bool:
        """Whether a call draws a seed. An eager one without a graph may draw one that it does
        not read: a reentrant checkpoint runs it again, then with a seed, from the state that
        torch's generator has now. So the generator has to move on here, as it does for dropout:
        or else all layers and all steps would round by the same random numbers."""
        if "seed" in call.tensors:
            return True
        if is_compiling() or is_grad_enabled() or is_inference_mode_enabled():
            return False
        if not self.training or "calibrate" in options:
            return False
        inp, weight, bias = operands
        dtypes = (inp.dtype, weight.dtype, None if bias is None else bias.dtype)
        texts = (_text_of(inp), _text_of(weight))
        wants = (True, weight.requires_grad, bias is not None and bias.requires_grad)
        options += device_words(inp.device.type, inp.device.index)
        return "seed" in call_of(dtypes, texts, recipe, wants, options, False).tensors

    def protos(
        self,
        inp: torch.Tensor | TensorProto,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
        recipe: Recipe | None = None,
    ) -> LinearProtos:
        """What a call with this input would take, give and save, without data.

        By the given recipe, or else by the active one. ``forward``, ``backward`` and, with
        ``delay_wgrad_compute``, ``wgrad`` each tell their ``arguments``, ``outputs``,
        ``aliases``, ``saved`` tensors and ``workspace`` (for one thread).

        >>> layer = octet.Linear(64, 32, device="cpu", params_dtype=torch.bfloat16)
        >>> x = octet.TensorProto((8, 64), torch.bfloat16, requires_grad=True, device="cpu")
        >>> found = layer.protos(x, recipe=octet.recipe.MXFP8BlockScaling())
        >>> found.forward.outputs["output"]
        TensorProto((8, 32), torch.bfloat16, requires_grad=True, device=cpu)
        >>> found.backward.outputs["grad_weight"]
        TensorProto((32, 64), torch.bfloat16, device=cpu)
        """
        inp = self._checked(inp)
        weight, bias = self._whole("weight"), self._whole("bias")
        asked = self._recipe_in(current()) if recipe is None else self._recipe_for(recipe, True)
        if asked.custom is not None:
            raise NotImplementedError(
                f"{self._label()}: protos of {asked.custom!r}: what a quantize of a user's "
                "makes is not known without data; ask for those of Octet's own quantizers"
            )
        options = self._options(asked, weight, is_first_microbatch, fp8_output, fp8_grad)
        operands = (inp, weight, bias)
        problem = self._call(operands, asked.text, options, self._records()).problem
        sizes = [*inp.shape, self.out_features]
        found = linear_protos(problem, Shapes(sizes, inp.dtype, weight.dtype, inp.device))
        found.forward.outputs["output"].requires_grad = any(self._wants(inp, weight, bias))
        return found

    # ---- the call --------------------------------------------------------------------------

    def forward(
        self,
        input: torch.Tensor | None = None,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
        *,
        inp: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """y = x w^T + b by the active recipe; with ``return_bias``, the pair (x w^T, b), where
        b is None if there is no bias.

        ``is_first_microbatch``: True casts the weight and caches it, False reuses the cached one
        (a weight that has changed since is cast again), None casts at each call.
        ``fp8_output`` and ``fp8_grad`` give output and gradient quantized; outside an autocast
        they are ignored. ``inp`` is another name of ``input``."""
        if input is None:
            input = inp
        if is_dynamo_compiling():
            return self._run_traced(input, is_first_microbatch, fp8_output, fp8_grad)
        waits = self._pending.waits
        try:
            return self._run_eagerly(input, is_first_microbatch, fp8_output, fp8_grad)
        except BaseException as error:
            if self._pending.waits and not waits:
                self._take_back()
            if isinstance(error, MemoryError):  # an op's; who waits for torch's gets torch's
                raise torch.OutOfMemoryError(f"{self._label()}: {error}") from None
            raise

    def _take_back(self) -> None:
        """The call that began the layer's step has failed: another one may begin it."""
        recorded = current().step.recorded
        recorded[:] = [layer for layer in recorded if layer is not self]
        self._pending.clear()

    def _run_eagerly(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """What most calls need and no more: one that is like the last one, by all that decides
        it, is not decided again."""
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
        reuses, cached = (
            is_first_microbatch is False or constant_weights_here() is not None,
            None,
        )
        if reuses and (region.enabled or region.calibrating):
            cache = own["_weight_cache"]
            if cache.tensor is None or not cache.fresh.value:
                return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
            cached = cache.tensor
        key = (
            region.recipe,
            region.enabled,
            region.calibrating,
            is_grad_enabled(),
            is_inference_mode_enabled(),
            None if cached is None else cached._text,
            inp.requires_grad,
            inp.dtype,
            inp.device,
            weight.requires_grad,
            weight.dtype,
            weight.device,
            weight.shape,
            None if bias is None else (bias.requires_grad, bias.dtype, bias.shape),
            own["training"],
            own["in_features"],
            own["return_bias"],
            own["fuse_wgrad_accumulation"],
            own["save_original_input"],
            own["delay_wgrad_compute"],
        )
        calls = own["_calls"]
        decided = calls.decided
        if decided is None or decided.key != key:
            decided = calls.decided = self._decide(key, inp, weight, bias)
        if not decided.serves or not shape or shape[-1] != own["in_features"]:
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        recipe, task = decided.recipe, decided.task
        if task is None:  # nothing is quantized
            calls.note(recipe, True, None)
            return torch_linear(inp, weight, bias)
        has_graph = task[2] is not None
        if recipe.rule is None:
            calls.note(recipe, has_graph, None)
            updates = None
        else:
            updates = self._note(recipe, has_graph)
        tensors = [inp, weight]
        if decided.weight is not None:
            tensors[1:] = [getattr(weight, name) for name in decided.weight]
        if decided.takes_bias:
            tensors.append(bias)
        if decided.state or decided.draws:
            self._lend(tensors, decided, cached)
        sizes = [*shape, own["out_features"]]
        if has_graph:
            operands = (inp, weight, bias) if decided.takes_bias else (inp, weight)
            return apply_eagerly((task, updates), sizes, tensors, *operands)
        return run_forward(task, sizes, tensors)[0]

    def _lend(
        self, tensors: list[torch.Tensor], decided: Decided, cached: QuantizedTensor | None
    ) -> None:
        """Adds what a call takes besides its operands."""
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
    ) -> Decided:
        """What calls like this one need; those that need more are decided one by one."""
        region = current()
        if isinstance(region.recipe, CustomRecipe) and (region.enabled or region.calibrating):
            return Decided(key)
        recipe = self._recipe_in(region)
        if inp.dtype not in HIGH_PRECISION or self.return_bias:
            return Decided(key)
        if self.fuse_wgrad_accumulation or self.delay_wgrad_compute or len(self._parts) > 1:
            return Decided(key)
        if self._is_plain(recipe, inp, weight, bias):
            self._check_parameters(inp.device, weight, bias)
            return Decided(key, recipe, True)
        options = self._options(recipe, weight, None, False, False)
        cached = key[5]
        if cached is not None and "cache=read" not in options:
            options += ("cache=read",)
        call = self._call((inp, weight, bias), recipe.text, options, self._records())
        if call.has_others:  # a cached weight that lacks a direction
            return Decided(key)
        if recipe.rule is not None:
            self._need_scaling(recipe.text)
        problem, back = call.problem, None
        weight_text = _text_of(weight)
        flat = weight_text is not None or call.cache != "none"
        if any(self._wants(inp, weight, bias)):
            back = backward_signature(problem, inp.dtype, flat)
        return Decided(
            key,
            recipe,
            True,
            (problem, forward_signature(problem, flat), back),
            call.takes_bias,
            None if weight_text is None else buffers_of(problem, "weight", weight_text),
            () if call.cache == "none" else buffers_of(problem, "weight.cached", cached),
            call.tensors,
            self._draws((inp, weight, bias), recipe.text, options, call),
        )

    def _is_plain(
        self,
        recipe: CallRecipe,
        inp: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> bool:
        """Whether a call has nothing to quantize and nothing that nn.Linear does not have, so that
        it is nn.Linear's: with all its derivatives and transforms."""
        if recipe.text != "none" or self.fuse_wgrad_accumulation or self.delay_wgrad_compute:
            return False
        if isinstance(inp, QuantizedTensor) or isinstance(weight, QuantizedTensor):
            return False
        if not _is_high_precision(inp.dtype) or not _is_high_precision(weight.dtype):
            return False
        if _is_any_autocast_enabled() and torch.is_autocast_enabled(inp.device.type):
            return True
        return inp.dtype == weight.dtype and (bias is None or bias.dtype == weight.dtype)

    def _run_plain(
        self, inp: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Any:  # noqa: ANN401
        """A call that has nothing to quantize."""
        if not is_compiling() and not _are_functorch_transforms_active():
            self._calls.note(NO_RECIPE, True, None)
        y = torch_linear(inp, weight, None if self.return_bias else bias)
        return (y, bias) if self.return_bias else y

    def _run_traced(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """What most traced calls need and no more. A compiler traces every line of it, for every
        layer: what can be decided at once is decided by one call that it does not trace."""
        region = ENTERED.value
        if region is None:
            region = MAIN.region
        recipe = region.recipe
        if (
            not region.enabled
            or recipe._is_custom
            or is_first_microbatch is not None
            or fp8_output
            or fp8_grad
            or self.return_bias
            or self.fuse_wgrad_accumulation
            or self.delay_wgrad_compute
            or not isinstance(inp, torch.Tensor)
            or inp.is_nested
            or BACKWARD.value
            or CONSTANT_WEIGHTS.value is not None
        ):
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        traits = (inp.dtype, inp.device, inp.requires_grad, is_grad_enabled(), self.training)
        decided = self._decide_in_graph(recipe._text, traits, self.save_original_input)
        if decided is None or inp.shape[-1] != self.in_features:
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        problem, takes_bias, state, forward_state, tells = decided
        if tells:
            self._calls.last = recipe._text
        tensors = [inp, weight, bias] if takes_bias else [inp, weight]
        if not state:
            sizes = [*inp.shape, self.out_features]
            return linear_autograd(tensors, [], sizes, problem, "")[0]
        return self._run_traced_with_state(problem, recipe, tensors, state, forward_state)

    def _run_traced_with_state(
        self,
        problem: str,
        recipe: Recipe,
        tensors: list[torch.Tensor],
        state: tuple[str, ...],
        forward_state: int,
    ) -> torch.Tensor:
        """A traced call of a recipe with scales or with a seed."""
        sizes = [*tensors[0].shape, self.out_features]
        if state[0] == "seed" and len(state) == 1 and not forward_state:
            seed = torch.ops.octet.draw_seed.default(tensors[0].detach())
            return linear_autograd(tensors, [seed], sizes, problem, "")[0]
        rule = None
        if " raise_amax" in problem:
            rule = self._begin_in_graph(recipe._text)
        seed = seeds.draw_in_graph(tensors[0]) if "seed" in state else None
        for name in state:
            tensors.append(seed if name == "seed" else self._buffers[name])
        return apply_in_graph(problem, rule, self.out_features, tensors)[0]

    @traced_as_constant
    def _decide_in_graph(
        self, text: str, traits: tuple[Any, ...], save_original_input: bool
    ) -> tuple[Any, ...] | None:
        """What a traced call needs: its problem, whether it takes the bias, which state, how much
        of that is forward's, and whether it tells the layer its recipe. None: it needs more.

        Runs while code is traced: what it reads of the layer besides its arguments is what
        compiled code guards on anyway (its parameters) or what never changes."""
        dtype, device, input_grad, grad, training = traits
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        plain = type(weight) is Parameter and "bias" in self._parameters
        if not plain or _is_any_autocast_enabled() or len(self._parts) > 1:
            return None
        if dtype not in HIGH_PRECISION or recompute.is_in_subgraph():
            return None
        delayed = text.startswith("delayed")
        if delayed:
            if "callback" in text:  # a function of a user's, which is traced
                return None
            self._need_scaling_in_graph(text)
        self._check_parameters(device, weight, bias)
        wants = (
            grad and input_grad,
            grad and weight.requires_grad,
            grad and bias is not None and bias.requires_grad,
        )
        options = ("save_original_input",) if save_original_input else ()
        options += device_words(device.type, device.index)
        dtypes = (dtype, weight.dtype, None if bias is None else bias.dtype)
        call = call_of(dtypes, (None, None), text, wants, options, training and grad)
        if call.error or not is_plain_in_graph(call.problem, dtype):
            return None
        own = sum(n in FORWARD_STATE for n in forward_signature(call.problem).args)
        return call.problem, call.takes_bias, call.tensors, own, True

    def _run(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """Any call at all, eager or traced."""
        if not isinstance(inp, torch.Tensor | TensorProto):
            traced = _foreign.traced_by_fx(self, inp, is_first_microbatch, fp8_output, fp8_grad)
            if traced is not None:
                return traced
        elif inp.is_nested:
            return _foreign.over_values(self, inp, is_first_microbatch, fp8_output, fp8_grad)
        region, run = current(), None
        if is_compiling():
            recipe = self._recipe_in_graph(region)
        elif in_backward():
            recipe, run = self._recipe_in_backward(region)
        else:
            recipe = self._recipe_in(region)
        weight, bias = self._whole("weight"), self._whole("bias")
        if isinstance(inp, torch.Tensor) and self._is_plain(recipe, inp, weight, bias):
            if not inp.shape or inp.shape[-1] != self.in_features:
                self._checked(inp)
            if run is not None:
                self._calls.note_again(run)
                y = torch_linear(inp, weight, None if self.return_bias else bias)
                return (y, bias) if self.return_bias else y
            return self._run_plain(inp, weight, bias)
        if not is_compiling() and _are_functorch_transforms_active():
            raise NotImplementedError(
                f"{self._label()}: torch.func's transforms (grad, vmap, jvp, ...) do not reach "
                "into a layer that quantizes; use torch.autograd, or leave the layer out of them"
            )
        inp = self._checked(inp)
        if recipe.custom is not None:
            if not is_compiling():
                if run is None:
                    self._calls.note(recipe, True, None)
                else:
                    self._calls.note_again(run)
            asked = _custom.Asked(is_first_microbatch, fp8_output, fp8_grad)
            return _custom.forward(self, inp, recipe.custom, asked)
        return self._run_recipe(inp, recipe, run, (is_first_microbatch, fp8_output, fp8_grad))

    def _run_recipe(
        self,
        inp: torch.Tensor,
        recipe: CallRecipe,
        run: Run | None,
        asked: tuple[bool | None, bool, bool],
    ) -> Any:  # noqa: ANN401
        """A call by a recipe of Octet's own quantizers."""
        weight, bias = self._whole("weight"), self._whole("bias")
        options = self._options(recipe, weight, *asked)
        wants = self._wants(inp, weight, bias)
        has_graph = wants[0] or wants[1] or wants[2]
        # Amaxes of a repeated call are recorded already.
        records = self._records() if run is None else run.recipe.rule is not None
        call = self._call((inp, weight, bias), recipe.text, options, records)
        state, updates = self._buffers, None
        if recipe.rule is not None:
            if is_compiling():
                self._need_scaling_in_graph(recipe.text)
            else:
                self._need_scaling(recipe.text)
            state = self._buffers
        if is_compiling():
            if recipe.rule is not None and records:
                updates = self._begin_in_graph(recipe.rule)
        elif run is None:
            updates = self._note(recipe, has_graph, records)
        else:
            self._calls.note_again(run)
            state, updates = self._state_of(run)
        draws = self._draws((inp, weight, bias), recipe.text, options, call)
        seed = self._draw(inp) if draws else None
        tensors = [inp, self._in_graph(weight, wants)]
        if call.takes_bias:
            tensors.append(bias)
        for name in call.tensors:
            if name == "cache":
                tensors.extend(self._cached_buffers(call.problem))
            else:
                tensors.append(seed if name == "seed" else self._lends(name, state, weight))
        output, others = self._apply_call(call, updates, tensors, has_graph)
        if others:
            with torch.no_grad():
                self._store_cast(call.problem, list(others), weight)
        return (output, bias) if self.return_bias else output

    def _apply_call(
        self,
        call: Call,
        updates: Any,
        tensors: list[torch.Tensor],
        has_graph: bool,
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """The output, and the buffers of a weight that was cast for later calls."""
        others: Sequence[torch.Tensor] = ()
        in_one_node = is_dynamo_compiling() and not isinstance(updates, DelayedScaling)
        if in_one_node and is_plain_in_graph(call.problem, tensors[0].dtype):
            output, *others = apply_in_graph(call.problem, updates, self.out_features, tensors)
            return output, others
        if has_graph:
            output = LinearFunction.apply(call.problem, updates, self.out_features, *tensors)
            if call.has_others:
                output, *others = output
            return output, others
        sizes = [*tensors[0].shape, self.out_features]
        flat = is_flat(call.problem, len(tensors))
        task = call.problem, forward_signature(call.problem, flat), None
        output, others, _ = run_forward(task, sizes, tensors)
        return output, others

    def _cached_buffers(self, problem: str) -> list[torch.Tensor]:
        """Of the cached weight, the buffers that a call reads."""
        cache = self._weight_cache
        names = _texts.buffer_names(cache.text)
        wanted = buffers_of(problem, "weight.cached", cache.text)
        return [cache.memory[names.index(name)] for name in wanted]

    def _draw(self, inp: torch.Tensor) -> torch.Tensor:
        """A seed for stochastic rounding."""
        return seeds.draw_in_graph(inp) if is_compiling() else seeds.draw(inp.device)

    def _store_cast(
        self, problem: str, buffers: list[torch.Tensor], weight: torch.Tensor
    ) -> None:
        """Caches a cast weight: in compiled code in memory that was made for it."""
        text, cache = forward_signature(problem).others[0].quantizer, self._weight_cache
        if not is_compiling():
            cache.store(buffers, text, weight)
            return
        self._make_cache_memory(text)
        for memory, made in zip(cache.memory, buffers, strict=True):
            memory.copy_(made)
        cache.fresh.value = True

    @traced_as_constant
    def _make_cache_memory(self, text: str) -> bool:
        """Runs while a graph is traced, for the reason of _need_scaling_in_graph for all layers
        that could share the graph: those of the same sizes."""
        for layer in registry.all_layers():
            shape = layer.in_features, layer.out_features
            if layer is self or (shape == (self.in_features, self.out_features)):
                layer._weight_cache.make_memory(text, layer._whole("weight"))
        return True

    # ---- delayed scaling -------------------------------------------------------------------

    def _note(self, recipe: CallRecipe, has_graph: bool, records: bool = True) -> Any:  # noqa: ANN401
        """Notes an eager call, and where it begins a step of delayed scaling: who knows that its
        backward updates the scales of gradients."""
        rule, calls = recipe.rule, self._calls
        if rule is None:
            calls.note(recipe, has_graph, None)
            return None
        updates = None
        if records and self._records():
            updates = self._begin(rule)
        calls.note(recipe, has_graph, self._buffers["fp8_scale"])
        return updates

    def _begin(self, rule: Rule) -> scaling.GradientUpdate | None:
        """Begins the layer's step of delayed scaling, unless this step has it already."""
        step, pending = current().step, self._pending
        if pending.waits and pending.step is step.id:  # or else another thread's waits
            if not pending.backward_ran:
                pending.rule = rule
                return None
            # Forward after backward inside one autocast: the next step has begun.
            scaling.restart_step(step)
        self._calls.step_began = True
        pending.begin(self, step, rule)
        return scaling.GradientUpdate(rule, pending)

    def _begin_in_graph(self, rule: Rule) -> Rule | None:
        """The same in traced code: the rule, where this call begins the step."""
        if recompute.is_checkpointed():
            raise RuntimeError(
                f"{self._label()}: a checkpoint would run compiled code again by scales that "
                "have moved; under delayed scaling leave the layer out of the checkpoint or of "
                "the compiled code, or take a recipe without scales of its own"
            )
        step, pending = current().step, self._pending
        if step.traced:
            scale, history = self._buffers["fp8_scale"], self._buffers["fp8_amax_history"]
            mine = step.in_own_graph.get(self)
            if mine is None:
                mine = step.in_own_graph[self] = []
            is_first = all(scale is not s or rule != r for s, _, r in mine)
            if is_first:
                mine.append((scale, history, rule))
        else:
            # It only tells the step: a comparison would be guarded.
            is_first, step.in_graph = not pending.waits, True
            pending.waits, pending.rule, pending.step = True, rule, step.id
        return rule if is_first else None

    def _state_of(self, run: Run) -> tuple[dict[str, torch.Tensor | None], Run | None]:
        """The state of a first run, for the call that repeats it, and who knows whether its
        backward updates the scales of gradients.

        The scale is the one that the first run had, and its amaxes are recorded already. Where
        it left no graph (a reentrant checkpoint) the last run of the step updates."""
        rule = run.recipe.rule
        if rule is None or run.scale is None:
            return self._buffers, None
        region = current()
        if (region.enabled or region.calibrating) and self._records():
            # It was left without an update if that was under no_grad.
            self._begin(rule)
        with recompute.unseen():
            nowhere = torch.empty_like(self._buffers["fp8_amax_history"][:1])
        first = {"fp8_scale": run.scale, "fp8_amax_history": nowhere}
        return {**self._buffers, **first}, run

    def _in_graph(self, weight: torch.Tensor, wants: tuple[bool, bool, bool]) -> torch.Tensor:
        """The weight as the graph sees it: not at all where its gradient comes later."""
        if self.delay_wgrad_compute and (wants[0] or wants[2]):
            return weight.detach()  # so that its hooks wait for backward_dw
        if wants[1] and not self.delay_wgrad_compute and self._reports(weight):
            return _wgrad.reported(weight)
        return weight

    def _reports(self, weight: torch.Tensor) -> bool:
        """Whether the weight gets an empty gradient beside the one in main_grad."""
        return self.fuse_wgrad_accumulation and hasattr(weight, "grad_added_to_main_grad")

    def _lends(
        self, name: str, state: dict[str, torch.Tensor | None], weight: torch.Tensor
    ) -> torch.Tensor:
        """What a call takes besides its operands: of the layer's state, or what it holds."""
        found = state.get(name)
        if found is not None:
            return found
        return weight.main_grad if name == "main_grad" else self._wgrads.handle

    # ---- weight gradients later ------------------------------------------------------------

    def backward_dw(self) -> None:
        """Computes the weight gradient that the oldest backward left for later.

        With ``delay_wgrad_compute=True`` each backward leaves one; each call takes one, in the
        order of the backwards, and adds it to ``weight.grad`` as a backward would (hooks run),
        or to ``weight.main_grad`` with ``fuse_wgrad_accumulation``. The gradients are, bit for
        bit, those that the backward itself would have computed.

        >>> layer = octet.Linear(64, 32, device="cpu", delay_wgrad_compute=True)
        >>> layer(torch.randn(8, 64)).sum().backward()
        >>> layer.weight.grad is None
        True
        >>> layer.backward_dw()
        >>> layer.weight.grad.shape
        torch.Size([32, 64])
        """
        if not self._wgrads.calls:
            why = (
                "no backward has left one since"
                if self.delay_wgrad_compute
                else "make the layer with delay_wgrad_compute=True"
            )
            raise RuntimeError(
                f"{self._label()}: there is no weight gradient to compute: {why}"
            )
        weight, kept = self._whole("weight"), self._wgrads.calls[0]
        if self.fuse_wgrad_accumulation:
            kept.add_to(weight.main_grad)
            if self._reports(weight):
                _wgrad.report(weight)
        else:
            torch.autograd.backward([weight], [kept.gradient()])
        self._wgrads.calls.popleft()

    def extra_repr(self) -> str:
        """What print shows."""
        return (
            f"{self.in_features}, {self.out_features}, bias={self._whole('bias') is not None}"
        )


def _never_compile(function: Callable[..., Any]) -> None:
    """Has Dynamo leave a function and all that it calls alone when it runs: eager code is not
    compiled piece by piece where compiled code around a layer breaks off."""
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)


_never_compile(Linear._run_eagerly)
