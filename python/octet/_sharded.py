"""What torch's fully_shard (FSDP2) holds of a layer.

A layer's weight is a DTensor between calls and a plain tensor during one: gathered before
forward, freed after it, gathered again before backward. With the option ``fsdp`` a plan saves
nothing that is made of it. Where Python made the weight of what was gathered,
by joining parts or by a quantizer of a user's, backward makes it again.
"""

import functools
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from octet._signatures import Options
    from octet.linear import Linear

SHARDED: "Options" = (("fsdp", True),)
# fully_shard leaves this hook on each module whose parameter it holds; nothing else tells.
_HOOK = "FSDPParam.__init__.<locals>.<lambda>"


FSDP_PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param"


@functools.cache
def knows_fully_shard() -> bool:
    """Whether torch's fully_shard, which has been imported, leaves the hook by which it is
    known here; a warning where it does not."""
    init = sys.modules[FSDP_PARAM].FSDPParam.__init__.__code__
    hooks = [each for each in init.co_consts if getattr(each, "co_name", "") == "<lambda>"]
    if any("self" in hook.co_freevars for hook in hooks) and "_module_info" in init.co_names:
        return True
    warnings.warn(
        f"octet does not know the fully_shard of torch {torch.__version__}: layers under it "
        "save their gathered weights for backward, and fuse_wgrad_accumulation and "
        "delay_wgrad_compute lose gradients; take a torch that docs/frameworks.md lists",
        stacklevel=2,
    )
    return False


def holder(hooks: Mapping[int, Any], name: str) -> Any:  # noqa: ANN401
    """What fully_shard holds a parameter by, of the hooks that a module runs after loading;
    None where it does not."""
    for hook in hooks.values():
        if getattr(hook, "__qualname__", "") == _HOOK:
            found = hook.__closure__[0].cell_contents
            if found._module_info.param_name == name:
                return found
    return None


def is_sharded(hooks: Mapping[int, Any]) -> bool:
    """Whether parameters of a module with these hooks are gathered for each call."""
    if FSDP_PARAM in sys.modules:
        knows_fully_shard()
    return bool(hooks) and any(getattr(h, "__qualname__", "") == _HOOK for h in hooks.values())


def options(layer: "Linear") -> "Options":
    """What the plan of a call must know; what it cannot follow is refused."""
    if not layer._is_sharded():
        return ()
    for option, why in (
        ("fuse_wgrad_accumulation", "adds to the main_grad of a weight that is freed"),
        ("delay_wgrad_compute", "leaves the gradient for later"),
    ):
        if getattr(layer, option):
            raise ValueError(
                f"{layer._label()}: {option} {why}, but fully_shard takes the gradient from "
                f"the weight's backward; leave out {option}"
            )
    return SHARDED


def parameters(layer: "Linear") -> list[torch.Tensor]:
    """The parameters that a weight in parts is joined of, where fully_shard holds them. They
    are saved for backward, which joins them again: the joined weight is a copy that fully_shard
    does not free."""
    if len(layer._parts) == 1 or not layer._is_sharded():
        return []
    return [layer._parameters[name] for name in layer._weight_names()]


def shard_of(layer: Any, name: str) -> Any:  # noqa: ANN401
    """The sharded parameter whose shard this rank holds; None where fully_shard holds none."""
    hooks = layer._load_state_dict_post_hooks
    held = holder(hooks, name) if hooks else None
    return None if held is None else held.sharded_param


def is_dtensor(tensor: Any) -> bool:  # noqa: ANN401
    """Whether it is a DTensor; one exists only where torch's module of them is loaded."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
