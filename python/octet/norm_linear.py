"""LayerNormLinear: a norm and the linear layer behind it, one graph node in each direction."""

from collections.abc import Callable
from typing import Any

from torch.compiler import is_dynamo_compiling

import torch
from octet._foreign import over_values
from octet._prologue import NORMS, Prologue, normalized
from octet.linear import AnyLinear
from octet.norms import check_eps


class LayerNormLinear(AnyLinear):
    """y = norm(x) w^T + b, quantized by the recipe of the ``octet.autocast`` around it.

    The norm is computed in float32 and rounded once to the input's dtype; its result is cast
    and multiplied, and never stored in high precision for backward. Outside an autocast torch's
    own functions compute the same. All else is ``octet.Linear``'s.

    ``save="memory"`` saves no bytes of the norm's result: backward casts it again, from the
    input. Gradients are the same, bit for bit; see docs/prologues.md.

    ``return_layernorm_output`` returns the norm's result, too, as the last of a tuple. torch's
    functions compute it then, and the product begins with its cast.

    >>> layer = octet.LayerNormLinear(64, 32, normalization="RMSNorm", device="cpu")
    >>> with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
    ...     layer(torch.randn(8, 64)).shape
    torch.Size([8, 32])
    """

    _public_name = "LayerNormLinear"
    normalization: str
    eps: float
    zero_centered_gamma: bool
    return_layernorm_output: bool

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,  # noqa: ANN401
        tp_size: int = 1,
        get_rng_state_tracker: Callable[..., Any] | None = None,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: tuple[str, ...] | list[str] | dict[str, int] | None = None,
        zero_centered_gamma: bool = False,
        device: torch.device | str | None = None,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool | int = False,
        ub_overlap_rs_dgrad: bool | int = False,
        ub_bulk_wgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        name: str | None = None,
        *,
        save: str = "speed",
    ) -> None:
        torch.nn.Module.__init__(self)
        self.name, self.in_features, self.out_features = name, in_features, out_features
        if normalization not in NORMS:
            raise ValueError(
                f"{self._label()}: normalization is {normalization!r}; it is one of "
                f"{', '.join(NORMS)}"
            )
        check_eps(self._label(), eps)
        self.normalization, self.eps = normalization, eps
        self.zero_centered_gamma = zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        super().__init__(
            in_features,
            out_features,
            sequence_parallel=sequence_parallel,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            tp_group=tp_group,
            tp_size=tp_size,
            get_rng_state_tracker=get_rng_state_tracker,
            init_method=init_method,
            bias=bias,
            return_bias=return_bias,
            params_dtype=params_dtype,
            parallel_mode=parallel_mode,
            parameters_split=parameters_split,
            device=device,
            ub_overlap_ag=ub_overlap_ag,
            ub_overlap_rs=ub_overlap_rs,
            ub_overlap_rs_dgrad=ub_overlap_rs_dgrad,
            ub_bulk_wgrad=ub_bulk_wgrad,
            ub_bulk_dgrad=ub_bulk_dgrad,
            ub_name=ub_name,
            delay_wgrad_compute=delay_wgrad_compute,
            symmetric_ar_type=symmetric_ar_type,
            name=name,
            save=save,
        )

    # ---- the norm --------------------------------------------------------------------------

    def _norm(self) -> Prologue:
        own = self.__dict__
        word = NORMS[own["normalization"]]
        names = ("layer_norm_weight", "layer_norm_bias")
        vectors = names if word == "layernorm" else names[:1]
        return Prologue(word, own["eps"], bool(own["zero_centered_gamma"]), vectors)

    def _find_prologue(self) -> Prologue | None:
        """The norm; None if it is computed separately because its result is returned."""
        own = self.__dict__
        # also True while the attributes are not all set yet
        if own.get("return_layernorm_output", True):
            return None
        return self._norm()

    def _make_vectors(self, dtype: torch.dtype, device: torch.device | str | None) -> None:
        """Makes layer_norm_weight and layer_norm_bias."""
        if self.tp_size > 1 and self.parallel_mode == "row":
            raise ValueError(
                f"{self._label()}: parallel_mode='row' gives each rank some columns of a row, "
                "and a norm needs them all; take 'column', or an octet.RMSNorm or LayerNorm "
                "before an octet.Linear"
            )
        if any(prefix == "layer_norm_" for prefix, _ in self._parts):
            raise ValueError(
                f"{self._label()}: parameters_split names 'layer_norm', which are the norm's "
                "own parameters; take another name"
            )
        gathered = self.return_layernorm_output and self.return_layernorm_output_gathered
        if gathered and self.sequence_parallel:
            raise NotImplementedError(
                f"{self._label()}: return_layernorm_output_gathered is not available under "
                "sequence_parallel: leave it out, and gather the rows that are returned"
            )
        vectors = self._norm().vectors
        for name in ("layer_norm_weight", "layer_norm_bias"):
            made = torch.empty(self.in_features, dtype=dtype, device=device)
            has = name in vectors
            self.register_parameter(name, torch.nn.Parameter(made) if has else None)

    def _mark_parameters(self) -> None:
        """Marks the norm's parameters with ``sequence_parallel``: each rank has the gradients
        of its own rows, and the training code must sum them."""
        super()._mark_parameters()
        for name in self._norm().vectors:
            getattr(self, name).sequence_parallel = self.sequence_parallel

    def reset_parameters(self) -> None:
        """Initializes weight and bias again, resets the norm, resets all state."""
        with torch.no_grad():
            for name in self._norm().vectors:
                self._reset_vector(name)
        super().reset_parameters()

    def _reset_vector(self, name: str) -> None:
        ones = name == "layer_norm_weight" and not self.zero_centered_gamma
        getattr(self, name).fill_(1.0 if ones else 0.0)

    # ---- the call --------------------------------------------------------------------------

    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any:  # noqa: ANN401
        """norm(x) w^T + b by the active recipe; the arguments are ``octet.Linear``'s. The bias
        follows with ``return_bias``, the norm's result with ``return_layernorm_output``."""
        if not self.return_layernorm_output:
            return super().forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        if isinstance(inp, torch.Tensor) and inp.is_nested:
            return over_values(self, inp, is_first_microbatch, fp8_output, fp8_grad)
        normed = self._normed(inp)
        made = super().forward(normed, is_first_microbatch, fp8_output, fp8_grad)
        return (*made, normed) if self.return_bias else (made, normed)

    def _normed(self, inp: torch.Tensor) -> torch.Tensor:
        """The norm, computed by torch's functions."""
        norm = self._norm()
        dtype = self._checked(inp).dtype
        vectors = [getattr(self, name) for name in norm.vectors]
        if not is_dynamo_compiling():
            for name, vector in zip(norm.vectors, vectors, strict=True):
                if vector.shape != (self.in_features,):
                    raise ValueError(
                        f"{self._label()}: {name} is {tuple(vector.shape)}; it must be "
                        f"({self.in_features},)"
                    )
        return normalized(inp, norm, vectors).to(dtype)

    def extra_repr(self) -> str:
        """What print shows."""
        zero = ", zero_centered_gamma=True" if self.zero_centered_gamma else ""
        norm = f"normalization={self.normalization!r}, eps={self.eps}{zero}"
        return f"{super().extra_repr()}, {norm}"
