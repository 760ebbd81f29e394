"""What a call of a Linear is asked: checked, and told to the C core."""

from typing import Any

from torch._C import _is_any_autocast_enabled
from torch.compiler import is_compiling

import torch
from octet import _sharded, _texts, _wgrad
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
from torch import is_grad_enabled, is_inference_mode_enabled


@constant
def _is_high_precision(dtype: torch.dtype) -> bool:
    return dtype in HIGH_PRECISION


def text_of(tensor: torch.Tensor | TensorProto) -> str | None:
    """The quantizer of a quantized tensor; None of a plain one."""
    return tensor._text if isinstance(tensor, QuantizedTensor | TensorProto) else None


# What a layer was made as. It decides how calls run, so it is compared at each of them.
_MADE_AS = (
    "in_features",
    "out_features",
    "return_bias",
    "fuse_wgrad_accumulation",
    "save_original_input",
    "save",
    "delay_wgrad_compute",
    "tp_size",
    "sequence_parallel",
    # Of those that begin with a norm or an activation:
    "normalization",
    "eps",
    "zero_centered_gamma",
    "return_layernorm_output",
    "activation",
)


class LinearCall(Share):
    """A linear layer's calls, as far as nothing runs."""

    return_bias: bool
    save_original_input: bool
    save: str  # "speed" or "memory"
    delay_wgrad_compute: bool
    _wgrads: _wgrad.Queue
    _made_as: str  # all of it in one text: one comparison, and one guard of compiled code
    _is_usual: bool  # a call without a recipe is nn.Linear's
    _prologue: Prologue | None = None  # what calls do to the input first

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Sets an attribute."""
        super().__setattr__(name, value)
        if name in _MADE_AS:
            own = self.__dict__
            own["_made_as"] = " ".join(str(own.get(each)) for each in _MADE_AS)
            more = ("return_bias", "fuse_wgrad_accumulation", "delay_wgrad_compute")
            own["_prologue"] = found = self._find_prologue()
            usual = self.tp_size == 1 and found is None
            own["_is_usual"] = usual and not any(own.get(each) for each in more)

    # ---- a prologue ------------------------------------------------------------------------

    def _find_prologue(self) -> Prologue | None:
        """What calls do to the input first, by the layer's attributes as they are now."""
        return None

    def _norm_or_act(self) -> str:
        """The function that calls apply first, in words."""
        return "a norm" if self._prologue is None else self._prologue.word

    def _vectors(self) -> list[torch.Tensor]:
        """The parameters of a norm: gamma, and beta where there is one."""
        if self._prologue is None:
            return []
        parameters = self._parameters
        found = []
        for name in self._prologue.vectors:
            held = parameters.get(name)
            found.append(getattr(self, name) if held is None else held)
        return found

    def _vectors_want(self) -> bool:
        """Whether any of them gets a gradient."""
        return is_grad_enabled() and any(vector.requires_grad for vector in self._vectors())

    def _prologue_options(self) -> Options:
        """What the C core is told of the function, and of its parameters."""
        if self._prologue is None:
            return ()
        options = self._prologue.options
        names = ("gamma_requires_grad", "beta_requires_grad")
        for name, vector in zip(names, self._vectors(), strict=False):
            if is_grad_enabled() and vector.requires_grad:
                options += ((name, True),)
        return options

    def _dtypes(
        self, dtype: torch.dtype, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Dtypes:
        """Those of a call whose input is of that dtype."""
        usual = (dtype, weight.dtype, None if bias is None else bias.dtype)
        vectors = self._vectors()
        if not vectors:
            return usual
        beta = vectors[1].dtype if len(vectors) > 1 else None
        return (*usual, vectors[0].dtype, beta)

    def _columns(self) -> int:
        """The input's columns."""
        factor = 1 if self._prologue is None else self._prologue.factor
        return self._shape()[1] * factor

    def _ends(self) -> tuple[int, int]:
        """K and N of a call: the last of its sizes."""
        rows, columns = self._shape()
        return columns, rows

    # ---- checks ----------------------------------------------------------------------------

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
        """Weight, bias and a norm's parameters have the shapes that the layer says, are where
        the input is, and are of dtypes that are multiplied."""
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
        """_check_parameters after an op has refused a call: the op does not know the layer."""
        if isinstance(inp, torch.Tensor):
            self._check_parameters(inp.device, self._whole("weight"), self._whole("bias"))

    @traced_as_constant
    def _check_in_graph(self) -> bool:
        """_check_parameters while code is traced; a compiler sees one constant."""
        weight = self._whole("weight")
        self._check_parameters(weight.device, weight, self._whole("bias"))
        return True

    # ---- options ---------------------------------------------------------------------------

    @traced_as_constant
    def _is_sharded(self) -> bool:
        """Whether fully_shard holds the parameters. It does or does not from the first call
        on, so traced code may take it for a constant."""
        return _sharded.is_sharded(self._load_state_dict_post_hooks)

    def _returns_bias(self) -> bool:
        """Whether there is a bias that is not added."""
        return self.return_bias and getattr(self, f"{self._parts[0][0]}bias") is not None

    def _main_grad(self, weight: torch.Tensor, name: str = "weight") -> torch.Tensor:
        """What backward adds the gradient of the weight, or of the bias, to."""
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
        """What backward does to main_grad: the first microbatch overwrites it, as
        does every one where the weight says ``overwrite_main_grad``."""
        overwrites = is_first or getattr(weight, "overwrite_main_grad", False)
        return (
            ("main_grad", "overwrite" if overwrites else "add"),
            ("main_grad_dtype", dtype_name(self._main_grad(weight).dtype)),
        )

    def _bias_main_grad_options(self, is_first: bool | None) -> Options:
        """The same of a bias that has a main_grad; one that has none gets a gradient."""
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

    def _saving_options(self) -> Options:
        """What the C core is told of what calls are to save."""
        options: Options = ()
        if self.save_original_input:
            options += (("save_original_input", True),)
        if self.save != "speed":
            options += (("save", self.save),)
            # One that is joined, or parametrized, is made for each call.
            if len(self._parts) > 1 or self._parameters.get("weight") is None:
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
        options = recipe.options
        quantizes = recipe.text != "none" and not options
        options += self._prologue_options() + self._parallel_options + _sharded.options(self)
        if self._returns_bias():
            options += (("return_bias", True),)
        if fp8_output and quantizes:
            options += (("quantize_output", True),)
        if fp8_grad and quantizes:
            options += (("quantize_grad_input", True),)
        options += self._saving_options()
        if self.delay_wgrad_compute:
            options += (("delay_wgrad", True),)
        if quantizes:
            options += self._cache_options(is_first_microbatch)
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
        """Which of the three get a gradient."""
        grad = is_grad_enabled()
        return (
            grad and inp.requires_grad,
            grad and weight.requires_grad,
            grad and bias is not None and bias.requires_grad and not self.return_bias,
        )

    def _in_graph(self, weight: torch.Tensor, wants: tuple[bool, bool, bool]) -> torch.Tensor:
        """The weight as the graph sees it: not at all where its gradient comes later."""
        others = wants[0] or wants[2] or self._vectors_want()
        if self.delay_wgrad_compute and others:
            return weight.detach()  # so that its hooks wait for backward_dw
        if wants[1] and not self.delay_wgrad_compute and self._reports(weight):
            return _wgrad.reported(weight)
        return weight

    def _reports(self, weight: torch.Tensor) -> bool:
        """Whether the weight gets an empty gradient beside the one in main_grad."""
        return self.fuse_wgrad_accumulation and hasattr(weight, "grad_added_to_main_grad")

    def _extra_tensor(
        self, name: str, state: dict[str, torch.Tensor | None], weight: torch.Tensor
    ) -> torch.Tensor:
        """What a call takes besides its operands: of the layer's state, or what it holds."""
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
        """The call, if the C core has nothing against it. A cached weight that lacks a
        direction is cast again: by traced code for this call alone, which may not replace what
        it is guarded on."""
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
            if is_compiling():  # for this call alone: other memory would be a guard that fails
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
        """The product that is scattered has columns for its chunks, and what is gathered has
        rows for its own."""
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
        """What ranks gather: quantized bytes, or the tensor itself where a rank's rows are not
        whole blocks of the format."""
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
        """Whether a call draws a seed. One without a graph may draw one that it does not read:
        a reentrant checkpoint runs it again, then with a seed, from the state that torch's
        generator has now. So the generator has to move on here, as it does for dropout."""
        if "seed" in call.tensors:
            return True
        if is_grad_enabled() or is_inference_mode_enabled() or not self.training:
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
        """Whether a call has nothing to quantize and nothing that nn.Linear does not have, so
        that it is nn.Linear's: with all its derivatives and transforms."""
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
