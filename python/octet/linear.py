"""Linear: y = x w^T + b in FP8 or FP4, one graph node each way."""

from collections.abc import Callable, Sequence
from typing import Any

from torch._C import (
    _are_functorch_transforms_active,
    _current_graph_task_id,
    _is_any_autocast_enabled,
)
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Parameter

import torch
from octet import _custom, _kept_weight, _texts, _wgrad
from octet._constant import constant
from octet._delayed import rule_of
from octet._dtypes import HIGH_PRECISION, dtype_name
from octet._function import LinearFunction, apply_eagerly, run_forward
from octet._linear_protos import LinearProtos, Shapes, linear_protos
from octet._memo import Memo, key_of
from octet._parameters import Parameters, refuse
from octet._problem import (
    Call,
    backward_signature,
    call_of,
    device_words,
    forward_signature,
)
from octet._recompute import Said
from octet._state import current
from octet.proto import TensorProto
from octet.recipe import CustomRecipe, DelayedScaling, Recipe
from octet.tensor import QuantizedTensor
from torch import is_grad_enabled

_NOTHING = Said("none")


@constant
def _said(recipe: str, words: tuple[str, ...], rule: str | None) -> Said:
    return Said(recipe, words, rule)


@constant
def _is_high_precision(dtype: torch.dtype) -> bool:
    return dtype in HIGH_PRECISION


def _text_of(tensor: torch.Tensor | TensorProto) -> str | None:
    return tensor._text if isinstance(tensor, QuantizedTensor | TensorProto) else None


class Linear(Parameters):
    """A linear layer that quantizes by the recipe of the ``octet.autocast`` around it.

    Outside one it computes in the input's dtype. Weight and bias are initialized as
    ``torch.nn.Linear`` does and load to and from it.

    ``torch.utils.checkpoint`` recomputes what the first run computed, whichever autocast is
    active by then, under delayed scaling by the scales it had. Not so in compiled code: the
    autocast belongs around a checkpoint that is compiled with the rest, and inside compiled
    code that a checkpoint runs; delayed scaling's layers belong outside of both.

    >>> layer = octet.Linear(64, 32, device="cpu")
    >>> with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
    ...     layer(torch.randn(8, 64)).shape
    torch.Size([8, 32])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
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
        super().__init__()
        refuse(
            {
                "sequence_parallel": (sequence_parallel, False),
                "tp_group": (tp_group, None),
                "tp_size": (tp_size, 1),
                "get_rng_state_tracker": (get_rng_state_tracker, None),
                "rng_tracker_name": (rng_tracker_name, None),
                "parallel_mode": (parallel_mode, None),
                "ub_overlap_ag": (ub_overlap_ag, False),
                "ub_overlap_rs": (ub_overlap_rs, False),
                "ub_overlap_rs_dgrad": (ub_overlap_rs_dgrad, False),
                "ub_bulk_dgrad": (ub_bulk_dgrad, False),
                "ub_bulk_wgrad": (ub_bulk_wgrad, False),
                "ub_name": (ub_name, None),
                "symmetric_ar_type": (symmetric_ar_type, None),
            }
        )
        self.in_features, self.out_features = in_features, out_features
        self.name = name
        self.return_bias = return_bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.save_original_input = save_original_input
        self.delay_wgrad_compute = delay_wgrad_compute
        self._wgrads = _wgrad.Queue()
        self.init_method = init_method
        self._make_parameters(parameters_split, bias, params_dtype, device)

    # ---- the call --------------------------------------------------------------------------

    def _label(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"octet.Linear{name} ({self.in_features} -> {self.out_features})"

    def _said(self, recipe: Recipe | None, enabled: bool) -> Said:
        """What a recipe says to this layer."""
        words = () if enabled else ("calibrate",)
        if isinstance(recipe, CustomRecipe):
            answers = recipe.answers("linear", self.name or "")
            has_own = enabled and not all(q._is_core for q in answers.values())
            text = recipe.text_of(answers)
            return Said(text, words, None, recipe if has_own else None)
        rule = rule_of(recipe) if isinstance(recipe, DelayedScaling) else None
        if isinstance(rule, DelayedScaling):
            return Said(recipe.text, words, rule)
        return _said(recipe.text, words, rule)

    def _active(self) -> Said:
        """What the active autocast says to this layer."""
        region = current()
        if region.enabled or region.calibrating:
            return self._said(region.recipe, region.enabled)
        return _NOTHING

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

    def _options(
        self,
        weight: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> tuple[str, ...]:
        words: tuple[str, ...] = ()
        if self._hands_bias_back():
            words += ("return_bias",)
        if fp8_output:
            words += ("quantize_output",)
        if fp8_grad:
            words += ("quantize_grad_input",)
        if self.save_original_input:
            words += ("save_original_input",)
        if self.delay_wgrad_compute:
            words += ("delay_wgrad",)
        if is_first_microbatch is not None:
            reuse = not is_first_microbatch and self._cache is not None
            words += ("cache=read" if reuse else "cache=write",)
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
            return inp.to(torch.get_autocast_dtype(inp.device.type))
        return inp

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

    def _where(
        self,
        inp: torch.Tensor | TensorProto,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> tuple[str, ...]:
        """The words for the device that a call runs on, where its operands are all there."""
        device = inp.device
        for name, found in (("weight", weight), ("bias", bias)):
            if found is None:
                continue
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
        return device_words(device.type, device.index)

    def _call(
        self,
        operands: tuple[torch.Tensor | TensorProto, torch.Tensor, torch.Tensor | None],
        recipe: str,
        wants: tuple[bool, bool, bool],
        options: tuple[str, ...],
    ) -> Call:
        """The call, where there is nothing against it; a cache that does not serve is made."""
        inp, weight, bias = operands
        dtypes = (inp.dtype, weight.dtype, None if bias is None else bias.dtype)
        texts = (_text_of(inp), _text_of(weight))
        options += self._where(inp, weight, bias)
        call = call_of(dtypes, texts, recipe, wants, options)
        if call.cache != "none" and not _texts.covers(self._cache._text, call.cache):
            options = tuple("cache=write" if o == "cache=read" else o for o in options)
            call = call_of(dtypes, texts, recipe, wants, options)
        if call.error:
            raise ValueError(f"{self._label()}: {call.error}")
        return call

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
        said = self._active() if recipe is None else self._said(recipe, True)
        if said.custom is not None:
            raise NotImplementedError(
                f"{self._label()}: protos of {said.custom!r}: what a quantize of a user's "
                "makes is not known without data; ask for those of Octet's own quantizers"
            )
        options = self._options(weight, is_first_microbatch, fp8_output, fp8_grad)
        wants = self._wants(inp, weight, bias)
        operands = (inp, weight, bias)
        problem = self._call(operands, said.recipe, wants, said.words + options).problem
        sizes = [*inp.shape, self.out_features]
        found = linear_protos(problem, Shapes(sizes, inp.dtype, weight.dtype, inp.device))
        found.forward.outputs["output"].requires_grad = any(wants)
        return found

    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """y = x w^T + b by the active recipe; with ``return_bias``, the pair (x w^T, b), where
        b is None if there is no bias."""
        if is_dynamo_compiling():
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        waits = self._use.waits
        try:
            return self._run_eagerly(inp, is_first_microbatch, fp8_output, fp8_grad)
        except BaseException as error:
            if self._use.waits and not waits:
                self._unuse()
            if isinstance(error, MemoryError):  # an op's; who waits for torch's gets torch's
                raise torch.OutOfMemoryError(f"{self._label()}: {error}") from None
            raise

    def _run_eagerly(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """What most calls need and no more: one that is like the last one, by all that decides
        it, is not decided again."""
        if _is_any_autocast_enabled():
            inp = self._checked(inp)
        own = self.__dict__
        parameters = own["_parameters"]
        weight = parameters.get("weight")
        if (
            type(weight) is not Parameter
            or type(inp) is not torch.Tensor
            or is_first_microbatch is not None
            or fp8_output
            or fp8_grad
            or "bias" not in parameters
            or _current_graph_task_id() != -1
            or _are_functorch_transforms_active()
        ):
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        bias, log = parameters["bias"], own["_log"]
        key = key_of(own, inp, weight, bias)
        memo = log.memo
        if memo.key != key:
            memo = log.memo = self._memo(key, inp, weight, bias)
        sizes = [*inp.shape, own["out_features"]]
        if not memo.serves or len(sizes) < 2 or sizes[-2] != own["in_features"]:
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        said, task, has_graph = memo.said, memo.task, memo.has_graph
        if said.rule is None:
            rolls = log.note_said(said, has_graph)
        else:
            rolls = self._note(said, has_graph)
        tensors = [inp, weight, bias] if memo.takes_bias else [inp, weight]
        operands = tuple(tensors)
        if memo.state:
            buffers = own["_buffers"]
            for name in memo.state:
                lent = buffers[name]
                tensors.append(lent[:1] if name == "rounding_state" else lent)
        if has_graph:
            return apply_eagerly((task, rolls), sizes, tensors, *operands)
        return run_forward(task, sizes, tensors)[0]

    def _memo(
        self,
        key: tuple[Any, ...],
        inp: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> Memo:
        """What calls like this one need; those that need more are decided one by one."""
        said = None if isinstance(current().recipe, CustomRecipe) else self._active()
        if said is None or inp.dtype not in HIGH_PRECISION or self.return_bias:
            return Memo(key)
        if self.fuse_wgrad_accumulation or self.delay_wgrad_compute or len(self._parts) > 1:
            return Memo(key)
        options = self._options(weight, None, False, False)
        wants = self._wants(inp, weight, bias)
        call = self._call((inp, weight, bias), said.recipe, wants, said.words + options)
        if said.rule is not None:
            self._make_room(said.recipe)
        problem, back = call.problem, None
        if any(wants):
            back = backward_signature(problem, inp.dtype)
        return Memo(key, said, call, (forward_signature(problem), back))

    def _run(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """Any call at all, eager or traced."""
        if not is_compiling() and _are_functorch_transforms_active():
            raise NotImplementedError(
                f"{self._label()}: torch.func's transforms (grad, vmap, jvp, ...) do not reach "
                "into it; use torch.autograd, or leave the layer out of them"
            )
        inp = self._checked(inp)
        again = None if is_compiling() else self._recomputed()
        said = self._active() if again is None else again.said
        if said.custom is not None:
            if again is None:
                self._note_use(said, True)
            asked = _custom.Asked(is_first_microbatch, fp8_output, fp8_grad)
            return _custom.forward(self, inp, said.custom, asked)
        weight, bias = self._whole("weight"), self._whole("bias")
        options = self._options(weight, is_first_microbatch, fp8_output, fp8_grad)
        wants = self._wants(inp, weight, bias)
        call = self._call((inp, weight, bias), said.recipe, wants, said.words + options)
        has_graph = wants[0] or wants[1] or wants[2]
        state, rolls = self._buffers, None
        if again is None:
            if said.rule is not None or not is_compiling():
                rolls = self._note_use(said, has_graph)
        else:
            state, rolls = self._state_again(again)
        tensors = [inp, self._in_graph(weight, wants)]
        if call.takes_bias:
            tensors.append(bias)
        for name in call.tensors:
            tensors.append(self._lends(name, state, weight))
        others: Sequence[torch.Tensor] = ()
        if has_graph:
            output = LinearFunction.apply(call.problem, rolls, self.out_features, *tensors)
            if call.has_others:
                output, *others = output
        else:
            sizes = [*inp.shape, self.out_features]
            task = call.problem, forward_signature(call.problem), None
            output, others, _ = run_forward(task, sizes, tensors)
        if others:
            text = forward_signature(call.problem).others[0].quantizer
            with torch.no_grad():
                _kept_weight.keep(self, list(others), text, bool(is_first_microbatch))
        return (output, bias) if self.return_bias else output

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
        """What a call takes besides its operands: of the layer's state, or what it keeps."""
        found = state.get(name)
        if found is not None:
            return found[:1] if name == "rounding_state" else found
        if name == "cache":
            return self._cache
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
