"""Conv1D, transformers' linear layer of GPT-2, whose weight has the shape (in, out).

It is recognized by its name, without importing transformers. The layer that replaces it has a
weight (out, in), as every Linear. But its state_dict keeps Conv1D's layout: for a square weight
nobody could tell the two layouts apart.
"""

from typing import Any

import torch
from octet._flat import restored_under
from octet._foreign import INITIALIZED
from octet.linear import AnyLinear, Linear
from octet.tensor import QuantizedTensor

_MODULES = ("transformers.pytorch_utils", "transformers.modeling_utils")


def conv1d_class(module: torch.nn.Module) -> type | None:
    """transformers' Conv1D class if the module is one, else None."""
    for cls in type(module).__mro__:
        if cls.__name__ == "Conv1D" and cls.__module__ in _MODULES:
            return cls
    return None


class Conv1DState(AnyLinear):
    """A layer that replaces a Conv1D: its state_dict has the weight as (in, out).

    A quantized weight is saved as it is, (out, in), under a name of its own, ``weight_t``: a
    Conv1D that is given such a state dict says that it does not know the name."""

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """As a module does. transformers' loader, which puts parameters in the places of those
        on meta, brings a weight as (in, out); it refuses one that is not square itself."""
        held = self._parameters.get(name)
        is_loaded = held is not None and held.is_meta and getattr(param, INITIALIZED, False)
        if is_loaded and name == "weight" and type(param) is torch.nn.Parameter:
            turned = param.detach().t().contiguous()
            param = torch.nn.Parameter(turned, param.requires_grad)
            setattr(param, INITIALIZED, True)
        super().register_parameter(name, param)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        weight = destination.get(prefix + "weight")
        if isinstance(weight, QuantizedTensor):
            destination[prefix + "weight_t"] = destination.pop(prefix + "weight")
        elif weight is not None:
            destination[prefix + "weight"] = weight.t()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        *args: Any,  # noqa: ANN401
    ) -> None:
        loaded = dict(restored_under(state_dict, prefix))
        error_msgs: list[str] = args[-1]
        weight = loaded.pop(prefix + "weight", None)
        if isinstance(weight, QuantizedTensor):
            error_msgs.append(
                f"{prefix}weight is quantized, but a Conv1D's quantized weight is saved as "
                f"{prefix}weight_t: this is the state dict of another kind of layer"
            )
        elif weight is not None and weight.dim() == 2:
            loaded[prefix + "weight"] = weight.t().contiguous()
        elif weight is not None:
            # the size is wrong; torch's own loading reports it
            loaded[prefix + "weight"] = weight
        if prefix + "weight_t" in loaded:
            loaded[prefix + "weight"] = loaded.pop(prefix + "weight_t")
        super()._load_from_state_dict(loaded, prefix, *args)


class Conv1DLinear(Conv1DState, Linear):
    """An octet.Linear that replaces a Conv1D."""
