"""octet.support: how each recipe runs here, natively, folded or emulated."""

import os
import platform
from typing import TYPE_CHECKING, Any, overload

import torch
from octet import _C, _opaque, _signatures
from octet.recipe import CustomRecipe, Recipe
from octet.state.autocast import checked_recipe

if TYPE_CHECKING:
    from octet._explain import Explanation

_SCHEMES = {
    "fp8": "fp8-tensor:e4m3",
    "fp8_block_scaling": "fp8-block:e4m3",
    "mxfp8": "mxfp8:e4m3",
    "nvfp4": "nvfp4:e2m1",
    "mxfp4": "mxfp4:e2m1",
}


def _chosen(device: torch.device | str | None) -> torch.device:
    """The given device, else the current GPU, else the CPU."""
    asked = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(asked)
    except RuntimeError:  # torch lists every kind of device it has ever known
        raise ValueError(f"device is {asked!r}; layers run on cpu and cuda") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {chosen}; layers run on cpu and cuda")
    if chosen.type == "cuda" and chosen.index is None:
        if not torch.cuda.is_available():
            raise ValueError("device is cuda, but torch sees no GPU; use 'cpu'")
        return torch.device("cuda", torch.cuda.current_device())
    return chosen


_FOLDED = (
    "each number of a block is off by at most 2^-10 (E5M2: 2^-17) of the largest scale of its "
    "128; exact: MXFP8BlockScaling(product='exact') or OCTET_MXFP8=exact"
)


class Support(dict[str, str]):
    """A dict that prints as lines, to be pasted into a bug report."""

    def __str__(self) -> str:
        """One entry a line."""
        width = max(map(len, self))
        return "\n".join(f"{key.ljust(width)}  {value}" for key, value in self.items())


def _versions(device: torch.device) -> dict[str, str]:
    """What a bug report needs besides: versions, the GPU, environment variables."""
    found = {"octet": _C.version(), "torch": str(torch.__version__)}
    found["python"] = f"{platform.python_version()}, {platform.platform()}"
    if device.type == "cuda" and torch.cuda.is_available():
        found["gpu"] = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    own = {k: v for k, v in sorted(os.environ.items()) if k.startswith("OCTET_")}
    found["variables"] = ", ".join(f"{k}={v}" for k, v in own.items()) or "none set"
    return found


def support(device: torch.device | str | None = None) -> dict[str, str]:
    """How a device multiplies each family of recipes: "native", "folded" or "emulated".

    ``device`` is by default the current GPU, else the CPU. "native": the device multiplies the
    bytes. "emulated": the bytes are decoded exactly and multiplied in bf16. "folded": the entry
    "folded" says how far a product may be off, and how to make it exact.

    Other entries are for bug reports: the device's name in plans, the CPU's instruction set,
    whether torch takes quantizers as arguments of custom ops ("opaque_quantizers"), versions,
    and the ``OCTET_*`` variables that are set. Print it: one line for each entry.

    >>> octet.support("cpu")["mxfp8"]
    'native'
    """
    chosen = _chosen(device)
    name = _C.cuda_device(chosen.index) if chosen.type == "cuda" else "cpu"
    found = {family: _C.support(text, name) for family, text in _SCHEMES.items()}
    bound = {"folded": _FOLDED} if "folded" in found.values() else {}
    return Support(
        **found,
        **bound,
        device=name,
        cpu=_C.cpu_name(),
        opaque_quantizers=_opaque.registration(),
        **_versions(chosen),
    )


def _available(return_reason: bool) -> bool | tuple[bool, str]:
    return (True, "") if return_reason else True


def is_fp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether FP8 recipes run here; ``support()`` tells how."""
    return _available(return_reason)


def is_mxfp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether MXFP8 runs here; ``support()`` tells how."""
    return _available(return_reason)


def is_fp8_block_scaling_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether FP8 block scaling runs here; ``support()`` tells how."""
    return _available(return_reason)


def is_nvfp4_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether NVFP4 runs here; ``support()`` tells how."""
    return _available(return_reason)


def is_mxfp4_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether MXFP4 runs here; ``support()`` tells how."""
    return _available(return_reason)


def text_of(recipe: Recipe, name: str) -> str:
    """A recipe's text for a layer name; a custom recipe's factory is asked now."""
    recipe = checked_recipe(recipe)
    custom = isinstance(recipe, CustomRecipe)
    return recipe.text_for("linear", name) if custom else recipe.text


def _explain_layer(
    in_features: int,
    out_features: int,
    rows: int,
    recipe: Recipe | None = None,
    dtype: torch.dtype = torch.bfloat16,
    bias: bool = True,
    device: torch.device | str | None = None,
) -> str:
    text = "none" if recipe is None else text_of(recipe, "")
    dtypes = (dtype, dtype, dtype if bias else None)
    where = _chosen(device)
    options = _signatures.device_options(where.type, where.index)
    words = _signatures.linear_words(dtypes, (None, None), text, (True, True, bias), options)
    sizes, back = (
        (rows, in_features, out_features),
        _signatures.gradient_words(words, dtype, None),
    )
    forward = _C.explain("linear", words, sizes)
    return f"{forward}\n{_C.explain('linear_backward', back, sizes)}"


@overload
def explain(
    in_features: int,
    out_features: int,
    rows: int,
    recipe: Recipe | None = None,
    dtype: torch.dtype = torch.bfloat16,
    bias: bool = True,
    device: torch.device | str | None = None,
) -> str: ...
@overload
def explain(
    model: torch.nn.Module,
    *inputs: Any,  # noqa: ANN401
    recipe: Recipe | None = None,
    **named: Any,  # noqa: ANN401
) -> "Explanation": ...
def explain(*args: Any, **named: Any) -> "str | Explanation":
    """What a model's octet layers do, or what one Linear would do, for people.

    ``explain(model, *inputs, recipe=None, **named)`` runs the model's forward once and gives a
    row for each layer: sizes, quantizers, whether products are native, folded or emulated,
    bytes saved for backward, the time of forward and backward beside bf16, and what would make
    it faster or smaller. Print it, or take ``rows``, ``to_dict()``, ``to_html()``. The recipe
    is the one given, or that of the autocast around, or the default one. The model stays as it
    was: see docs/inside.md.

    ``explain(in_features, out_features, rows, recipe=None, dtype=torch.bfloat16, bias=True,
    device=None)`` is the plans of one Linear's forward and backward on a device.

    >>> mxfp8 = octet.recipe.MXFP8BlockScaling()
    >>> print(octet.explain(64, 32, 16, mxfp8, device="cpu"))  # doctest: +ELLIPSIS
    linear forward: m=16 k=64 n=32, recipe mxfp8, on cpu
    ...
    >>> model = torch.nn.Sequential(octet.Linear(64, 32, device="cpu"))
    >>> octet.explain(model, torch.randn(16, 64), recipe=mxfp8).rows[0].how
    'native'
    """
    model = named.pop("model", None) if not args else args[0]
    if model is None and not {"in_features", "out_features", "rows"} <= named.keys():
        raise TypeError(
            "octet.explain: give a model and its inputs, explain(model, x), or the sizes of a "
            "layer, explain(in_features, out_features, rows)"
        )
    if model is None or isinstance(model, int):
        return _explain_layer(*args, **named)
    from octet import _explain  # imported late: few users need it

    return _explain.explain_model(model, args[1:], named.pop("recipe", None), named)
