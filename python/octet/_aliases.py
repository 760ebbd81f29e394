"""TransformerEngine's names for things that Octet has under other names."""

import dataclasses

from octet.recipe import Recipe
from octet.state.autocast import default_recipe, quantized_model_init

default_recipe()._freeze()  # all callers share this object; assigning to it must fail


def fp8_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> quantized_model_init:
    """``quantized_model_init`` by its older name."""
    return quantized_model_init(enabled, recipe, preserve_high_precision_init_val)


def get_default_recipe() -> Recipe:
    """A new recipe equal to the one that ``recipe=None`` means; its fields may be assigned.

    >>> octet.get_default_recipe()
    MXFP8BlockScaling('mxfp8')
    """
    return dataclasses.replace(default_recipe())  # type: ignore[type-var]
