"""FlopCounterMode counts a layer's products as it counts nn.Linear's."""

import octet
import pytest
from laws import RECIPES, within
from torch.utils.flop_counter import FlopCounterMode

import torch


def counted(call: torch.nn.Module, x: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        call(x).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("of_input", [False, True])
def test_flops__are_those_of_nn_linear(name: str, of_input: bool) -> None:
    plain = torch.nn.Linear(48, 32, dtype=torch.bfloat16)
    layer = octet.convert(torch.nn.Linear(48, 32, dtype=torch.bfloat16))
    x = torch.randn(2, 8, 48, dtype=torch.bfloat16, requires_grad=of_input)
    wanted = 2 * 16 * 48 * 32 * (3 if of_input else 2)
    assert counted(plain, x) == counted(within(RECIPES[name], layer), x) == wanted


def test_flops__of_a_frozen_layer_and_of_one_without_gradients() -> None:
    layer = octet.Linear(48, 32, params_dtype=torch.bfloat16, device="cpu").requires_grad_(
        False
    )
    x = torch.randn(16, 48, dtype=torch.bfloat16, requires_grad=True)
    assert counted(within(RECIPES["mxfp8"], layer), x) == 2 * 2 * 16 * 48 * 32
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(x)
    assert counter.get_total_flops() == 2 * 16 * 48 * 32


def test_flops__of_weight_gradients_that_come_later() -> None:
    layer = octet.Linear(
        48, 32, params_dtype=torch.bfloat16, device="cpu", delay_wgrad_compute=True
    )
    x = torch.randn(16, 48, dtype=torch.bfloat16, requires_grad=True)
    call = within(RECIPES["current"], layer)
    assert counted(call, x) == 2 * 2 * 16 * 48 * 32
    with FlopCounterMode(display=False) as counter:
        layer.backward_dw()
    assert counter.get_total_flops() == 2 * 16 * 48 * 32
