"""Linear inside training: autograd's features, random numbers, derivatives of derivatives."""

import gc

import octet
import pytest
from laws import DRAWING, RECIPES, assert_same, compiled, inputs, layer, within
from octet import recipe
from octet.state import seeds

import torch

MX = RECIPES["mxfp8"]
STATELESS = ["none", "current", "block", "mxfp8"]


# ---- autograd --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STATELESS)
@pytest.mark.parametrize("compile_it", [False, True])
def test_training__a_graph_runs_backward_twice(name: str, compile_it: bool) -> None:
    linear = layer()
    x, grad = inputs()
    x.requires_grad_()
    call = within(RECIPES[name], linear)
    y = (compiled(call)[0] if compile_it else call)(x)
    first = torch.autograd.grad(y, [x, linear.weight], grad, retain_graph=True)
    assert_same(list(first), list(torch.autograd.grad(y, [x, linear.weight], grad)))


# ---- random numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("compile_it", [False, True])
def test_training__a_call_draws_one_seed_for_all_its_backwards(compile_it: bool) -> None:
    """By torch's generator: the same seed gives the same bits, and a saved state goes on."""
    linear, (x, grad) = layer(), inputs()
    x.requires_grad_()
    call = within(RECIPES["nvfp4"], linear)
    call = compiled(call)[0] if compile_it else call

    def gradients(y: torch.Tensor, **options: bool) -> list[torch.Tensor]:
        return list(torch.autograd.grad(y, [x, linear.weight], grad, **options))

    call(x)
    torch.manual_seed(5)
    first = call(x)
    between = torch.get_rng_state()
    second = call(x)
    after = torch.get_rng_state()
    assert not torch.equal(between, after)
    once = gradients(first, retain_graph=True)
    assert_same(once, gradients(first))
    anew = gradients(second)
    assert torch.equal(torch.get_rng_state(), after)  # backwards draw nothing
    assert not torch.equal(once[0], anew[0])
    assert not torch.equal(once[1], anew[1])
    torch.set_rng_state(between)
    assert_same(anew, gradients(call(x)))
    torch.manual_seed(5)
    assert_same(once, gradients(call(x)))
    torch.manual_seed(6)
    assert not torch.equal(once[0], gradients(call(x))[0])


@pytest.mark.parametrize("compile_it", [False, True])
def test_training__layers_draw_each_their_own(compile_it: bool) -> None:
    """Two of the same weights and one layer called twice, in one graph."""
    one, other = layer(), layer()
    x, grad = inputs()
    leaves = [x.clone().requires_grad_() for _ in range(3)]
    call = within(RECIPES["nvfp4"], lambda a, b, c: (one(a), other(b), one(c)))
    outputs = (compiled(call)[0] if compile_it else call)(*leaves)
    torch.autograd.backward(outputs, [grad] * 3)
    assert_same(list(outputs[:1] * 2), list(outputs[1:]))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(leaves[a].grad, leaves[b].grad)


@pytest.mark.parametrize("compile_it", [False, True])
def test_training__what_rounds_nothing_at_random_draws_nothing(compile_it: bool) -> None:
    linear, (x, grad) = layer(), inputs()
    for name in RECIPES:
        call = within(RECIPES[name], linear)
        call = compiled(call)[0] if compile_it else call
        before = torch.get_rng_state()
        if name in DRAWING:  # which round gradients so, also those of a later recomputation
            linear.eval()
            with torch.no_grad():
                call(x)
            linear.train()
        else:
            call(x).backward(grad)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices of the seeds that were drawn since the test began."""
    found: list[torch.device] = []
    draw = seeds.draw
    monkeypatch.setattr(seeds, "draw", lambda device: found.append(device) or draw(device))
    return found


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_training__a_quantized_gradient_takes_as_many_seeds(
    quantized: bool, frozen: bool, compile_it: bool, draws: list[torch.device]
) -> None:
    """Bytes of rows serve dgrad as they are; only for wgrad are they rounded again."""
    quantizers = {
        "input": octet.MXFP8Quantizer("e4m3"),
        "weight": octet.MXFP8Quantizer("e4m3"),
        "grad_output": octet.NVFP4Quantizer(stochastic_rounding=True),
        "grad_input": octet.MXFP8Quantizer("e4m3"),
    }
    active = recipe.CustomRecipe(lambda role: quantizers.get(role.tensor_type))
    first, second = layer(), octet.Linear(44, 20, params_dtype=torch.bfloat16, device="cpu")
    first.weight.requires_grad_(not frozen)
    x, _ = inputs()
    grad = torch.randn(3, 13, 20, dtype=torch.bfloat16)
    call = within(active, lambda x: second(first(x), fp8_grad=quantized))
    call = compiled(call)[0] if compile_it else call
    call(x.requires_grad_()).backward(grad)
    draws.clear()
    y = call(x)
    assert draws == [x.device] * 2  # one for each layer, in forward
    y.backward(grad)
    assert draws == [x.device] * 2


# ---- derivatives of derivatives --------------------------------------------------------------


def test_training__double_backward_is_torchs_error() -> None:
    x, _ = inputs()
    y = within(MX, layer())(x.requires_grad_())
    (dx,) = torch.autograd.grad(y.float().pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("none", {"delay_wgrad_compute": True}),
        ("mxfp8", {}),
        ("mxfp8", {"delay_wgrad_compute": True}),
    ],
    ids=str,
)
def test_training__a_penalty_on_gradients_is_not_dropped(
    name: str, options: dict[str, bool]
) -> None:
    """The input's gradient depends on the weight even where what arrived is a constant."""
    x, _ = inputs()
    linear = layer(**options)
    y = within(RECIPES[name], linear)(x.requires_grad_())
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (y.sum() + dx.pow(2).sum()).backward()


@pytest.mark.parametrize("inside", [False, True])
def test_training__without_a_recipe_has_the_derivatives_of_nn_linear(inside: bool) -> None:
    """A penalty on gradients, by autograd and by torch.func."""
    ours = layer(params_dtype=torch.float32)
    theirs = torch.nn.Linear(70, 44)
    theirs.load_state_dict(ours.state_dict())
    x, _ = inputs(dtype=torch.float32)
    found = []
    for linear in (ours, theirs):
        leaf = x.clone().requires_grad_()
        call = within(None, linear) if inside else linear
        loss = call(leaf).pow(3).sum()
        (dx,) = torch.autograd.grad(loss, leaf, create_graph=True)
        (loss + dx.pow(2).sum()).backward()
        assert dx.requires_grad
        of_rows = torch.func.vmap(torch.func.grad(lambda r, f=call: f(r).pow(2).sum()))
        tangent = torch.func.jvp(call, (x,), (x,))[1]
        grads = [leaf.grad, linear.weight.grad, linear.bias.grad]
        found.append([*grads, of_rows(x).detach(), tangent.detach()])
    assert_same(*found)


def test_training__a_gradient_of_a_frozen_layer_may_be_a_constant() -> None:
    x, _ = inputs()
    y = within(MX, layer().requires_grad_(False))(x.requires_grad_())
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert not dx.requires_grad


def live_bytes() -> int:
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("name", RECIPES)
def test_training__nothing_is_left_after_backward(name: str) -> None:
    linear = layer()
    x, grad = inputs()
    call = within(RECIPES[name], linear)

    def once() -> None:
        call(x).backward(grad)
        linear.zero_grad(set_to_none=True)

    for _ in range(20):  # a layer remembers its last few scales
        once()
    before = live_bytes()
    for _ in range(100):
        once()
    assert live_bytes() <= before  # what others left may go meanwhile
