"""How far the bytes of a layer are from its tensors: input, weight and gradient, by role.

The tensors are those of one batch, in a run's own trained model and its own recipe. The error
is relative: the norm of what quantizing changed over the norm of the tensor.
"""

from collections.abc import Callable
from functools import partial

import octet
from octet import _texts, quantizers
from training import RECIPES, Run, Task, batches, inside

import torch

ROLES = ("input", "weight", "grad_output")
Cast = Callable[[torch.Tensor], torch.Tensor]
# Where delayed scaling holds the scale of each role: a buffer of the layer and a slot of it.
_SLOTS = {
    "input": ("fp8_scale", 0),
    "weight": ("fp8_scale", 1),
    "grad_output": ("fp8_grad_scale", 0),
}


def layers_of(run: Run) -> dict[str, octet.Linear]:
    """The layers that the recipe reaches, by their names in the model; the head is not one."""
    return {
        f"blocks.{name}": part
        for name, part in run.model.blocks.named_modules()
        if isinstance(part, octet.Linear)
    }


def _seen(run: Run, task: Task) -> dict[str, dict[str, torch.Tensor]]:
    """Input, weight and gradient of every layer in one batch; no state of a layer changes."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    hooks = []
    for name, layer in layers_of(run).items():
        tensors = found[name] = {"weight": layer.weight.detach()}

        def note(
            layer: object, inputs: tuple, output: torch.Tensor, into: dict = tensors
        ) -> None:
            del layer
            into["input"] = inputs[0].detach()
            output.register_hook(partial(into.__setitem__, "grad_output"))

        hooks.append(layer.register_forward_hook(note))
    tokens, targets = next(batches(task))
    was = run.model.training
    try:
        run.model.eval()  # delayed scaling reads its scales and records nothing
        with torch.autocast(task.device, torch.bfloat16), inside(run.name):
            loss = run.model.loss(tokens, targets)
        torch.autograd.grad(loss, list(run.model.parameters()))
    finally:
        run.model.train(was)
        for hook in hooks:
            hook.remove()
    return found


def cast_of(layer: octet.Linear, name: str, role: str) -> Cast:
    """Quantizes a role's tensor by the recipe, and decodes it; without one, rounds to bf16."""
    recipe = RECIPES[name]
    if recipe is None:
        return torch.Tensor.bfloat16
    text = _texts.with_usage(_texts.role_quantizer(recipe.text, role), True, False)
    if _texts.takes_scale(text):
        buffer, slot = _SLOTS[role]
        scale = getattr(layer, buffer)[slot : slot + 1]
        made = octet.Float8Quantizer(
            scale, torch.zeros_like(scale), _texts.element_format(text)
        )
    else:
        made = quantizers.from_text(text)
    return lambda tensor: made(tensor).dequantize()


def relative_error(tensor: torch.Tensor, cast: Cast) -> float:
    """The norm of what a cast changes over the norm of the tensor; 0 for a tensor of zeros."""
    norm = tensor.float().norm()
    return ((cast(tensor).float() - tensor.float()).norm() / norm).item() if norm > 0 else 0.0


def errors_of(run: Run, task: Task) -> dict[str, dict[str, float]]:
    """The relative error of each role, by layer. The same run gives the same figures."""
    layers = layers_of(run)
    with torch.random.fork_rng():
        torch.manual_seed(task.seed)  # of stochastic rounding
        found = _seen(run, task)
        return {
            name: {
                role: relative_error(tensors[role], cast_of(layers[name], run.name, role))
                for role in ROLES
            }
            for name, tensors in found.items()
        }
