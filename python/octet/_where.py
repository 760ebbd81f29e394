"""Which layers of a model convert and unconvert are asked for, by ``where``."""

import difflib
import fnmatch
from collections.abc import Callable, Sequence

import torch
from octet._conv1d import conv1d_class
from octet.linear import AnyLinear

Where = str | Sequence[str] | Callable[[str, torch.nn.Module], bool] | None


def selects(where: Where, name: str, module: torch.nn.Module) -> bool:
    """Whether a layer is asked for."""
    if where is None:
        return True
    if callable(where):
        return bool(where(name, module))
    patterns = [where] if isinstance(where, str) else where
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_linear(module: torch.nn.Module) -> bool:
    """Whether it is a linear layer of any kind: torch's, transformers' Conv1D or Octet's."""
    return isinstance(module, torch.nn.Linear | AnyLinear) or bool(conv1d_class(module))


def layers_hint(model: torch.nn.Module, where: Where) -> str:
    """Names that may have been meant, to end a message with."""
    names = [name for name, module in model.named_modules() if name and is_linear(module)]
    if where is None or not names:
        return ""
    text = where if isinstance(where, str) else ""
    near = difflib.get_close_matches(text, names, 3, 0.5) or names[:3]
    more = f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
    return f"; its linear layers are {', '.join(map(repr, near))}{more}"


def _fused_names(model: torch.nn.Module) -> list[str]:
    """The names that layers had before fuse=True joined them; their parameters still have."""
    from octet import _fuse

    if not any(isinstance(m, AnyLinear) and _fuse.is_fused(m) for m in model.modules()):
        return []
    return [key.rpartition(".")[0] for key in model.state_dict(keep_vars=True)]


def check(verb: str, model: torch.nn.Module, where: Where) -> None:
    """Refuses what is not a model, a ``where`` of another kind, and a name in a list that is
    no layer's: it would be left out in silence."""
    if not isinstance(model, torch.nn.Module):
        kind = "a class" if isinstance(model, type) else f"a {type(model).__name__}"
        raise TypeError(f"{verb}: model is {kind}; it is a torch.nn.Module")
    if where is None or isinstance(where, str) or callable(where):
        return
    if not isinstance(where, Sequence) or not all(isinstance(each, str) for each in where):
        raise TypeError(
            f"{verb}: where is {where!r}; it is a pattern of names, a list of these, or a "
            "function of name and layer"
        )
    names = [name for name, module in model.named_modules() if is_linear(module)]
    lost = [each for each in where if not fnmatch.filter(names, each)]
    if lost:
        names = _fused_names(model)
        lost = [each for each in lost if not fnmatch.filter(names, each)]
    if lost:
        raise ValueError(
            f"{verb}: where has {lost[0]!r}, but no linear layer of {type(model).__name__} has "
            f"such a name{layers_hint(model, lost[0])}"
        )
