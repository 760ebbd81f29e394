"""What a layer must know about torch's fully_shard (FSDP2).

Between calls a layer's weight is a DTensor, during a call a plain tensor: gathered before
forward, freed after it, gathered again before backward. With the option ``fsdp`` a plan saves
nothing that was made from the weight. If Python made the weight from gathered parameters, by
joining parts or by a user's quantizer, backward makes it again.
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
# fully_shard adds this hook to each module whose parameter it holds. There is no other sign.
_HOOK = "FSDPParam.__init__.<locals>.<lambda>"


FSDP_PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param"


@functools.cache
def knows_fully_shard() -> bool:
    """Whether torch's fully_shard still adds the hook by which it is recognized; warns if
    not."""
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


def _is_of(held: Any, layer: Any, name: str) -> bool:  # noqa: ANN401
    """Whether what fully_shard holds is this parameter of this layer: by the module that it
    found first, or by one that has the same parameter."""
    info = held._module_info
    if info.module is layer and info.param_name == name:
        return True
    shared = zip(info.shared_modules, info.shared_param_names, strict=True)
    return any(module is layer and own == name for module, own in shared)


def _holder(layer: Any, name: str) -> Any:  # noqa: ANN401
    """What fully_shard holds a parameter by, of the hooks that a module runs after loading: the
    layer, or one that lends it its parameters; None where it does not."""
    own = layer.__dict__
    for module in (layer, *own.get("owners", ()), *own.get("holders", ())):
        for hook in module._load_state_dict_post_hooks.values():
            if getattr(hook, "__qualname__", "") == _HOOK:
                found = hook.__closure__[0].cell_contents
                if _is_of(found, layer, name):
                    return found
    return None


def is_sharded(hooks: Mapping[int, Any]) -> bool:
    """Whether the parameters of a module with these hooks are gathered for each call."""
    if FSDP_PARAM in sys.modules:
        knows_fully_shard()
    return bool(hooks) and any(getattr(h, "__qualname__", "") == _HOOK for h in hooks.values())


def options(layer: "Linear") -> "Options":
    """The options for a plan under fully_shard; raises for what plans do not support."""
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


def parameters(layer: "Linear", saves_memory: bool = False) -> list[torch.Tensor]:
    """The parameters that a weight in parts is joined from, if fully_shard holds them or the
    call saves memory. Backward saves these and joins them again: the joined weight is a copy
    that fully_shard would not free and that nobody else holds."""
    if len(layer._parts) == 1 or not (saves_memory or layer._is_sharded()):
        return []
    return [layer._parameters[name] for name in layer._weight_names()]


def adopt_hook(layer: Any) -> None:  # noqa: ANN401
    """Called where a parameter of a layer is set. fully_shard leaves its hook on the first
    module that has a parameter. A layer that has it, too (a head that is tied to an embedding),
    gets the hook here, when fully_shard sets what it gathered. It asks the stack because
    nothing else tells."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in ("__setattr__", "unsafe_setattr_param"):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "_setattr_on_modules":
        return
    held = frame.f_locals["self"]
    first, own = held._module_info.module, layer._load_state_dict_post_hooks
    if first is layer:
        return
    for hook in first._load_state_dict_post_hooks.values():
        is_its = getattr(hook, "__qualname__", "") == _HOOK
        if is_its and hook.__closure__[0].cell_contents is held and hook not in own.values():
            layer.register_load_state_dict_post_hook(hook)


def shard_of(layer: Any, name: str) -> Any:  # noqa: ANN401
    """The sharded parameter of this rank; None if fully_shard does not hold it."""
    held = _holder(layer, name)
    return None if held is None else held.sharded_param


def is_dtensor(tensor: Any) -> bool:  # noqa: ANN401
    """Whether it is a DTensor. There are none unless torch's module for them is loaded."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
