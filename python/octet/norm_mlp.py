"""LayerNormMLP: a norm, two linear layers and the activation between them, two graph nodes."""

from collections.abc import Callable
from typing import Any

import torch
from octet._constant import traced_as_constant
from octet._flat import restored_under
from octet._lent import IGNORED, ActivatedLinear, LentLinear
from octet._prologue import ACTIVATIONS
from octet._signatures import input_factor
from octet.linear import checked_save
from octet.norm_linear import LayerNormLinear
from octet.state.recompute import checkpoint as octet_checkpoint

# The MLP's parameters by TransformerEngine's names, and whose they are under which name.
_HELD = {
    "layer_norm_weight": ("fc1", "layer_norm_weight"),
    "layer_norm_bias": ("fc1", "layer_norm_bias"),
    "fc1_weight": ("fc1", "weight"),
    "fc1_bias": ("fc1", "bias"),
    "fc2_weight": ("fc2", "weight"),
    "fc2_bias": ("fc2", "bias"),
}


class _First(LentLinear, LayerNormLinear):
    """The norm and fc1."""

    _public_name = "LayerNormMLP.fc1"


class _GatedFirst(_First):
    """The norm and fc1 before a gated function."""

    def _take_share(self, kind: str, whole: torch.Tensor | None, rank: int) -> None:
        """A rank's share of the rows has as much of each half."""
        if whole is not None:
            halves = [half.chunk(self.tp_size)[rank] for half in whole.chunk(2)]
            getattr(self, kind).copy_(torch.cat(halves))


class _Second(LentLinear, ActivatedLinear):
    """The activation and fc2."""

    _public_name = "LayerNormMLP.fc2"


class LayerNormMLP(torch.nn.Module):
    """y = act(norm(x) w1^T + b1) w2^T + b2, quantized by the recipe of the autocast around it.

    The norm is the first product's prologue, the activation the second's: each of the two is
    one graph node each way. ``activation`` is one of gelu (by tanh), qgelu, relu, srelu, silu,
    and glu, geglu, qgeglu, reglu, sreglu, swiglu. Those of the second kind are gated: fc1 has
    twice ``ffn_hidden_size`` rows, and the first half of its output goes through the function,
    times the second half.

    With ``set_parallel_mode`` and ``tp_group`` ranks share it: fc1 by columns, fc2 by rows.
    ``checkpoint`` saves the input alone, and backward runs the layer again. ``save="memory"``
    saves what the activation reads in 8 bits, and neither of the casts that wgrad reads:
    gradients change a little, see docs/prologues.md. All else is ``octet.LayerNormLinear``'s.

    >>> mlp = octet.LayerNormMLP(64, 128, activation="swiglu", device="cpu")
    >>> [name for name, _ in mlp.named_parameters()][2:]
    ['fc1_weight', 'fc1_bias', 'fc2_weight', 'fc2_bias']
    >>> with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
    ...     mlp(torch.randn(8, 64)).shape
    torch.Size([8, 64])
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: Callable[..., Any] | None = None,
        tp_group: Any = None,  # noqa: ANN401
        tp_size: int = 1,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        activation_params: dict[str, Any] | None = None,
        output_layer_init_method: Callable[[torch.Tensor], Any] | None = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: torch.device | str | None = None,
        ub_overlap_ag: bool = False,
        name: str | None = None,
        ub_overlap_rs: bool | int = False,
        ub_overlap_rs_dgrad: bool | int = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        checkpoint: bool = False,
        *,
        save: str = "speed",
    ) -> None:
        super().__init__()
        self.hidden_size, self.ffn_hidden_size, self.name = hidden_size, ffn_hidden_size, name
        self.checkpoint = checkpoint
        del seq_length, micro_batch_size  # for TransformerEngine's warm-up
        del ub_bulk_dgrad, ub_bulk_wgrad  # backward's collectives run beside products anyway
        self._check(activation, activation_params, tp_size, set_parallel_mode)
        gates = input_factor(activation)
        asked = {
            "sequence_parallel": sequence_parallel,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "tp_group": tp_group if set_parallel_mode else None,
            "tp_size": tp_size,
            "get_rng_state_tracker": get_rng_state_tracker,
            "bias": bias,
            "params_dtype": params_dtype,
            "device": device,
            "ub_overlap_ag": ub_overlap_ag,
            "delay_wgrad_compute": delay_wgrad_compute,
            "name": name,
            "save": checked_save(self._label(), save),
        }
        self.fc1 = (_GatedFirst if gates > 1 else _First)(
            hidden_size,
            gates * ffn_hidden_size,
            eps,
            normalization=normalization,
            zero_centered_gamma=zero_centered_gamma,
            return_layernorm_output=return_layernorm_output,
            return_layernorm_output_gathered=return_layernorm_output_gathered,
            init_method=init_method,
            parallel_mode="column" if set_parallel_mode else None,
            ub_overlap_rs_dgrad=ub_overlap_rs_dgrad,
            **asked,
        )
        self.fc2 = _Second(
            ffn_hidden_size,
            hidden_size,
            activation=activation,
            return_bias=return_bias,
            init_method=output_layer_init_method,
            parallel_mode="row" if set_parallel_mode else None,
            ub_overlap_rs=ub_overlap_rs,
            symmetric_ar_type=symmetric_ar_type,
            **asked,
        )
        self._take_parameters()

    def _label(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"octet.LayerNormMLP{name} ({self.hidden_size} -> {self.ffn_hidden_size})"

    def _check(
        self,
        activation: str,
        parameters: dict[str, Any] | None,
        tp_size: int,
        in_parallel: bool,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"{self._label()}: activation is {activation!r}; it is one of "
                f"{', '.join(ACTIVATIONS)}"
            )
        if parameters is not None:
            raise ValueError(
                f"{self._label()}: activation_params is {parameters!r}, but {activation} has "
                "no parameters; leave it out"
            )
        if tp_size != 1 and not in_parallel:
            raise ValueError(
                f"{self._label()}: tp_size is {tp_size!r} without set_parallel_mode=True, by "
                "which ranks share the layer; give it, or leave out tp_size"
            )

    # ---- parameters ------------------------------------------------------------------------

    def _halves(self) -> tuple[_First, _Second]:
        return self.fc1, self.fc2

    def _take_parameters(self) -> None:
        """Makes the parameters of the two layers its own, under TransformerEngine's names."""
        held = {n: p for n, p in self._parameters.items() if n not in _HELD}
        self._parameters.clear()
        for name, (half, key) in _HELD.items():
            self._parameters[name] = getattr(self, half)._parameters.get(key)
        self._parameters.update(held)
        for half in self._halves():
            half.__dict__["owners"] = [self]

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """As a module does, in the layer that multiplies by it, too."""
        super().register_parameter(name, param)
        half, key = _HELD.get(name, ("", ""))
        if half in self._modules:
            getattr(self, half).register_parameter(key, param)

    @traced_as_constant
    def _check_held(self) -> bool:
        """The layers multiply by the very parameters that the MLP has."""
        for name, (half, key) in _HELD.items():
            if name not in self._parameters:
                raise NotImplementedError(
                    f"{self._label()}: {name} is not a parameter of it (it is parametrized); "
                    "use an octet.LayerNormLinear, or leave it plain"
                )
            if getattr(self, half)._parameters.get(key) is not self._parameters[name]:
                raise ValueError(
                    f"{self._label()}: {half}.{key} is another parameter than {name}; assign "
                    f"to {name}, and shard the MLP as a whole"
                )
        return True

    def reset_parameters(self) -> None:
        """Draws all weights again and forgets all state."""
        for half in self._halves():
            half.reset_parameters()

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "LayerNormMLP":
        """Moves each parameter once: by the layer that multiplies by it."""
        for name in _HELD:
            self._parameters.pop(name, None)
        try:
            super()._apply(fn, recurse)
            if not recurse:
                for half in self._halves():
                    half._apply(fn)
        finally:
            self._take_parameters()
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """As octet.Linear's: state that a checkpoint lacks starts afresh."""
        state = restored_under(state_dict, prefix)
        ignored = {prefix + name for name in IGNORED}
        plain = {key: value for key, value in state.items() if key not in ignored}
        super()._load_from_state_dict(
            plain, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        for name, half in zip(("fc1", "fc2"), self._halves(), strict=True):
            brings = prefix + f"{name}_weight" in state
            half._load_state(state, f"{prefix}{name}.", brings, error_msgs)

    def set_tensor_parallel_group(self, tp_group: Any) -> None:  # noqa: ANN401
        """Gives both layers the group that they are split over, before the first call."""
        for half in self._halves():
            half.set_tensor_parallel_group(tp_group)

    # ---- the call --------------------------------------------------------------------------

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> Any:  # noqa: ANN401
        """The MLP by the active recipe. The bias of fc2 follows with ``return_bias``, the
        norm's result with ``return_layernorm_output``."""
        if self.checkpoint and torch.is_grad_enabled():
            return octet_checkpoint(self._run, inp, is_first_microbatch)
        return self._run(inp, is_first_microbatch)

    def _run(self, inp: torch.Tensor, is_first_microbatch: bool | None) -> Any:  # noqa: ANN401
        self._check_held()
        hidden, normed = self.fc1(inp, is_first_microbatch), None
        if self.fc1.return_layernorm_output:
            hidden, normed = hidden
        made = self.fc2(hidden, is_first_microbatch)
        if normed is None:
            return made
        return (*made, normed) if self.fc2.return_bias else (made, normed)

    def backward_dw(self) -> None:
        """Computes the weight gradients that the oldest backward left for later."""
        for half in reversed(self._halves()):
            half.backward_dw()

    def extra_repr(self) -> str:
        """What print shows."""
        return f"{self.hidden_size}, {self.ffn_hidden_size}, activation={self.fc2.activation!r}"
