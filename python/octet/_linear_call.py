"""Describes a call of a Linear to the C core: checks it and collects its options."""

import sys
from typing import Any

from torch._C import _is_any_autocast_enabled
from torch.compiler import is_compiling

import torch
from octet import _foreign, _sharded, _texts, _wgrad
from octet._constant import constant, traced_as_constant
from octet._dtypes import HIGH_PRECISION, dtype_name
from octet._prologue import Prologue
from octet._share import Share
from octet._signatures import (
    CALIBRATE,
    READ_CACHE,
    WRITE_CACHE,
    Call,
    Dtypes,
    Options,
    call_of,
    chunk_multiple,
    device_options,
    draws_with_graph,
    row_multiple,
)
from octet.proto import TensorProto
from octet.state.recompute import CallRecipe
from octet.tensor import QuantizedTensor, as_dtype
from torch import is_grad_enabled


@constant
def _is_high_precision(dtype: torch.dtype) -> bool:
    return dtype in HIGH_PRECISION


def text_of(tensor: torch.Tensor | TensorProto) -> str | None:
    """The text of a quantized tensor's quantizer; None for a plain tensor."""
    return tensor._text if isinstance(tensor, QuantizedTensor | TensorProto) else None


# The attributes that decide how calls run. They are compared at each call.
_MADE_AS = (
    "in_features",
    "out_features",
    "return_bias",
    "fuse_wgrad_accumulation",
    "save_original_input",
    "save",
    "_input_is_kept",
    "delay_wgrad_compute",
    "tp_size",
    "sequence_parallel",
    # Of layers that begin with a norm or an activation:
    "normalization",
    "eps",
    "zero_centered_gamma",
    "return_layernorm_output",
    "activation",
)


class LinearCall(Share):
    """A linear layer's calls, before anything runs."""

    return_bias: bool
    save_original_input: bool
    save: str  # "speed" or "memory"
    _input_is_kept: bool = False  # whoever made the input holds it until backward
    delay_wgrad_compute: bool
    _wgrads: _wgrad.Queue
    # the attributes above as one text: one comparison, and one guard in compiled code
    _made_as: str
    _is_usual: bool  # whether a call without a recipe is the same as nn.Linear's
    _prologue: Prologue | None = None  # norm or activation before the product

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Sets an attribute, and updates what is derived from it."""
        super().__setattr__(name, value)
        if name in _MADE_AS:
            own = self.__dict__
            own["_made_as"] = " ".join(str(own.get(each)) for each in _MADE_AS)
            more = ("return_bias", "fuse_wgrad_accumulation", "delay_wgrad_compute")
            own["_prologue"] = found = self._find_prologue()
            usual = self.tp_size == 1 and found is None
            own["_is_usual"] = usual and not any(own.get(each) for each in more)
        elif name == _foreign.INITIALIZED and value:
            _foreign.draw_what_is_left(self)
        elif _sharded.FSDP_PARAM in sys.modules and name in self._parameters:
            _sharded.adopt_hook(self)

    # ---- a prologue ------------------------------------------------------------------------

    def _find_prologue(self) -> Prologue | None:
        """The norm or activation of calls, from the present attributes; None if there is
        none."""
        return None

    def _norm_or_act(self) -> str:
        """The name of the norm or activation, for messages."""
        return "a norm" if self._prologue is None else self._prologue.word

    def _vectors(self) -> list[torch.Tensor]:
        """The parameters of the norm: gamma, and beta if there is one."""
        if self._prologue is None:
            return []
        parameters = self._parameters
        found = []
        for name in self._prologue.vectors:
            held = parameters.get(name)
            found.append(getattr(self, name) if held is None else held)
        return found

    def _vectors_want(self) -> bool:
        """Whether gamma or beta gets a gradient."""
        return is_grad_enabled() and any(vector.requires_grad for vector in self._vectors())

    def _prologue_options(self) -> Options:
        """The options for the norm or activation."""
        if self._prologue is None:
            return ()
        options = self._prologue_words(self._made_as)
        names = ("gamma_requires_grad", "beta_requires_grad")
        for name, vector in zip(names, self._vectors(), strict=False):
            if is_grad_enabled() and vector.requires_grad:
                options += ((name, True),)
        return options

    @traced_as_constant
    def _prologue_words(self, made_as: str) -> Options:
        """The function itself. With dynamic=True a compiler would make a symbol of eps, which
        no text can hold; `made_as` has it, too, and is guarded on."""
        del made_as
        return () if self._prologue is None else self._prologue.options

    def _dtypes(
        self, dtype: torch.dtype, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Dtypes:
        """The dtypes of a call's operands, for an input of this dtype."""
        usual = (dtype, weight.dtype, None if bias is None else bias.dtype)
        vectors = self._vectors()
        if not vectors:
            return usual
        beta = vectors[1].dtype if len(vectors) > 1 else None
        return (*usual, vectors[0].dtype, beta)

    def _columns(self) -> int:
        """How many columns the input must have."""
        factor = 1 if self._prologue is None else self._prologue.factor
        return self._shape()[1] * factor

    def _ends(self) -> tuple[int, int]:
        """K and N, the last two of a call's sizes."""
        rows, columns = self._shape()
        return columns, rows

    # ---- checks ----------------------------------------------------------------------------

    def _checked(self, inp: torch.Tensor | TensorProto) -> Any:  # noqa: ANN401
        """Checks the input, and casts it if torch.autocast is active."""
        if not isinstance(inp, torch.Tensor | TensorProto):
            raise TypeError(f"{self._label()}: input is a {type(inp).__name__}, not a tensor")
        if not _is_high_precision(inp.dtype):
            raise ValueError(
                f"{self._label()}: input is {inp.dtype}; cast it to float32, bfloat16 or "
                "float16"
            )
        shape = inp.shape
        if not shape or shape[-1] != self._columns():
            raise ValueError(
                f"{self._label()}: input is {tuple(shape)}; its last axis must be "
                f"{self._columns()}"
            )
        if _is_any_autocast_enabled() and torch.is_autocast_enabled(inp.device.type):
            dtype = torch.get_autocast_dtype(inp.device.type)
            return as_dtype(inp, dtype) if isinstance(inp, QuantizedTensor) else inp.to(dtype)
        return inp

    def _check_parameters(
        self, device: torch.device, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """Checks shape, device and dtype of weight, bias and the norm's parameters."""
        shape = self._shape()
        held = [("weight", weight, shape), ("bias", bias, shape[:1])]
        if self._prologue is not None:
            vectors = zip(self._prologue.vectors, self._vectors(), strict=True)
            held.extend((name, vector, shape[1:]) for name, vector in vectors)
        for name, found, wanted in held:
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

    def _check_again(self, inp: Any) -> None:  # noqa: ANN401
        """Runs _check_parameters after an op refused a call: the op's message does not name the
        layer."""
        if isinstance(inp, torch.Tensor):
            self._check_parameters(inp.device, self._whole("weight"), self._whole("bias"))

    @traced_as_constant
    def _check_in_graph(self) -> bool:
        """Runs _check_parameters during tracing, as a constant of the graph."""
        weight = self._whole("weight")
        self._check_parameters(weight.device, weight, self._whole("bias"))
        return True

    # ---- options ---------------------------------------------------------------------------

    @traced_as_constant
    def _is_sharded(self) -> bool:
        """Whether fully_shard holds the parameters. This does not change after the first call,
        so traced code may take it as a constant."""
        return _sharded.is_sharded(self._load_state_dict_post_hooks)

    def _gives_gradients_elsewhere(self) -> bool:
        """Whether the weight's gradient is not to be found in weight.grad."""
        if self.fuse_wgrad_accumulation or self.delay_wgrad_compute:
            return True
        return _sharded.is_sharded(self._load_state_dict_post_hooks)

    def _returns_bias(self) -> bool:
        """Whether the layer returns its bias instead of adding it."""
        return self.return_bias and getattr(self, f"{self._parts[0][0]}bias") is not None

    def _main_grad(self, weight: torch.Tensor, name: str = "weight") -> torch.Tensor:
        """The checked main_grad, to which backward adds the gradient."""
        found = getattr(weight, "main_grad", None)
        if not isinstance(found, torch.Tensor):
            given = "there is none" if found is None else f"it is a {type(found).__name__}"
        elif found.shape != weight.shape or not _is_high_precision(found.dtype):
            given = f"it is {tuple(found.shape)} of {found.dtype}"
        elif found.device != weight.device:
            given = f"it is on {found.device}, the {name} on {weight.device}"
        elif not found.is_contiguous():
            given = "it is not contiguous"
        else:
            return found
        raise ValueError(
            f"{self._label()}: fuse_wgrad_accumulation adds to {name}.main_grad, but {given}; "
            f"make it a contiguous tensor {tuple(weight.shape)} of float32, bfloat16 or float16"
        )

    def _main_grad_options(self, weight: torch.Tensor, is_first: bool | None) -> Options:
        """What backward does to main_grad: overwrite it (for the first microbatch, or if the
        weight has ``overwrite_main_grad``) or add to it."""
        overwrites = is_first or getattr(weight, "overwrite_main_grad", False)
        return (
            ("main_grad", "overwrite" if overwrites else "add"),
            ("main_grad_dtype", dtype_name(self._main_grad(weight).dtype)),
        )

    def _bias_main_grad_options(self, is_first: bool | None) -> Options:
        """The same for a bias that has a main_grad. A bias without one gets an ordinary
        gradient."""
        bias = self._whole("bias")
        if bias is None or not bias.requires_grad or self.return_bias:
            return ()
        if getattr(bias, "main_grad", None) is None:
            return ()
        overwrites = is_first or getattr(bias, "overwrite_main_grad", False)
        return (
            ("bias_main_grad", "overwrite" if overwrites else "add"),
            ("bias_main_grad_dtype", dtype_name(self._main_grad(bias, "bias").dtype)),
        )

    def _saving_options(self, recipe: str) -> Options:
        """The options for what calls save for backward."""
        options: Options = ()
        # Under delayed scaling backward could not repeat the cast: the scale has moved.
        kept = self.save == "memory" and self._input_is_kept
        kept = kept and not recipe.startswith(("delayed", "none"))
        if self.save_original_input or kept:
            options += (("save_original_input", True),)
        if self.save != "speed":
            options += (("save", self.save),)
            # One that is parametrized is made for each call; one in parts is joined again.
            if any(self._parameters.get(name) is None for name in self._weight_names()):
                options += (("temporary_weight", True),)
        return options

    def _options(
        self,
        recipe: CallRecipe,
        weight: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Options:
        """All options of a call."""
        options = recipe.options
        quantizes = recipe.text != "none" and not options
        options += self._prologue_options() + self._parallel_options + _sharded.options(self)
        if self._returns_bias():
            options += (("return_bias", True),)
        if fp8_output and quantizes:
            options += (("quantize_output", True),)
        if fp8_grad and quantizes:
            options += (("quantize_grad_input", True),)
        options += self._saving_options(recipe.text)
        if self.delay_wgrad_compute:
            options += (("delay_wgrad", True),)
        if quantizes:
            options += self._cache_options(is_first_microbatch, recipe.rule is not None)
        if self.fuse_wgrad_accumulation and weight.requires_grad:
            options += self._main_grad_options(weight, is_first_microbatch)
        if self.fuse_wgrad_accumulation:
            options += self._bias_main_grad_options(is_first_microbatch)
        return options

    def _wants(
        self,
        inp: torch.Tensor | TensorProto,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> tuple[bool, bool, bool]:
        """Which of input, weight and bias get a gradient."""
        grad = is_grad_enabled()
        return (
            grad and inp.requires_grad,
            grad and weight.requires_grad,
            grad and bias is not None and bias.requires_grad and not self.return_bias,
        )

    def _in_graph(self, weight: torch.Tensor, wants: tuple[bool, bool, bool]) -> torch.Tensor:
        """The weight as autograd sees it. If its gradient is computed later, autograd does not
        see it."""
        others = wants[0] or wants[2] or self._vectors_want()
        if self.delay_wgrad_compute and others:
            return weight.detach()  # its hooks run in backward_dw
        if wants[1] and not self.delay_wgrad_compute and self._reports(weight):
            return _wgrad.reported(weight)
        return weight

    def _reports(self, weight: torch.Tensor) -> bool:
        """Whether the weight gets an empty gradient besides the one in main_grad."""
        return self.fuse_wgrad_accumulation and hasattr(weight, "grad_added_to_main_grad")

    def _extra_tensor(
        self, name: str, state: dict[str, torch.Tensor | None], weight: torch.Tensor
    ) -> torch.Tensor:
        """A tensor that a call takes besides its operands: from the layer's state, or a
        main_grad."""
        found = state.get(name)
        if found is not None:
            return found
        if name == "bias_main_grad":
            return self._whole("bias").main_grad
        return weight.main_grad if name == "main_grad" else self._wgrads.handle

    # ---- the call --------------------------------------------------------------------------

    def _call(
        self,
        operands: tuple[torch.Tensor | TensorProto, torch.Tensor, torch.Tensor | None],
        recipe: str,
        options: Options,
        records: bool,
    ) -> Call:
        """Describes the call; raises if the C core refuses it. If the cached weight lacks a
        direction, it is cast again. Traced code does that for this call alone, since it may not
        replace tensors that it guards on."""
        inp, weight, bias = operands
        self._check_parameters(inp.device, weight, bias)
        wants = self._wants(inp, weight, bias)
        dtypes = self._dtypes(inp.dtype, weight, bias)
        texts = (text_of(inp), text_of(weight))
        if self.sequence_parallel:
            asked = call_of(dtypes, texts, recipe, wants, options, False)
            options += self._gather_options(asked.words, inp.shape)
        options += device_options(inp.device.type, inp.device.index)
        call = call_of(dtypes, texts, recipe, wants, options, records)
        if call.cache != "none" and not _texts.covers(self._weight_cache.text, call.cache):
            if is_compiling():  # do not replace the cache: its memory is guarded
                options = tuple(o for o in options if o != READ_CACHE)
            else:
                options = tuple(WRITE_CACHE if o == READ_CACHE else o for o in options)
            call = call_of(dtypes, texts, recipe, wants, options, records)
        if call.error:
            raise ValueError(f"{self._label()}: {call.error}")
        if self._chunks != (1, 1, 1) and self.sequence_parallel:
            self._check_chunks(call.words, inp.shape)
        return call

    def _check_chunks(self, words: str, shape: Any) -> None:  # noqa: ANN401
        """Raises if the columns to scatter or the rows to gather do not divide into the
        chunks."""
        row = self.parallel_mode == "row"
        columns = self.out_features if row else self.in_features
        multiple = chunk_multiple(words, not row)
        if columns % multiple:
            raise ValueError(
                f"{self._label()}: {'out' if row else 'in'}_features is {columns}, but a "
                f"product in {self._chunks[0 if row else 1]} chunks has a multiple of "
                f"{multiple} columns: give {'ub_overlap_rs' if row else 'ub_overlap_rs_dgrad'} "
                "fewer chunks, or leave it out"
            )
        rows, multiple = 1, chunk_multiple(words, row)
        for size in shape[:-1]:
            rows = rows * size
        if multiple > 1 and rows % multiple:
            raise ValueError(
                f"{self._label()}: input is {tuple(shape)}, {rows} rows, but what "
                f"{self.tp_size} ranks gather in {self._chunks[2]} chunks has a multiple of "
                f"{multiple} rows: give ub_overlap_ag fewer chunks, leave it out, or pad the "
                "input"
            )

    def _gather_options(self, words: str, shape: Any) -> Options:  # noqa: ANN401
        """Whether ranks gather quantized bytes or, if a rank's rows are not whole blocks of the
        format, the tensor itself."""
        ranks, rows = self.tp_size, 1
        if len(shape) < 2 or (self.parallel_mode == "row" and shape[0] % ranks):
            raise ValueError(
                f"{self._label()}: input is {tuple(shape)}; sequence_parallel shares its first "
                f"axis among {ranks} ranks, so it has one, a multiple of {ranks}: pad it"
            )
        multiple = row_multiple(words) if words else 1
        for size in shape[:-1]:
            rows = rows * size
        if multiple > 1 and rows % multiple:
            return (("gather", "high_precision"),)
        return ()

    def _draws(
        self,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        recipe: str,
        options: Options,
        call: Call,
    ) -> bool:
        """Whether a call draws a seed. In train() a call without a graph may draw one that it
        does not read. The reason: a reentrant checkpoint runs it again with a graph, and
        restores the generator to its state of now. So the generator must advance here, as for
        dropout. The same under inference_mode, which compiled code cannot tell from no_grad."""
        if "seed" in call.tensors:
            return True
        if is_grad_enabled() or not self.training:
            return False
        if CALIBRATE in options:
            return False
        inp, weight, bias = operands
        dtypes = self._dtypes(inp.dtype, weight, bias)
        texts = (text_of(inp), text_of(weight))
        options += device_options(inp.device.type, inp.device.index)
        return draws_with_graph(dtypes, texts, recipe, options)

    def _is_plain(
        self,
        recipe: CallRecipe,
        inp: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> bool:
        """Whether the call is an ordinary nn.Linear call: nothing is quantized, and no option
        is used that nn.Linear does not have. Then all derivatives and transforms work."""
        if recipe.text != "none" or self.fuse_wgrad_accumulation or self.delay_wgrad_compute:
            return False
        if self.tp_size > 1:
            return False
        if isinstance(inp, QuantizedTensor) or isinstance(weight, QuantizedTensor):
            return False
        if not _is_high_precision(inp.dtype) or not _is_high_precision(weight.dtype):
            return False
        if _is_any_autocast_enabled() and torch.is_autocast_enabled(inp.device.type):
            return True
        return inp.dtype == weight.dtype and (bias is None or bias.dtype == weight.dtype)
