"""LayerNormMLP: a norm, two linear layers and the activation between them, two graph nodes."""

from collections.abc import Callable
from typing import Any

from torch.compiler import is_dynamo_compiling

import torch
from octet._constant import traced_as_constant
from octet._flat import restored_under
from octet._lent import IGNORED, ActivatedLinear, LentLinear
from octet._prologue import ACTIVATIONS
from octet._sharded import is_dtensor, is_sharded
from octet._signatures import input_factor
from octet.linear import checked_save
from octet.norm_linear import LayerNormLinear
from octet.state.checkpoint import checkpoint as octet_checkpoint

# TransformerEngine's names of the MLP's parameters -> the layer and its name for it.
_HELD = {
    "layer_norm_weight": ("fc1", "layer_norm_weight"),
    "layer_norm_bias": ("fc1", "layer_norm_bias"),
    "fc1_weight": ("fc1", "weight"),
    "fc1_bias": ("fc1", "bias"),
    "fc2_weight": ("fc2", "weight"),
    "fc2_bias": ("fc2", "bias"),
}


_NAMES = {half: name for name, half in _HELD.items()}  # and back


class _Half(LentLinear):
    """One of the MLP's two layers."""

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """As a module does; the MLP gets it, too."""
        super().register_parameter(name, param)
        for owner in self.__dict__.get("owners", ()):
            key = (self._public_name.rpartition(".")[2], name)
            if key in _NAMES and not is_dtensor(param):
                owner._parameters[_NAMES[key]] = param


class _First(_Half, LayerNormLinear):
    """The norm and fc1."""

    _public_name = "LayerNormMLP.fc1"


class _GatedFirst(_First):
    """The norm and fc1 in front of a gated activation."""

    def _take_share(self, kind: str, whole: torch.Tensor | None, rank: int) -> None:
        """A rank's share has the same rows of both halves."""
        if whole is not None:
            halves = [half.chunk(self.tp_size)[rank] for half in whole.chunk(2)]
            getattr(self, kind).copy_(torch.cat(halves))


class _Second(_Half, ActivatedLinear):
    """The activation and fc2."""

    _public_name = "LayerNormMLP.fc2"


class LayerNormMLP(torch.nn.Module):
    """y = act(norm(x) w1^T + b1) w2^T + b2, quantized by the recipe of the autocast around it.

    The norm belongs to the first product's op, the activation to the second's. So each of the
    two products is one graph node forward and one backward.

    ``activation`` is one of gelu (by tanh), qgelu, relu, srelu, silu, or a gated one: glu,
    geglu, qgeglu, reglu, sreglu, swiglu. With a gated one fc1 has twice ``ffn_hidden_size``
    rows: the first half of its output goes through the function, times the second half.

    With ``set_parallel_mode`` and ``tp_group`` it is split over ranks, fc1 by columns and fc2
    by rows. With ``checkpoint=True`` only the input is saved, and backward repeats the forward.
    ``save="memory"`` saves the activation's input in 8 bits, and does not save the casts that
    the weights' gradients read: gradients change a little, see docs/prologues.md. All other
    arguments are ``octet.LayerNormLinear``'s.

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
        del seq_length, micro_batch_size  # TransformerEngine uses them for warm-up
        # accepted, not needed: collectives of backward overlap with products anyway
        del ub_bulk_dgrad, ub_bulk_wgrad
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
        """Registers the parameters of the two layers here, under TransformerEngine's names."""
        held = {n: p for n, p in self._parameters.items() if n not in _HELD}
        self._parameters.clear()
        for name, (half, key) in _HELD.items():
            self._parameters[name] = getattr(self, half)._parameters.get(key)
        self._parameters.update(held)
        for half in self._halves():
            half.__dict__["owners"] = [self]

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Registers a parameter, also in the layer that multiplies by it."""
        super().register_parameter(name, param)
        half, key = _HELD.get(name, ("", ""))
        if half in self._modules:
            getattr(self, half).register_parameter(key, param)

    @traced_as_constant
    def _check_held(self) -> bool:
        """Checks that the layers use the same parameters as the MLP."""
        for name, (half, key) in _HELD.items():
            if name not in self._parameters:
                raise NotImplementedError(
                    f"{self._label()}: {name} is not a parameter of it (it is parametrized); "
                    "use an octet.LayerNormLinear, or leave it plain"
                )
            layer, held = getattr(self, half), self._parameters[name]
            theirs = layer._parameters.get(key)
            if theirs is held:
                continue
            sharded = is_sharded(layer._load_state_dict_post_hooks) or is_dtensor(theirs)
            if key not in layer._parameters or sharded:
                raise ValueError(
                    f"{self._label()}: {half}.{key} is another parameter than {name}; assign "
                    f"to {name}, and shard the MLP as a whole"
                )
            # Who writes to dictionaries (loaders do) writes to the MLP's.
            layer._parameters[key] = held
            layer._forget()
        return True

    def _guard_held(self) -> None:
        """Adds a guard to compiled code: the MLP and its layers still hold the same parameters,
        as _check_held has made sure. Otherwise the code is traced again."""
        own = self._parameters
        for name, (half, key) in _HELD.items():
            if own[name] is not getattr(self, half)._parameters[key]:
                raise RuntimeError(f"{self._label()}: {name} changed while code was traced")

    def reset_parameters(self) -> None:
        """Initializes all weights again and resets all state."""
        for half in self._halves():
            half.reset_parameters()

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "LayerNormMLP":
        """Moves each parameter once, through the layer that multiplies by it."""
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
        """Loads as octet.Linear does: state that a checkpoint lacks is reset."""
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
        if is_dynamo_compiling():
            self._guard_held()
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
