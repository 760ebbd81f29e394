"""Random numbers of stochastic rounding come from torch's generator, as dropout's do."""

import copy
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, twins, within
from torch.utils.checkpoint import checkpoint

import torch

NVFP4 = RECIPES["nvfp4"]
EVERYWHERE = octet.recipe.NVFP4BlockScaling(
    disable_rht=True,
    fp4_quant_fwd_inp=octet.recipe.QParams(stochastic_rounding=True),
)


def gradients(linear: octet.Linear, call: Any, seed: int | None = None) -> list[Any]:  # noqa: ANN401
    """Output and gradients of a step, after seeding torch or not."""
    x, grad = inputs()
    x.requires_grad_()
    linear.zero_grad()
    if seed is not None:
        torch.manual_seed(seed)
    y = call(x)
    y.backward(grad)
    return [y.detach(), x.grad, linear.weight.grad]


@pytest.mark.parametrize(
    "active", [NVFP4, EVERYWHERE, RECIPES["mxfp4"]], ids=["nvfp4", "everywhere", "mxfp4"]
)
@pytest.mark.parametrize("compile_it", [None, "aot_eager", "inductor"])
def test_random__torchs_seed_decides(active: Any, compile_it: str | None) -> None:  # noqa: ANN401
    linear, other = twins()
    call = within(active, linear)
    call = call if compile_it is None else compiled(call, compile_it)[0]
    first, second = gradients(linear, call, 5), gradients(linear, call, 6)
    assert_same(first, gradients(other, within(active, other), 5))
    assert_same(second, gradients(other, within(active, other), 6))
    assert not torch.equal(first[2], second[2])


@pytest.mark.parametrize("compile_it", [False, True])
def test_random__each_call_draws_anew(compile_it: bool) -> None:
    linear = layer()
    call = compiled(within(NVFP4, linear))[0] if compile_it else within(NVFP4, linear)
    first, second = gradients(linear, call, 5), gradients(linear, call)
    assert not torch.equal(first[2], second[2])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_random__calls_of_a_graph_draw_one_by_one_in_the_order_of_the_program(
    backend: str,
) -> None:
    """Draws are neither merged nor moved to where they are used, which is the backward."""
    layers = [layer() for _ in range(3)]
    x, grad = inputs()

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return layers[0](x), layers[1](x), layers[2](x)

    def run(call: Any) -> list[Any]:  # noqa: ANN401
        torch.manual_seed(5)
        ys = call(x)
        after = torch.get_rng_state()
        grads = torch.autograd.grad(ys, [each.weight for each in layers], [grad] * 3)
        return [*ys, *grads, after]

    want = run(within(NVFP4, call))
    assert not torch.equal(want[3], want[4])
    assert_same(want, run(compiled(within(NVFP4, call), backend)[0]))


def test_random__a_graph_runs_backward_twice_alike() -> None:
    linear = layer()
    x, grad = inputs()
    x.requires_grad_()
    y = within(NVFP4, linear)(x)
    (first,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    (second,) = torch.autograd.grad(y, x, grad)
    assert torch.equal(first, second)


def test_random__a_saved_generator_resumes_exactly() -> None:
    linear, other = twins()
    call = within(NVFP4, linear)
    gradients(linear, call, 5)
    state, weights = torch.get_rng_state(), copy.deepcopy(linear.state_dict())
    want = [gradients(linear, call) for _ in range(2)]
    other.load_state_dict(weights)
    torch.set_rng_state(state)
    for each in want:
        assert_same(each, gradients(other, within(NVFP4, other)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_random__checkpoints_draw_what_the_first_run_drew(reentrant: bool) -> None:
    linear, other = twins()

    def call(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(other, x, use_reentrant=reentrant)

    want = gradients(linear, within(NVFP4, linear), 5)
    assert_same(want, gradients(other, within(NVFP4, call), 5))


def test_random__compiled_checkpoints_draw_what_the_first_run_drew() -> None:
    linear, other = twins()

    def call(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: other(x) * 2, x, use_reentrant=False)

    want = gradients(linear, within(NVFP4, lambda x: linear(x) * 2), 5)
    assert_same(want, gradients(other, compiled(within(NVFP4, call))[0], 5))


def test_random__a_layer_has_nothing_that_a_tool_could_corrupt() -> None:
    """After training: the keys of nn.Linear, and no buffers."""
    linear = layer()
    gradients(linear, within(NVFP4, linear), 5)
    assert list(linear.state_dict()) == ["weight", "bias"]
    assert not list(linear.buffers())
    torch.nn.Linear(70, 44).load_state_dict(linear.state_dict(), strict=True)
    moved = copy.deepcopy(linear).type(torch.float32).type(torch.bfloat16)
    assert_same(
        gradients(linear, within(NVFP4, linear), 7), gradients(moved, within(NVFP4, moved), 7)
    )


def test_random__layers_and_calls_that_need_none_draw_none() -> None:
    linear = layer()
    x, _ = inputs()
    before = torch.get_rng_state()
    linear.eval()
    for without in (torch.inference_mode, torch.no_grad):
        with without():
            within(NVFP4, linear)(x)
    linear.train()
    within(RECIPES["mxfp8"], linear)(x)
    assert torch.equal(before, torch.get_rng_state())


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias returned": {"return_bias": True},
    "main_grad": {"fuse_wgrad_accumulation": True},
    "wgrad later": {"delay_wgrad_compute": True},
    "quantized": {},
}


def of_kind(kind: str) -> octet.Linear:
    with octet.quantized_model_init(enabled=kind == "quantized", recipe=NVFP4):
        linear = layer(**KINDS[kind])
    linear.weight.main_grad = torch.zeros(44, 70)
    return linear


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_random__calls_without_a_graph_draw_as_dropout_does(
    kind: str,
    without: Any,  # noqa: ANN401
) -> None:
    """In train() they draw what their backward would read, in eval() nothing; eager and
    compiled calls alike, a call that caches its weight, too."""
    linear, (x, _) = of_kind(kind), inputs()
    fast = compiled(within(NVFP4, linear))[0]
    for training in (True, False):
        linear.train(training)
        for words in ((), (True,), (False,)):
            found = []
            for call in (within(NVFP4, linear), fast):
                torch.manual_seed(5)
                with without():
                    call(x, *words)
                found.append(torch.get_rng_state())
            assert torch.equal(*found)
            torch.manual_seed(5)
            assert torch.equal(found[0], torch.get_rng_state()) is not training


def test_random__reentrant_checkpoints_round_by_other_numbers_at_each_step() -> None:
    """Their first run has no graph. It draws all the same, as dropout does: what runs again
    starts from the generator's state of then."""
    linear, (x, grad) = layer(), inputs()
    x.requires_grad_()

    def again(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(linear, x, use_reentrant=True)

    def two(call: Any) -> list[Any]:  # noqa: ANN401
        torch.manual_seed(5)
        found = []
        for _ in range(2):
            linear.zero_grad()
            within(NVFP4, call)(x).backward(grad)
            found.append(linear.weight.grad.clone())
        return found

    wanted = two(linear)
    assert not torch.equal(*wanted)
    assert_same(wanted, two(again))
