"""Linear: y = x w^T + b in FP8 or FP4, one graph node each way."""

import math
from collections.abc import Callable
from typing import Any

import torch
from octet import _custom, _problem, _texts
from octet._dtypes import HIGH_PRECISION, dtype_name
from octet._function import (
    LinearFunction,
    Live,
    operands_by_name,
    run_forward,
    sort_others,
)
from octet._layer_state import LayerState
from octet._state import ACTIVE, Init, Region
from octet.quantizers import Float8CurrentScalingQuantizer, from_text
from octet.recipe import CustomRecipe, DelayedScaling
from octet.tensor import QuantizedTensor


def _refuse(values: dict[str, tuple[Any, Any]]) -> None:
    """Arguments for what is not there: parallelism and delayed wgrad."""
    for name, (value, default) in values.items():
        if value != default:
            raise NotImplementedError(
                f"Linear({name}={value!r}) is not available in this version; leave out {name}"
            )


def _parts(
    split: tuple[str, ...] | list[str] | dict[str, int] | None, rows: int
) -> tuple[tuple[str, int], ...]:
    """The prefix and the rows of each parameter; a single one has no prefix."""
    if split is None:
        return (("", rows),)
    if not isinstance(split, dict):
        if not split or rows % len(split):
            raise ValueError(f"parameters_split: {rows} rows do not split into {len(split)}")
        split = dict.fromkeys(split, rows // len(split))
    if sum(split.values()) != rows:
        raise ValueError(f"parameters_split: {split} does not add up to {rows} rows")
    return tuple((name.rstrip("_") + "_", count) for name, count in split.items())


def _text_of(tensor: torch.Tensor) -> str | None:
    return tensor._text if isinstance(tensor, QuantizedTensor) else None


_NOTHING = Live()


class Linear(LayerState):
    """A linear layer that quantizes by the recipe of the ``octet.autocast`` around it.

    Outside one it computes in the input's dtype. Weight and bias are initialized as
    ``torch.nn.Linear`` does and load to and from it.

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
        _refuse(
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
                "delay_wgrad_compute": (delay_wgrad_compute, False),
                "symmetric_ar_type": (symmetric_ar_type, None),
            }
        )
        dtype = params_dtype or torch.get_default_dtype()
        if dtype not in HIGH_PRECISION:
            raise ValueError(f"params_dtype is {dtype}; it is float32, bfloat16 or float16")
        if (
            device is None
            and torch.get_default_device().type == "cpu"
            and torch.cuda.is_available()
        ):
            device = "cuda"
        self.in_features, self.out_features = in_features, out_features
        self.name = name
        self.return_bias = return_bias and bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.save_original_input = save_original_input
        self.init_method = init_method
        self._parts = _parts(parameters_split, out_features)
        if len(self._parts) > 1 and fuse_wgrad_accumulation:
            raise ValueError(
                "fuse_wgrad_accumulation needs one weight; leave out parameters_split"
            )
        for prefix, rows in self._parts:
            weight = torch.empty(rows, in_features, dtype=dtype, device=device)
            self.register_parameter(f"{prefix}weight", torch.nn.Parameter(weight))
            part = torch.empty(rows, dtype=dtype, device=device) if bias else None
            made = None if part is None else torch.nn.Parameter(part)
            self.register_parameter(f"{prefix}bias", made)
        self._make_state(device)
        self.reset_parameters()
        if ACTIVE.init is not None:
            self._quantize_weight(ACTIVE.init)

    def _whole(self, kind: str) -> torch.Tensor | None:
        """The weight or the bias, as one tensor."""
        if len(self._parts) == 1:
            return getattr(self, self._parts[0][0] + kind)
        parts = [getattr(self, prefix + kind) for prefix, _ in self._parts]
        return None if parts[0] is None else torch.cat(parts)

    def _quantize_weight(self, init: Init) -> None:
        """Stores the weight quantized; delayed scaling's by its own amax, once."""
        if len(self._parts) > 1:
            raise ValueError("a quantized weight is one tensor; leave out parameters_split")
        (name,) = [f"{prefix}weight" for prefix, _ in self._parts]
        plain, recipe = getattr(self, name).detach(), init.recipe
        text = _texts.stored_weight(_custom.stored_text(recipe), dtype_name(plain.dtype))
        if _texts.scheme(text) == "none":
            return
        if _texts.scheme(text) == "fp8-delayed":
            usages = dict(zip(("rowwise", "columnwise"), _texts.usages(text), strict=True))
            element = _texts.element_format(text)
            text = Float8CurrentScalingQuantizer(element, **usages).text
        weight = torch.nn.Parameter(from_text(text).quantize(plain))
        setattr(self, name, weight)
        if init.preserve:
            weight._high_precision_init_val = plain.cpu()

    def reset_parameters(self) -> None:
        """Draws weight and bias again and forgets all state."""
        with torch.no_grad():
            weight, bias = self._whole("weight"), self._whole("bias")
            weight = weight.dequantize() if isinstance(weight, QuantizedTensor) else weight
            if self.init_method is not None:
                self.init_method(weight)
            else:
                torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
            if bias is not None:
                bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
                torch.nn.init.uniform_(bias, -bound, bound)
            self._spread("weight", weight)
            self._spread("bias", bias)
        self.reset_state()

    def _spread(self, kind: str, whole: torch.Tensor | None) -> None:
        """Copies the whole into its parts; a single plain one is it already."""
        at = 0
        for prefix, rows in self._parts:
            part = getattr(self, prefix + kind)
            if whole is not None and part is not whole:
                part.copy_(whole[at : at + rows])
            at += rows

    # ---- the call --------------------------------------------------------------------------

    def _label(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"octet.Linear{name} ({self.in_features} -> {self.out_features})"

    def _recipe(self, region: Region) -> tuple[str, tuple[str, ...], bool]:
        """The active recipe's text, the words it adds, and whether scaling is delayed."""
        recipe = region.recipe
        words = () if region.enabled else ("calibrate",)
        if isinstance(recipe, CustomRecipe):
            return recipe.text_for("linear", self.name or ""), words, False
        if isinstance(recipe, DelayedScaling):
            self._make_room(recipe.text)
        return recipe.text, words, recipe.delayed()

    def _options(
        self,
        weight: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> tuple[str, ...]:
        words: tuple[str, ...] = ()
        if self.return_bias:
            words += ("return_bias",)
        if fp8_output:
            words += ("quantize_output",)
        if fp8_grad:
            words += ("quantize_grad_input",)
        if self.save_original_input:
            words += ("save_original_input",)
        if is_first_microbatch is not None:
            reuse = not is_first_microbatch and self._cache is not None
            words += ("cache=read" if reuse else "cache=write",)
        if self.fuse_wgrad_accumulation and weight.requires_grad:
            words += (
                "main_grad=overwrite" if is_first_microbatch else "main_grad=add",
                f"main_grad_dtype={dtype_name(weight.main_grad.dtype)}",
            )
        return words

    def _checked(self, inp: torch.Tensor) -> torch.Tensor:
        """The input in the dtype that torch.autocast asks for."""
        kind = inp.device.type
        if torch.is_autocast_enabled(kind):
            inp = inp.to(torch.get_autocast_dtype(kind))
        if inp.dtype not in HIGH_PRECISION:
            raise ValueError(
                f"{self._label()}: input is {inp.dtype}; cast it to float32, bfloat16 or "
                "float16"
            )
        if inp.dim() == 0 or inp.shape[-1] != self.in_features:
            raise ValueError(
                f"{self._label()}: input is {tuple(inp.shape)}; its last axis must be "
                f"{self.in_features}"
            )
        return inp

    def _check_recomputation(self, active: bool, delayed: bool) -> None:
        """A forward inside a backward is a checkpoint's: it must do what the first one did."""
        inside = torch._C._current_graph_task_id() != -1
        if inside and delayed:
            raise RuntimeError(
                f"{self._label()} is recomputed in backward, but delayed scaling's scales have "
                "moved since: checkpoint it under another recipe"
            )
        if inside and self.__dict__.get("_was_active", False) and not active:
            raise RuntimeError(
                f"{self._label()} is recomputed in backward outside the autocast it ran in: "
                "enter octet.autocast inside the checkpointed function"
            )
        self.__dict__["_was_active"] = active

    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """y = x w^T + b by the active recipe; with ``return_bias``, the pair (x w^T, b)."""
        inp = self._checked(inp)
        weight, bias = self._whole("weight"), self._whole("bias")
        region = ACTIVE.region
        recipe, options, delayed = "none", (), False
        active = region.enabled or region.calibrating
        if active:
            recipe, options, delayed = self._recipe(region)
        if not torch.compiler.is_compiling():
            self._check_recomputation(active, delayed)
        own = _custom.own_of(region.recipe, self.name) if region.enabled else None
        if own is not None:
            asked = _custom.Asked(is_first_microbatch, fp8_output, fp8_grad)
            return _custom.forward(self, inp, own, asked)
        options += self._options(weight, is_first_microbatch, fp8_output, fp8_grad)
        grad = torch.is_grad_enabled()
        wants = (
            grad and inp.requires_grad,
            grad and weight.requires_grad,
            grad and bias is not None and bias.requires_grad and not self.return_bias,
        )
        operands = (inp, weight, bias)
        call = self._call(operands, recipe, wants, options)
        if call.cache != "none" and not _texts.covers(self._cache._text, call.cache):
            options = tuple("cache=write" if o == "cache=read" else o for o in options)
            call = self._call(operands, recipe, wants, options)
        if call.error:
            raise ValueError(f"{self._label()}: {call.error}")
        live = self._live(call, weight, delayed)
        rule = region.recipe if delayed else None
        if wants[0] or wants[1] or wants[2]:
            output, *others = LinearFunction.apply(
                call.problem, rule, self.out_features, *operands, *live
            )
        else:
            output, others, _ = run_forward(
                call.problem, self.out_features, operands_by_name(*operands, live)
            )
        if call.has_others:
            self._keep(call.problem, others, weight, rule)
        return (output, bias) if self.return_bias else output

    def _call(
        self,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        recipe: str,
        wants: tuple[bool, bool, bool],
        options: tuple[str, ...],
    ) -> _problem.Call:
        inp, weight, bias = operands
        return _problem.call_of(
            (inp.dtype, weight.dtype, None if bias is None else bias.dtype),
            (_text_of(inp), _text_of(weight)),
            recipe,
            wants,
            options,
        )

    def _live(self, call: _problem.Call, weight: torch.Tensor, delayed: bool) -> Live:
        fuses = self.fuse_wgrad_accumulation and weight.requires_grad
        reads = call.cache != "none"
        if not (delayed or fuses or call.rounds or reads):
            return _NOTHING
        return Live(
            random=self.rounding_state if call.rounds else None,
            scale=self.fp8_scale if delayed else None,
            back_scale=self.fp8_grad_scale if delayed else None,
            back_history=self.fp8_grad_amax_history if delayed else None,
            cache=self._cache if reads else None,
            main_grad=weight.main_grad if fuses else None,
        )

    def _keep(
        self,
        problem: str,
        others: list[torch.Tensor],
        weight: torch.Tensor,
        recipe: DelayedScaling | None,
    ) -> None:
        """Takes what a call made besides its output: the cached weight, amaxes."""
        with torch.no_grad():
            amax, cache = sort_others(problem, others, weight)
        if cache is not None:
            self._cache = cache
        if amax is not None:
            self._record(amax, recipe)

    def extra_repr(self) -> str:
        """What print shows."""
        return (
            f"{self.in_features}, {self.out_features}, bias={self._whole('bias') is not None}"
        )
