"""Octet as a quantization converter of torchtitan: its Linear configs become octet.Linear's.

``OctetLinearConverter.Config(recipe="nvfp4", fqns=["layers"])`` goes where torchtitan takes its
own converters, ``model_registry(..., converters=[...])``. torchtitan is imported when one of
the two names here, ``OctetLinear`` and ``OctetLinearConverter``, is first asked for.
"""

import functools
import warnings
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import octet
import torch
from octet.recipe import Recipe

__all__ = ["OctetLinear", "OctetLinearConverter"]  # noqa: F822

RECIPES = {
    "delayed": octet.recipe.DelayedScaling,
    "current": octet.recipe.Float8CurrentScaling,
    "block": octet.recipe.Float8BlockScaling,
    "mxfp8": octet.recipe.MXFP8BlockScaling,
    "nvfp4": octet.recipe.NVFP4BlockScaling,
    "mxfp4": octet.recipe.MXFP4BlockScaling,
}


def recipe_of(asked: Any) -> Recipe:  # noqa: ANN401
    """A recipe by its word, or the recipe itself.

    >>> octet.compat.torchtitan.recipe_of("nvfp4")
    NVFP4BlockScaling('nvfp4')
    """
    if isinstance(asked, Recipe):
        return asked
    if not isinstance(asked, str) or asked not in RECIPES:
        raise ValueError(
            f"octet.compat.torchtitan: recipe is {asked!r}; it is an object of a class of "
            f"octet.recipe, or one of {', '.join(RECIPES)}"
        )
    return RECIPES[asked]()


@functools.cache
def _titan() -> SimpleNamespace:
    """What is needed of torchtitan."""
    try:
        from torchtitan.components.quantization import QuantizationConverter
        from torchtitan.models.common.linear import Linear
        from torchtitan.protocols.module import Module
    except ImportError as error:
        raise ImportError(
            f"octet.compat.torchtitan needs torchtitan 0.3 or newer, and importing it gave: "
            f"{error}; pip install torchtitan"
        ) from error
    return SimpleNamespace(Converter=QuantizationConverter, Linear=Linear, Module=Module)


@functools.cache
def _linear() -> type:
    titan = _titan()

    class OctetLinear(octet.Linear, titan.Module):
        """An octet.Linear that torchtitan builds from a config, with a recipe of its own.

        Each call is inside an autocast of that recipe; one around the model changes nothing.
        """

        @dataclass(kw_only=True, slots=True)
        class Config(titan.Linear.Config):
            """torchtitan's Linear.Config, the recipe, and the layer's name in messages."""

            recipe: Any = "mxfp8"
            name: str = ""

        def __init__(self, config: Config) -> None:
            octet.Linear.__init__(
                self,
                config.in_features,
                config.out_features,
                bias=config.bias,
                name=config.name or None,
            )
            self.recipe = recipe_of(config.recipe)

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            """y = x w^T + b by the layer's recipe."""
            with octet.autocast(recipe=self.recipe):
                return octet.Linear.forward(self, input)

    OctetLinear.__qualname__, OctetLinear.Config.__qualname__ = (
        "OctetLinear",
        "OctetLinear.Config",
    )
    return OctetLinear


def _config_for(config: Any, name: str, recipe: Any) -> Any:  # noqa: ANN401
    """An OctetLinear's config with all that a Linear's says."""
    same = {f.name: getattr(config, f.name) for f in fields(config) if f.init}
    return _linear().Config(**same, recipe=recipe, name=name)


def _replaced(model_config: Any, parent: Any, attr: Any, config: Any) -> Any:  # noqa: ANN401
    """The root after a config was put where torchtitan's traverse found the old one."""
    if parent is None:
        return config
    if isinstance(parent, list):
        parent[attr] = config
    else:
        setattr(parent, attr, config)
    return model_config


def _convert(asked: Any, model_config: Any) -> Any:  # noqa: ANN401
    """Swaps the configs that a converter's config chooses; all or none."""
    plain, made = _titan().Linear.Config, _linear().Config
    found = [
        row
        for row in model_config.traverse(plain)
        if not isinstance(row[1], made)
        and (not asked.fqns or any(part in row[0] for part in asked.fqns))
        and not any(part in row[0] for part in asked.filter_fqns)
    ]
    # A Linear of another kind computes in its own way, which a swap would lose.
    others = [(fqn, config) for fqn, config, _, _ in found if type(config) is not plain]
    lines = "".join(f"\n  {fqn}: {type(config).__qualname__}" for fqn, config in others)
    if others and asked.fqns:
        raise ValueError(
            "OctetLinearConverter: these are not Linear.Config itself; leave them out with "
            f"filter_fqns:{lines}"
        )
    if others:
        warnings.warn(f"OctetLinearConverter left these as they are:{lines}", stacklevel=3)
    chosen = [row for row in found if type(row[1]) is plain]
    if not chosen and not any(True for _ in model_config.traverse(made)):
        raise ValueError(
            f"OctetLinearConverter: no Linear.Config is chosen by fqns={asked.fqns} and "
            f"filter_fqns={asked.filter_fqns}"
        )
    for fqn, config, parent, attr in chosen:
        new = _config_for(config, fqn, asked.recipe)
        model_config = _replaced(model_config, parent, attr, new)
    return model_config


@functools.cache
def _converter() -> type:
    titan = _titan()

    class OctetLinearConverter(titan.Converter):
        """Replaces the Linear configs of a model by OctetLinear's."""

        @dataclass(kw_only=True, slots=True)
        class Config(titan.Converter.Config):
            """``recipe``: a word of ``RECIPES`` or a recipe. ``fqns``: parts of the names of
            layers to convert, none for all. ``filter_fqns``: parts of names to leave out."""

            recipe: Any = "mxfp8"
            fqns: list[str] = field(default_factory=list)
            filter_fqns: list[str] = field(default_factory=list)

        def __init__(self, config: Config) -> None:
            recipe_of(config.recipe)  # or it is refused before a model is touched
            self.config = config

        def convert(self, model_config: Any) -> Any:  # noqa: ANN401
            """The model's config with OctetLinear where it was Linear."""
            return _convert(self.config, model_config)

    OctetLinearConverter.__qualname__ = "OctetLinearConverter"
    OctetLinearConverter.Config.__qualname__ = "OctetLinearConverter.Config"
    return OctetLinearConverter


def __getattr__(name: str) -> type:
    makers = {"OctetLinear": _linear, "OctetLinearConverter": _converter}
    if name not in makers:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return makers[name]()
