"""octet.stats and octet.advise. Their implementation is imported at first use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from octet._advise import Advice
    from octet._stats import Stats
    from octet.recipe import Recipe


def stats(
    model: torch.nn.Module,
    every: int = 100,
    to: Any = None,  # noqa: ANN401
) -> "Stats":
    """Measures what the casts of a model's octet layers lose, in one step of every ``every``.

    For each layer and role (input, weight, grad_output) it gives underflow, saturation, the
    exponents of scales, and the relative error. ``to`` is a function ``to(step, results)``, or
    a writer with ``add_scalar(tag, value, step)`` such as TensorBoard's, or a list of these. A
    step ends when an optimizer of the model steps, or at the handle's ``step()``. Use it in a
    ``with`` block, or ``close()`` it. It works in eager and in compiled code; see
    docs/inside.md.

    >>> layer = octet.Linear(64, 32, device="cpu")
    >>> with octet.stats(layer) as stats, octet.autocast():
    ...     layer(torch.randn(8, 64)).sum().backward()
    ...     stats.step()
    >>> sorted(stats.last["the model"])
    ['grad_output', 'input', 'weight']
    >>> stats.last["the model"]["input"].error < 0.04
    True
    """
    from octet import _stats

    return _stats.start(model, every, to)


def advise(
    model: torch.nn.Module,
    batch: Any,  # noqa: ANN401
    loss: Callable[[Any], torch.Tensor],
    recipe: "Recipe | None" = None,
) -> "Advice":
    """Ranks a model's octet layers by what quantizing each costs, and proposes layers to keep
    in high precision.

    The model runs forward and backward on one batch in high precision, and once more for each
    layer with only that layer quantized. The cost of a layer is the change of the gradients:
    ``|g - g'| / |g|`` of each parameter, as root mean square over all parameters. If nothing
    gets a gradient, it is the change of the loss. ``batch`` is what the model is called with (a
    tensor, a tuple, a dict); ``loss(output)`` gives a tensor of one element. Print the result,
    or use its ``keep`` and ``where``. The model stays as it was: see docs/inside.md.

    >>> model = octet.convert(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in "ab")))
    >>> advice = octet.advise(model, torch.randn(8, 64), lambda y: y.square().mean())
    >>> sorted(row.name for row in advice.rows), advice.keep
    (['0', '1'], [])
    """
    from octet import _advise

    return _advise.advise(model, batch, loss, recipe)
