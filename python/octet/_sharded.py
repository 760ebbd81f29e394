"""What torch's fully_shard (FSDP2) holds of a layer.

A layer's weight is a DTensor between calls and a plain tensor during one: gathered before
forward, freed after it, gathered again before backward. A plan that is told so (the option
``fsdp``) keeps nothing that is made of it.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octet._signatures import Options
    from octet.linear import Linear

SHARDED: "Options" = (("fsdp", True),)
# fully_shard leaves this hook on each module whose parameter it holds; nothing else tells.
_HOOK = "FSDPParam.__init__.<locals>.<lambda>"


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
    return bool(hooks) and any(getattr(h, "__qualname__", "") == _HOOK for h in hooks.values())


def options(layer: "Linear") -> "Options":
    """What the plan of a call must know; what it cannot follow is refused."""
    if not is_sharded(layer._load_state_dict_post_hooks):
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
    # Of a weight in parts backward would keep the whole, joined: quantized bytes are fewer.
    return SHARDED if len(layer._parts) == 1 else ()


def shard_of(layer: Any, name: str) -> Any:  # noqa: ANN401
    """The sharded parameter whose shard this rank holds; None where fully_shard holds none."""
    hooks = layer._load_state_dict_post_hooks
    held = holder(hooks, name) if hooks else None
    return None if held is None else held.sharded_param


def is_dtensor(tensor: Any) -> bool:  # noqa: ANN401
    """Whether it is a DTensor; one exists only where torch's module of them is loaded."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
