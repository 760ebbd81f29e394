"""Calls inside a backward: never silently another precision, whoever runs them."""

from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, step, twins, within
from torch.utils.checkpoint import checkpoint

import torch

STATELESS = ["none", "current", "block", "mxfp8"]


class Mine(torch.autograd.Function):
    """A checkpoint as anybody could write it."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        ctx.run, ctx.parameters = run, parameters
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        found = torch.autograd.grad(y, [x, *ctx.parameters], grad)
        return None, *found


class Reversible(torch.autograd.Function):
    """x1, x2 -> x1 + f(x2), x2 + f(y1): backward computes the inputs from the outputs."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        f: Any,  # noqa: ANN401
        x1: torch.Tensor,
        x2: torch.Tensor,
        *parameters: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.f, ctx.parameters = f, parameters
        y1 = x1 + f(x2)
        y2 = x2 + f(y1)
        ctx.save_for_backward(y1, y2)
        return y1, y2

    @staticmethod
    def backward(ctx: Any, g1: torch.Tensor, g2: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        y1, y2 = (t.detach() for t in ctx.saved_tensors)
        y1.requires_grad_()
        with torch.enable_grad():
            made = ctx.f(y1)
        x2 = (y2 - made).detach().requires_grad_()
        first = torch.autograd.grad(made, [y1, *ctx.parameters], g2)
        g1 = g1 + first[0]
        with torch.enable_grad():
            made = ctx.f(x2)
        second = torch.autograd.grad(made, [x2, *ctx.parameters], g1)
        grads = [a + b for a, b in zip(first[1:], second[1:], strict=True)]
        return None, g1, g2 + second[0], *grads


@pytest.mark.parametrize("name", [*STATELESS, "nvfp4", "delayed"])
@pytest.mark.parametrize("around", [False, True])
def test_recompute__a_checkpoint_of_ones_own(name: str, around: bool) -> None:
    """With the backward outside of the autocast, and inside another recipe's."""
    usual, other = twins()
    x, grad = inputs()
    active = RECIPES[name]
    if name == "nvfp4":
        active = octet.recipe.NVFP4BlockScaling(disable_stochastic_rounding=True)
    want = step(usual, within(active, usual), x, grad)

    def call(x: torch.Tensor) -> torch.Tensor:
        return Mine.apply(other, x, other.weight, other.bias)

    x = x.requires_grad_()
    torch.manual_seed(3)
    y = within(active, call)(x)
    with octet.autocast(enabled=around, recipe=RECIPES["block"]):
        y.backward(grad)
    found = [y.detach(), x.grad, other.weight.grad, other.bias.grad]
    assert_same(want[:4], found)


@pytest.mark.parametrize("name", STATELESS)
def test_recompute__a_reversible_block(name: str) -> None:
    linear = octet.Linear(32, 32, device="cpu")
    active = RECIPES[name]
    x1, x2, g1, g2 = torch.randn(4, 8, 32).unbind()
    x1.requires_grad_(), x2.requires_grad_()

    def plain(x1: torch.Tensor, x2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y1 = x1 + linear(x2)
        return y1, x2 + linear(y1)

    def reversible(x1: torch.Tensor, x2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return Reversible.apply(linear, x1, x2, linear.weight, linear.bias)

    found = []
    for call in (plain, reversible):
        ys = within(active, call)(x1, x2)
        found.append(torch.autograd.grad(ys, [x1, x2, linear.weight], [g1, g2]))
    tolerance = 1e-4 if name == "none" else 0.05  # x2 comes out of a subtraction
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() <= tolerance * a.norm()


def in_hook(linear: octet.Linear, run: Any, active: Any) -> list[torch.Tensor]:  # noqa: ANN401
    """What a gradient hook computes by the layer, in a step whose autocast is left by then."""
    x, grad = inputs()
    x.requires_grad_()
    found: list[torch.Tensor] = []
    y = within(active, linear)(x)
    y.register_hook(lambda g: found.append(run(x.detach()).detach()))
    y.backward(grad)
    return found


def test_recompute__an_autocast_inside_a_hook_decides() -> None:
    linear = layer()
    x, _ = inputs()
    for name in ("block", "none"):
        (found,) = in_hook(linear, within(RECIPES[name], linear), RECIPES["mxfp8"])
        assert torch.equal(found, within(RECIPES[name], linear)(x))


@pytest.mark.parametrize("compile_it", [False, True])
def test_recompute__a_hook_that_says_nothing_is_refused_if_it_would_change(
    compile_it: bool,
) -> None:
    linear = layer(name="fc1")
    if compile_it:
        run = compiled(linear)[0]
        x, _ = inputs()
        (found,) = in_hook(linear, run, None)
        assert torch.equal(found, linear(x))
        # Traced code knows the last call's recipe and repeats it.
        (found,) = in_hook(linear, run, RECIPES["mxfp8"])
        assert torch.equal(found, within(RECIPES["mxfp8"], linear)(x))
        return
    with pytest.raises(RuntimeError, match=r"'fc1'.*no recipe.*recipe mxfp8.*octet.autocast"):
        in_hook(linear, linear, RECIPES["mxfp8"])
    (found,) = in_hook(linear, linear, None)
    assert torch.equal(found, linear(inputs()[0]))


def test_recompute__a_hook_inside_the_autocast_is_like_any_call() -> None:
    linear = layer()
    x, grad = inputs()
    x.requires_grad_()
    found: list[torch.Tensor] = []
    with octet.autocast(recipe=RECIPES["mxfp8"]):
        y = linear(x)
        y.register_hook(lambda g: found.append(linear(x.detach()).detach()))
        y.backward(grad)
    assert torch.equal(found[0], y.detach())


@pytest.mark.parametrize("name", [*STATELESS, "nvfp4"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute__compiled_blocks_in_a_checkpoint_with_the_autocast_outside(
    name: str, reentrant: bool
) -> None:
    usual, other = twins()
    x, grad = inputs()
    active = RECIPES[name]
    want = step(usual, within(active, usual), x, grad)
    fast = compiled(other)[0]
    for _ in range(2):  # and once more, with all graphs there
        within(None, fast)(x)  # the graph without a recipe is there, too
        call = within(active, lambda x: checkpoint(fast, x, use_reentrant=reentrant))
        assert_same(want, step(other, call, x, grad))


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute__compiled_delayed_scaling_in_a_checkpoint_is_refused(
    reentrant: bool,
) -> None:
    linear = layer(name="fc1")
    x, grad = inputs()
    fast = compiled(linear)[0]
    call = within(RECIPES["delayed"], lambda x: checkpoint(fast, x, use_reentrant=reentrant))
    step(linear, within(RECIPES["delayed"], fast), x, grad)  # compiled before, outside of one
    with pytest.raises(Exception, match=r"'fc1'.*checkpoint"):
        step(linear, call, x, grad)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("between", ["none", "block", "eager block"])
def test_recompute__compiled_code_repeats_its_first_run(reentrant: bool, between: str) -> None:
    """Whatever the layer did in between, and whatever autocast is around the backward."""
    usual, linear = twins(name="fc1")
    x, grad = inputs()
    want = step(usual, within(RECIPES["mxfp8"], usual), x, grad)
    fast = compiled(linear)[0]
    x = x.requires_grad_()
    y = within(RECIPES["mxfp8"], lambda x: checkpoint(fast, x, use_reentrant=reentrant))(x)
    with torch.no_grad():
        run = linear if between.startswith("eager") else fast
        within(RECIPES[between.split()[-1]], run)(x)
    with octet.autocast(recipe=RECIPES["block"]):
        y.backward(grad)
    assert_same(want[:3], [y.detach(), x.grad, linear.weight.grad])


def test_recompute__compiled_code_in_a_hook_under_another_autocast_is_refused() -> None:
    linear = layer(name="fc1")
    x, grad = inputs()
    fast, x = compiled(linear)[0], x.requires_grad_()
    y = within(RECIPES["mxfp8"], fast)(x)
    y.register_hook(lambda g: fast(x.detach()).detach())
    with (
        octet.autocast(recipe=RECIPES["block"]),
        pytest.raises(Exception, match=r"'fc1'.*inside a backward"),
    ):
        y.backward(grad)


@pytest.mark.parametrize("name", [*STATELESS, "nvfp4", "delayed"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("compile_it", [False, True])
def test_checkpoint__octets_own(name: str, reentrant: bool, compile_it: bool) -> None:
    if name == "delayed" and compile_it:
        pytest.skip("delayed scaling belongs outside of checkpoints of compiled code")
    usual, other = twins()
    x, grad = inputs()
    active = RECIPES[name]
    want = step(usual, within(active, usual), x, grad)
    run = compiled(other)[0] if compile_it else other
    call = within(active, lambda x: octet.checkpoint(run, x, use_reentrant=reentrant))
    assert_same(want, step(other, call, x, grad))


class Tracker:
    """States of random numbers by name, as Megatron's and TransformerEngine's trackers."""

    def __init__(self) -> None:
        self.state = torch.Generator().manual_seed(5).get_state()

    def get_states(self) -> dict[str, torch.Tensor]:
        return {"ranks": self.state}

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self.state = states["ranks"]

    def dropped(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.Generator()
        made.set_state(self.state)
        kept = torch.rand(x.shape, generator=made) < 0.5
        self.state = made.get_state()
        return x * kept


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint__octets_own_draws_by_a_trackers_first_states(reentrant: bool) -> None:
    usual, other = twins()
    x, grad = inputs()
    first, second = Tracker(), Tracker()
    want = step(usual, within(RECIPES["mxfp8"], lambda x: usual(first.dropped(x))), x, grad)
    asked = {"get_rng_state_tracker": lambda: second, "tp_group": None}

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return other(second.dropped(x))

    def call(x: torch.Tensor) -> torch.Tensor:
        y = octet.checkpoint(dropped, x, use_reentrant=reentrant, **asked)
        second.dropped(y)  # backward comes after other draws
        return y

    assert_same(want, step(other, within(RECIPES["mxfp8"], call), x, grad))
    first.dropped(grad)
    assert torch.equal(first.state, second.state)


def test_checkpoint__what_is_saved_is_not_split_over_ranks() -> None:
    x = inputs()[0].requires_grad_()
    with pytest.raises(NotImplementedError, match="not split over ranks; leave it out, or use"):
        octet.checkpoint(layer(), x, distribute_saved_activations=True)


@pytest.mark.parametrize("name", [*STATELESS, "nvfp4"])
def test_checkpoint__octets_own_inside_a_graph(name: str) -> None:
    usual, other = twins()
    x, grad = inputs()
    want = step(usual, within(RECIPES[name], usual), x, grad)
    call = within(RECIPES[name], lambda x: octet.checkpoint(other, x))
    assert_same(want, step(other, compiled(call)[0], x, grad))


def test_checkpoint__octets_own_passes_keywords_on() -> None:
    linear = layer(return_bias=False)
    x, grad = inputs()
    seen = {}

    def function(x: torch.Tensor, *, scale: float) -> torch.Tensor:
        seen["scale"] = scale
        return linear(x) * scale

    y = within(RECIPES["mxfp8"], lambda x: octet.checkpoint(function, x, scale=2.0))(
        x.requires_grad_()
    )
    y.backward(grad)
    assert seen["scale"] == 2.0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint__octets_own_may_leave_random_numbers_alone(reentrant: bool) -> None:
    linear, (x, grad) = layer(), inputs()
    drawn = []

    def function(x: torch.Tensor) -> torch.Tensor:
        drawn.append(torch.rand(1).item())
        return linear(x)

    for preserves in (True, False):
        drawn.clear()
        y = octet.checkpoint(
            function,
            x.clone().requires_grad_(),
            use_reentrant=reentrant,
            preserve_rng_state=preserves,
        )
        y.backward(grad)
        assert (drawn[0] == drawn[1]) is preserves


def test_checkpoint__octets_own_refuses_a_tracker_in_compiled_code() -> None:
    linear, (x, _) = layer(), inputs()

    def call(x: torch.Tensor) -> torch.Tensor:
        return octet.checkpoint(linear, x, get_rng_state_tracker=Tracker)

    with pytest.raises(Exception, match="in eager code"):
        compiled(call)[0](x.requires_grad_())


def test_recompute__evaluation_between_forward_and_backward_changes_nothing() -> None:
    usual, other = twins()
    x, grad = inputs()
    want = step(usual, within(RECIPES["mxfp8"], usual), x, grad)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = within(RECIPES["mxfp8"], lambda x: checkpoint(other, x, use_reentrant=False))(x)
        with torch.no_grad():
            other(x)
            within(RECIPES["block"], other)(x)
        return y

    assert_same(want, step(other, call, x, grad))


def with_constant_weights(linear: octet.Linear, run: Any, inside: bool) -> torch.Tensor:  # noqa: ANN401
    """Two steps whose weights are cast in the first one; the gradient of the input."""
    x, grad = inputs()
    x, ys = x.requires_grad_(), []
    with octet.constant_weights():
        for factor in (1, 8):
            ys.append(within(RECIPES["delayed"], run)(x * factor))
        if inside:
            ys[1].backward(grad)
    if not inside:
        ys[1].backward(grad)
    return x.grad


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute__by_a_weight_that_an_earlier_step_cast(reentrant: bool) -> None:
    usual, other, late = (layer() for _ in range(3))
    want = with_constant_weights(usual, usual, True)

    def run(linear: octet.Linear) -> Any:  # noqa: ANN401
        return lambda x: checkpoint(linear, x, use_reentrant=reentrant)

    assert torch.equal(with_constant_weights(other, run(other), True), want)
    with pytest.raises(RuntimeError, match=r"octet\.Linear.*inside octet\.constant_weights"):
        with_constant_weights(late, run(late), False)


def trained_twins() -> tuple[octet.Linear, octet.Linear]:
    """Two layers in eval() whose scales have learned."""
    usual, other = twins()
    x, grad = inputs()
    for each in (usual, other):
        for _ in range(2):
            step(each, within(RECIPES["delayed"], each), x, grad)
        each.eval()
    return usual, other


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute__in_eval_by_the_scales_of_the_layer(reentrant: bool) -> None:
    usual, other = trained_twins()
    x, grad = inputs()
    want = step(usual, within(RECIPES["delayed"], usual), x, grad)
    found = step(
        other,
        within(RECIPES["delayed"], lambda x: checkpoint(other, x, use_reentrant=reentrant)),
        x,
        grad,
    )
    assert_same(want, found)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("calibrating", [False, True])
def test_recompute__in_eval_records_nothing_in_backward(
    reentrant: bool, calibrating: bool
) -> None:
    _, other = trained_twins()
    x, grad = inputs()
    region = octet.autocast(not calibrating, calibrating, RECIPES["delayed"])
    with region:
        y = checkpoint(other, x.requires_grad_(), use_reentrant=reentrant)
    before = {name: value.clone() for name, value in other.named_buffers()}
    y.backward(grad)
    assert before
    for name, value in other.named_buffers():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute__in_eval_scales_that_others_have_updated_are_refused(
    reentrant: bool,
) -> None:
    _, other = trained_twins()
    x, grad = inputs()
    y = within(
        RECIPES["delayed"],
        lambda x: checkpoint(other, x, use_reentrant=reentrant),
    )(x.requires_grad_())
    other.fp8_scale.mul_(2)
    with pytest.raises(RuntimeError, match="scales were updated since its first run"):
        y.backward(grad)


class Checkpointed(torch.nn.Module):
    """A layer inside a checkpoint."""

    def __init__(self, inner: octet.Linear, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute__in_eval_by_the_scales_that_a_call_was_given(reentrant: bool) -> None:
    usual, other = trained_twins()
    x, grad = inputs()
    state = usual.fp8_state.clone()
    state[0] *= 0.125
    around = Checkpointed(other, reentrant)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(usual, {"fp8_state": state}, (x,))

    def again(x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(around, {"inner.fp8_state": state}, (x,))

    want = step(usual, within(RECIPES["delayed"], plain), x, grad)
    assert_same(want, step(other, within(RECIPES["delayed"], again), x, grad))
