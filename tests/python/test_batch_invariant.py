"""batch_invariant: a row's result is the same in every batch, eager and compiled."""

from collections.abc import Callable

import octet
import pytest
from laws import compiled, within
from octet.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    MXFP4BlockScaling,
    MXFP8BlockScaling,
    Recipe,
)

import torch

RECIPES = {
    "mxfp8": MXFP8BlockScaling(batch_invariant=True),
    "block": Float8BlockScaling(batch_invariant=True),
    "mxfp4": MXFP4BlockScaling(disable_stochastic_rounding=True, batch_invariant=True),
    "delayed": DelayedScaling(batch_invariant=True),
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
K, N = 136, 520  # a weight that is large enough to be read where it lies
SIZES = (1, 2, 7, 16, 17, 40, 129, 300)
LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "Linear": lambda: octet.Linear(K, N, params_dtype=torch.bfloat16, device="cpu"),
    "LayerNormLinear": lambda: octet.LayerNormLinear(
        K, N, params_dtype=torch.bfloat16, device="cpu"
    ),
    "LayerNormMLP": lambda: octet.LayerNormMLP(
        K, N, params_dtype=torch.bfloat16, device="cpu", activation="swiglu"
    ),
}

Rows = tuple[torch.Tensor, torch.Tensor]


def pool() -> torch.Tensor:
    """Rows that batches are made of; the last ones are unusual."""
    torch.manual_seed(3)
    rows = torch.randn(37, K)
    rows[32, 5] = float("nan")
    rows[33, 6] = float("inf")
    rows[34] *= 1e37
    rows[35] *= 1e-38
    rows[36] = 0
    return rows.bfloat16()


def deal(size: int) -> torch.Tensor:
    """Which rows of the pool a batch has: another order and other neighbours for each size."""
    return (torch.arange(size) * (size % 31 + 1) + 3 * size) % 37


def rows_of(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Rows:
    """y, and the gradient of x where each row's gradient is a function of its own y."""
    x = x.detach().requires_grad_()
    y = call(x)
    (dx,) = torch.autograd.grad(y, x, grad_outputs=y.detach() / 8)
    return y.detach(), dx


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16)


def assert_rows(found: Rows, expected: Rows, which: torch.Tensor) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(bits(mine), bits(theirs[which]))


@every_recipe
@pytest.mark.parametrize("kind", LAYERS)
def test_batch_invariant__rows_do_not_see_their_batch(kind: str, recipe: Recipe) -> None:
    torch.manual_seed(1)
    layer = LAYERS[kind]().eval()
    call, x = within(recipe, layer), pool()
    expected = rows_of(call, x)
    for size in SIZES:
        assert_rows(rows_of(call, x[deal(size)]), expected, deal(size))


@pytest.mark.parametrize("recipe", [RECIPES["mxfp8"], RECIPES["block"]], ids=["mxfp8", "block"])
@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear"])
def test_batch_invariant__compiled_rows_are_eager_ones(kind: str, recipe: Recipe) -> None:
    """One dynamic graph, called in turns with the eager layer."""
    torch.manual_seed(1)
    layer = LAYERS[kind]().eval()
    call, x = within(recipe, layer), pool()
    fast, counter = compiled(call, "aot_eager", dynamic=True)
    expected = rows_of(call, x)
    for size in (2, 17, 16, 300):
        assert_rows(rows_of(fast, x[deal(size)]), expected, deal(size))
        assert_rows(rows_of(call, x[deal(size)]), expected, deal(size))
    assert counter.frame_count == 1


@every_recipe
def test_batch_invariant__cached_weights_and_axes_change_nothing(recipe: Recipe) -> None:
    torch.manual_seed(1)
    layer = LAYERS["Linear"]().eval()
    call, x = within(recipe, layer), pool()
    with torch.no_grad():
        expected = call(x)
        with octet.constant_weights():
            for size in (1, 16, 30):
                assert torch.equal(bits(call(x[deal(size)])), bits(expected[deal(size)]))
                batch = call(x[deal(2 * size)].view(2, 1, size, K)).reshape(2 * size, N)
                assert torch.equal(bits(batch), bits(expected[deal(2 * size)]))


def test_batch_invariant__training_in_delayed_scaling_sees_no_neighbour() -> None:
    """The scales of a step come from earlier ones; this batch moves only the next."""
    recipe = RECIPES["delayed"]
    torch.manual_seed(1)
    x, found = pool()[:32], []
    for size in (1, 5, 32):
        torch.manual_seed(1)
        layer = LAYERS["Linear"]().train()
        found.append(within(recipe, layer)(x[:size]).detach()[0])
    assert all(torch.equal(bits(y), bits(found[0])) for y in found)


def test_batch_invariant__changes_no_other_result_beyond_rounding() -> None:
    torch.manual_seed(1)
    layer, x = LAYERS["Linear"]().eval(), pool()[:32]
    y = within(MXFP8BlockScaling(), layer)(x)
    pinned = within(RECIPES["mxfp8"], layer)(x)
    torch.testing.assert_close(pinned, y, rtol=2**-7, atol=1e-5)
