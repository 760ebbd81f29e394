"""Linear: y = x w^T + b in FP8 or FP4, one graph node each way."""

from collections.abc import Callable
from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.nn.functional import linear as torch_linear

import torch
from octet import _parallel, _texts, _wgrad
from octet._constant import traced_as_constant
from octet._gathering import GATHERING
from octet._linear_eager import EagerLinear
from octet._linear_protos import LinearProtos, Shapes, linear_protos
from octet.proto import TensorProto
from octet.recipe import Recipe
from octet.state import seeds
from octet.state.active import BACKWARD, CONSTANT_WEIGHTS, ENTERED, NOT_ENTERED, current
from octet.state.scaling import scaling_made_late
from torch import is_grad_enabled

SAVES = ("speed", "memory")  # values of `save`: what calls save for backward


def checked_save(label: str, save: str) -> str:
    """Returns `save`; raises if it is not one of SAVES."""
    if save not in SAVES:
        raise ValueError(f"{label}: save is {save!r}; it is one of {', '.join(SAVES)}")
    return save


linear_autograd = torch.ops.octet.linear_autograd.default
linear_seeded = torch.ops.octet.linear_seeded.default


class AnyLinear(EagerLinear):
    """A layer that multiplies by a weight, perhaps after a norm or an activation."""

    _public_name = "Linear"
    _watch: Any = None  # set by octet.stats

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
        ub_overlap_ag: bool | int = False,
        ub_overlap_rs: bool | int = False,
        ub_overlap_rs_dgrad: bool | int = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        save_original_input: bool = False,
        name: str | None = None,
        save: str = "speed",
    ) -> None:
        if "_parameters" not in self.__dict__:
            # not nn.Linear.__init__, which would make parameters
            torch.nn.Module.__init__(self)
        self.name = name
        self.in_features, self.out_features = in_features, out_features
        self._chunks = (
            _parallel.chunks_of("ub_overlap_rs", ub_overlap_rs),
            _parallel.chunks_of("ub_overlap_rs_dgrad", ub_overlap_rs_dgrad),
            _parallel.chunks_of("ub_overlap_ag", ub_overlap_ag),
        )
        _parallel.check_symmetric(symmetric_ar_type)
        # accepted, not needed: collectives of backward overlap with products anyway
        del ub_bulk_dgrad, ub_bulk_wgrad
        del ub_name
        self._split_over_ranks(parallel_mode, tp_group, tp_size, sequence_parallel)
        if self.tp_size > 1:
            self._rng = get_rng_state_tracker, rng_tracker_name
        self.return_bias = return_bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.save_original_input, self._input_is_kept = save_original_input, False
        self.save = checked_save(self._label(), save)
        self.delay_wgrad_compute = delay_wgrad_compute
        self._wgrads = _wgrad.Queue()
        self.init_method = init_method
        if params_dtype is not None and dtype is not None and params_dtype != dtype:
            raise ValueError(
                f"{self._label()}: params_dtype is {params_dtype}, but dtype {dtype}; give one"
            )
        self._make_parameters(parameters_split, bias, params_dtype or dtype, device)

    def _label(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        share = "" if self.tp_size == 1 else f", {self.parallel_mode} over {self.tp_size} ranks"
        sizes = f"{self.in_features} -> {self.out_features}{share}"
        return f"octet.{self._public_name}{name} ({sizes})"

    # ---- the call --------------------------------------------------------------------------

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
        words = self._call(operands, asked.text, options, self._records()).words
        sizes = [*inp.shape[:-1], *self._ends()]
        found = linear_protos(words, Shapes(sizes, inp.dtype, weight.dtype, inp.device))
        found.forward.outputs["output"].requires_grad = (
            any(self._wants(inp, weight, bias)) or self._vectors_want()
        )
        return found

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

        ``is_first_microbatch``: True casts the weight and caches it, False reuses the cached
        one (a weight that has changed since is cast again), None casts at each call.
        ``fp8_output`` and ``fp8_grad`` give output and gradient quantized; outside an autocast
        they are ignored. ``inp`` is another name of ``input``."""
        if input is None:
            input = inp
        if GATHERING.active and self._watch is not None:
            return self._watch.run(self, input, is_first_microbatch, fp8_output, fp8_grad)
        if not is_dynamo_compiling():
            return self._run_or_undo(input, is_first_microbatch, fp8_output, fp8_grad)
        # The fast path of traced calls. A compiler traces every line, for every layer. So one
        # call that is not traced decides all that it can.
        region = ENTERED.value
        if region is None:
            region = NOT_ENTERED.value
        text = region.text
        if (
            text is None
            or is_first_microbatch is not None
            or fp8_output
            or fp8_grad
            or type(input) is not torch.Tensor
            or BACKWARD.value
            or CONSTANT_WEIGHTS.value is not None
        ):
            return self._run(input, is_first_microbatch, fp8_output, fp8_grad)
        parameters, shape = self._parameters, input.shape
        weight, bias = parameters.get("weight"), parameters.get("bias")
        traits = (
            input.dtype,
            input.device,
            input.requires_grad,
            is_grad_enabled(),
            self.training,
        )
        decided = self._decide_in_graph(text, traits, self._made_as)
        kind, columns, k, n, words, takes_bias, seed = decided
        if kind == "more" or shape[-1] != columns:
            return self._run(input, is_first_microbatch, fp8_output, fp8_grad)
        if region.traced:
            self._calls.last = text
        else:
            self._calls.in_graph.value = text
        if kind == "plain":
            return torch_linear(input, weight, bias)
        tensors = [input, weight, bias] if takes_bias else [input, weight]
        if self._prologue is not None:
            tensors.extend(self._vectors())
        sizes = [*shape, n] if columns == k else [*shape[:-1], k, n]
        if kind == "stateless":
            return linear_autograd(tensors, [], sizes, words, seed)[0]
        if kind == "unread seed":
            drawn = seeds.draw_in_graph(input)
            return linear_seeded(tensors, drawn, sizes, words)[0]
        buffers = self._buffers
        try:
            state = buffers["fp8_state"]
        except KeyError:
            raise scaling_made_late(self._label()) from None
        if kind == "reads":
            tensors.append(state)
            return linear_autograd(tensors, [], sizes, words, "")[0]
        written = [state, buffers["fp8_grad_state"]]
        step = region.step
        if step.traced and not step.group and self not in step.updates_in_graph:
            step.updates_in_graph[self] = [(state, text)]
            step.states_in_graph.setdefault((text, traits[1]), []).append(state)
            rule = text
        else:
            rule = self._begin_in_graph(step, text, state) or ""
        return linear_autograd(tensors, written, sizes, words, rule)[0]

    @traced_as_constant
    def _cast_quantizers(self, text: str) -> tuple[str, ...]:
        """The quantizers by which a call casts input, weight and grad_output, rowwise. Users'
        quantizers are not known."""
        if text == "none":
            return ()
        found = [_texts.role_quantizer(text, r) for r in ("input", "weight", "grad_output")]
        return tuple(t if t == "none" else _texts.with_usage(t, True, False) for t in found)

    def _run_or_undo(
        self,
        input: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """An eager call. If it fails, the step it began is taken back."""
        waits = self._pending.waits
        try:
            return self._run_eagerly(input, is_first_microbatch, fp8_output, fp8_grad)
        except BaseException as error:
            if self._pending.waits and not waits:
                self._undo_begin()
            # perhaps raised by an op, which does not know the layer's name
            if isinstance(error, ValueError):
                self._check_again(input)
            if isinstance(error, NotImplementedError) and "forward mode AD" in str(error):
                raise NotImplementedError(
                    f"{self._label()}: a layer that quantizes has no forward-mode derivatives "
                    "(torch.autograd.forward_ad); use torch.autograd.grad, or leave the "
                    "autocast"
                ) from None
            if isinstance(error, RuntimeError) and self.tp_size > 1:  # perhaps torch's own
                self._check_group()
            if isinstance(error, MemoryError):  # raised by an op; users catch torch's own class
                raise torch.OutOfMemoryError(f"{self._label()}: {error}") from None
            raise

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
        weight, queued = self._whole("weight"), self._wgrads.calls[0]
        if self.fuse_wgrad_accumulation:
            queued.add_to(weight.main_grad)
            if self._reports(weight):
                _wgrad.report(weight)
        else:
            torch.autograd.backward([weight], [queued.gradient()])
        self._wgrads.calls.popleft()

    def extra_repr(self) -> str:
        """What print shows."""
        saves = f", save={self.save!r}" if self.save != "speed" else ""
        has_bias = self._whole("bias") is not None
        return f"{self.in_features}, {self.out_features}, bias={has_bias}{saves}"


class Linear(AnyLinear, torch.nn.Linear):
    """y = x w^T + b, quantized by the recipe of the ``octet.autocast`` around the call.

    Outside of an autocast it computes what ``torch.nn.Linear`` computes. It is a subclass of
    ``nn.Linear``, with the same parameters and initialization.

    ``params_dtype`` (or ``dtype``) is the dtype of the parameters, by default torch's. Without
    ``device`` they are on the current GPU if there is one, else on the CPU. With
    ``return_bias=True`` the bias is returned beside the output and not added.

    With ``parallel_mode`` ("column" or "row") and ``tp_group`` each rank of the group holds a
    part of the layer, and ``in_features`` and ``out_features`` are those of the part: see
    docs/parallel.md.

    With ``fuse_wgrad_accumulation=True`` backward adds the weight's gradient to
    ``weight.main_grad``, and the bias's to ``bias.main_grad`` if there is one. The first
    microbatch overwrites both.

    ``save="memory"`` needs less memory: it saves the weight itself, not a cast copy of it, and
    backward casts it again. The results have the same bits.

    A call that ``torch.utils.checkpoint`` repeats uses the recipe and the scales of its first
    run. In compiled code, keep layers under delayed scaling out of checkpoints; docs/state.md
    has all rules.

    >>> layer = octet.Linear(64, 32, device="cpu")
    >>> with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
    ...     layer(torch.randn(8, 64)).shape
    torch.Size([8, 32])
    """
