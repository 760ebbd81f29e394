"""Hugging Face accelerate's TransformerEngine plug-in, running on Octet."""

import os
from collections.abc import Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import octet
import octet.compat.transformer_engine as compat
import pytest

import torch

accelerate = pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.utils import (  # noqa: E402
    TERecipeKwargs,
    apply_fp8_autowrap,
    convert_model,
    has_transformer_engine_layers,
    is_transformer_engine_available,
)
from accelerate.utils.imports import is_transformer_engine_mxfp8_available  # noqa: E402

DELAYED = octet.recipe.DelayedScaling(amax_history_len=4, amax_compute_algo="max")
KWARGS = {
    "delayed": ({"amax_history_len": 4, "amax_compute_algo": "max"}, DELAYED),
    "e4m3": (
        {"fp8_format": "E4M3", "margin": 1},
        octet.recipe.DelayedScaling(margin=1, fp8_format=octet.recipe.Format.E4M3),
    ),
    "mxfp8": ({"use_mxfp8_block_scaling": True}, octet.recipe.MXFP8BlockScaling()),
}


def reset() -> None:
    """Accelerators share one state in a process."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.fixture
def te() -> Iterator[None]:
    reset()
    with compat.install():
        yield
    reset()


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 96),
        torch.nn.LayerNorm(96),
        torch.nn.GELU(),
        torch.nn.Sequential(torch.nn.Linear(96, 32, bias=False)),
    )


def as_converted() -> torch.nn.Module:
    """What convert_model makes of it, by hand."""
    made = octet.convert(model())
    norm = octet.LayerNorm(96, device="cpu")
    norm.load_state_dict(made[1].state_dict())
    made[1] = norm
    return made


def is_octet(module: torch.nn.Module) -> bool:
    return type(module).__module__ == "octet.compat.transformer_engine.pytorch"


@pytest.mark.skipif(is_transformer_engine_available(), reason="it is installed itself")
def test_accelerate_te__finds_it_only_while_it_stands_in() -> None:
    assert not is_transformer_engine_available()
    with compat.install():
        assert is_transformer_engine_available()
        assert is_transformer_engine_mxfp8_available()
    assert not is_transformer_engine_available()


def test_accelerate_te__convert_model_makes_octet_layers(te: None) -> None:
    accelerate.Accelerator(cpu=True)  # convert_model asks for its state
    made, was = model(), model()
    assert not has_transformer_engine_layers(made)
    with torch.no_grad():
        convert_model(made)
    assert has_transformer_engine_layers(made)
    assert [is_octet(module) for module in (made[0], made[1], made[3][0])] == [True] * 3
    for (name, one), (_, two) in zip(
        was.named_parameters(), made.named_parameters(), strict=True
    ):
        assert torch.equal(one, two), name
    first = made[0]
    with torch.no_grad():
        convert_model(made)  # as with TransformerEngine, a second time changes nothing
    assert made[0] is first


@pytest.mark.parametrize("during_eval", [False, True])
def test_accelerate_te__autowrap_quantizes_in_training(te: None, during_eval: bool) -> None:
    accelerate.Accelerator(cpu=True)
    made, x = model(), torch.randn(8, 64)
    with torch.no_grad():
        convert_model(made)
        exact = made(x)
        handler = TERecipeKwargs(
            use_mxfp8_block_scaling=True, use_autocast_during_eval=during_eval
        )
        apply_fp8_autowrap(made, handler)
        assert not torch.equal(made.train()(x), exact)
        torch.testing.assert_close(made(x), exact, atol=0.2, rtol=0.1)
        assert torch.equal(made.eval()(x), exact) == (not during_eval)


@pytest.mark.parametrize("name", KWARGS)
def test_accelerate_te__mixed_precision_fp8_trains_as_octet_does(te: None, name: str) -> None:
    """The Accelerator's loop on the CPU, and the same by hand: bf16 autocast and a recipe."""
    asked, recipe = KWARGS[name]

    def batches() -> Iterator[torch.Tensor]:
        torch.manual_seed(2)
        yield from (torch.randn(8, 64) for _ in range(3))

    def by_hand() -> tuple[list[float], list[torch.Tensor]]:
        made, losses = as_converted(), []
        optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
        for x in batches():
            with torch.autocast("cpu", torch.bfloat16), octet.autocast(recipe=recipe):
                y = made(x)
            loss = y.float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, [parameter.detach() for parameter in made.parameters()]

    def by_accelerate() -> tuple[list[float], list[torch.Tensor]]:
        accelerator = accelerate.Accelerator(
            cpu=True, mixed_precision="fp8", kwargs_handlers=[TERecipeKwargs(**asked)]
        )
        made, losses = model(), []
        optimizer: Any = torch.optim.SGD(made.parameters(), lr=0.5)
        made, optimizer = accelerator.prepare(made, optimizer)
        assert is_octet(made[0])
        for x in batches():
            loss = made(x).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, [parameter.detach() for parameter in made.parameters()]

    (wanted, one), (found, two) = by_hand(), by_accelerate()
    assert found == wanted
    assert found[-1] < found[0]
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_accelerate_te__a_field_that_the_recipe_has_not_is_named(te: None) -> None:
    handler = TERecipeKwargs(override_linear_precision=(False, False, True))
    with pytest.raises(TypeError, match="override_linear_precision"):
        apply_fp8_autowrap(model(), handler)
