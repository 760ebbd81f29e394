"""Results do not depend on torch's floating-point mode."""

import octet
import pytest
from octet.recipe import Float8BlockScaling, MXFP8BlockScaling, Recipe

import torch


@pytest.mark.parametrize("recipe", [MXFP8BlockScaling(), Float8BlockScaling()], ids=str)
def test_float_mode__flushing_denormals_changes_no_result(recipe: Recipe) -> None:
    """torch.set_flush_denormal sets the mode of this thread; its pool inherits or does not."""
    torch.manual_seed(0)
    scale = torch.tensor([2.0**-138, 2.0**-70, 2.0**-120, 1.0]).repeat_interleave(10)
    x = torch.rand(40, 128) * scale[:, None]
    layer = octet.Linear(128, 48, bias=False)

    def result() -> torch.Tensor:
        with torch.no_grad(), octet.autocast(recipe=recipe):
            return layer(x)

    plain = result()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        flushed = result()
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(plain.view(torch.int32), flushed.view(torch.int32))
