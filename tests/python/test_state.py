"""A layer's state: saved and loaded, copied, moved, made on meta."""

import copy
import pickle

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, step, within

import torch

MX = RECIPES["mxfp8"]


def test_state__weights_load_to_and_from_torch() -> None:
    linear, other = layer(), torch.nn.Linear(70, 44, dtype=torch.bfloat16)
    other.load_state_dict(linear.state_dict())
    linear.load_state_dict(other.state_dict())
    torch.manual_seed(5)
    ours = octet.Linear(70, 44, device="cpu")
    torch.manual_seed(5)
    theirs = torch.nn.Linear(70, 44)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


@pytest.mark.parametrize("name", RECIPES)
def test_state__resuming_continues_bit_for_bit(name: str) -> None:
    first, second = layer(), layer()
    x, grad = inputs()
    for _ in range(3):
        step(first, within(RECIPES[name], first), x, grad)
    second.load_state_dict(first.state_dict(), strict=True)
    for scale in (2, 1):
        assert_same(
            step(first, within(RECIPES[name], first), x * scale, grad),
            step(second, within(RECIPES[name], second), x * scale, grad),
        )


@pytest.mark.parametrize("name", RECIPES)
def test_state__copies_go_on_alike(name: str) -> None:
    linear = layer()
    x, grad = inputs()
    step(linear, within(RECIPES[name], linear), x, grad)
    others = [copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))]
    for _ in range(2):
        want = step(linear, within(RECIPES[name], linear), x, grad)
        for other in others:
            assert_same(want, step(other, within(RECIPES[name], other), x, grad))


def test_state__meta_layers_materialize() -> None:
    linear = octet.Linear(70, 44, device="meta").to_empty(device="cpu")
    linear.reset_parameters()
    assert within(RECIPES["delayed"], linear)(torch.randn(2, 70)).isfinite().all()


@pytest.mark.parametrize("quantized", [False, True])
def test_state__meta_layers_take_a_checkpoint_as_it_is(quantized: bool) -> None:
    """load_state_dict(assign=True) brings parameters; state comes to where they are."""
    with octet.quantized_model_init(enabled=quantized, recipe=MX):
        linear, other = layer(), layer(device="meta")
    call = within(RECIPES["delayed"], linear)
    x, grad = inputs()
    step(linear, call, x, grad)
    other.load_state_dict(copy.deepcopy(linear.state_dict()), assign=True)
    assert not any(t.is_meta for t in (*other.parameters(), *other.buffers()))
    assert torch.equal(other.fp8_scale, linear.fp8_scale)
    found = step(other, within(RECIPES["delayed"], other), x, grad)
    assert_same(step(linear, call, x, grad), found)


def test_state__that_a_checkpoint_lacks_starts_afresh() -> None:
    linear = layer()
    fresh = copy.deepcopy(linear.state_dict())
    x, grad = inputs()
    for name in ("delayed", "nvfp4"):
        step(linear, within(RECIPES[name], linear), x, grad)
    linear.load_state_dict({"bias": torch.zeros(44)}, strict=False)
    assert not torch.equal(linear.fp8_scale, torch.ones(3))
    linear.load_state_dict({}, strict=False)
    linear.load_state_dict(fresh)
    assert torch.equal(linear.fp8_scale, torch.ones(3))
    assert not linear.fp8_amax_history.any()
    assert not linear.fp8_grad_amax_history.any()


def test_state__of_a_layer_without_memory_is_a_new_layers() -> None:
    """Of what a checkpoint of nn.Linear does not bring, nothing is left to chance."""
    linear = layer(device="meta").to_empty(device="cpu")
    assert torch.equal(linear.fp8_scale, torch.ones(3))
    assert torch.equal(linear.fp8_grad_scale, torch.ones(2))
    assert not linear.fp8_amax_history.any()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("compile_it", [False, True])
def test_state__has_the_keys_of_nn_linear_but_for_delayed_scalings(
    name: str, compile_it: bool
) -> None:
    """Random numbers are torch's, and buffers are there once a layer uses them."""
    linear, unused, plain = layer(), layer(), torch.nn.Linear(70, 44)
    assert list(linear.state_dict()) == list(plain.state_dict())
    x, grad = inputs()
    call = within(RECIPES[name], linear)
    step(linear, compiled(call)[0] if compile_it else call, x, grad)
    scaling = ["fp8_state", "fp8_grad_state"]
    wanted = set(plain.state_dict()) | set(scaling if name == "delayed" else ())
    assert set(linear.state_dict()) == wanted
    assert set(unused.state_dict()) == set(plain.state_dict())


def test_state__random_numbers_resume_with_torchs_generator() -> None:
    """A checkpoint of a model, its optimizer and torch's generator is a whole one."""
    x, grad = inputs()
    call = RECIPES["nvfp4"]

    def train(linear: octet.Linear, steps: int) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
        for _ in range(steps):
            linear.zero_grad()
            within(call, linear)(x).backward(grad)
            optimizer.step()
        return [p.detach().clone() for p in linear.parameters()]

    linear, other, adrift = layer(), layer(), layer()
    train(linear, 2)
    saved = copy.deepcopy(linear.state_dict()), torch.get_rng_state()
    want = train(linear, 2)
    other.load_state_dict(saved[0])
    adrift.load_state_dict(saved[0])
    torch.set_rng_state(saved[1])
    assert_same(want, train(other, 2))
    assert not torch.equal(want[0], train(adrift, 2)[0])


def test_state__of_other_sizes_is_torchs_error() -> None:
    linear = octet.prepare(layer(), RECIPES["delayed"])
    weights = layer().state_dict()
    for damaged, message in (
        ({"fp8_state": torch.ones(7, 9)}, r"mismatch for fp8_state.*\(7, 9\).*1 \+ rows, 3\)"),
        ({"fp8_grad_state": torch.ones(1, 2)}, r"fp8_grad_state.*\(1, 2\).*\(1 \+ rows, 2\)"),
        ({"fp8_scale": torch.ones(7)}, r"mismatch for fp8_scale.*\(7,\).*\(3,\)"),
        ({"fp8_amax_history": torch.ones(7, 9)}, r"fp8_amax_history.*\(7, 9\).*\(rows, 3\)"),
        (
            {"fp8_state": torch.ones(5, 3), "fp8_scale": torch.ones(3)},
            "fp8_state and fp8_scale are both in the checkpoint",
        ),
    ):
        with pytest.raises(RuntimeError, match=message):
            linear.load_state_dict(weights | damaged)
        assert torch.equal(linear.fp8_scale, torch.ones(3))
        assert not linear.fp8_amax_history.any()


@pytest.mark.parametrize("assign", [False, True])
def test_state__scales_and_histories_that_were_saved_apart_are_loaded(assign: bool) -> None:
    linear, (x, grad) = layer(), inputs()
    for factor in (1, 3):
        step(linear, within(RECIPES["delayed"], linear), x * factor, grad)
    saved = dict(linear.state_dict())
    for name in ("fp8_state", "fp8_grad_state"):
        state, kind = saved.pop(name), name.removesuffix("state")
        saved[f"{kind}scale"], saved[f"{kind}amax_history"] = state[0], state[1:]
    other = layer()
    other.load_state_dict(saved, assign=assign)
    assert_same(list(linear.state_dict().values()), list(other.state_dict().values()))
    del saved["fp8_grad_scale"], saved["fp8_amax_history"]
    other.load_state_dict(saved)
    assert torch.equal(other.fp8_scale, linear.fp8_scale)
    assert not other.fp8_amax_history.any()
    assert torch.equal(other.fp8_grad_scale, torch.ones(2))
    assert torch.equal(other.fp8_grad_amax_history, linear.fp8_grad_amax_history)


def test_state__scales_and_histories_are_views() -> None:
    linear = octet.prepare(layer(name="fc1"), RECIPES["delayed"])
    linear.fp8_scale[1] = 8.0
    linear.fp8_grad_amax_history[0, 1] = 4.0
    assert linear.fp8_state[0].tolist() == [1.0, 8.0, 1.0]
    assert linear.fp8_grad_state[1].tolist() == [0.0, 4.0]
    for name in ("fp8_scale", "fp8_amax_history", "fp8_grad_scale", "fp8_grad_amax_history"):
        with pytest.raises(AttributeError, match=rf"'fc1'.*{name} is a view of fp8_.*state"):
            setattr(linear, name, getattr(linear, name).clone())
    with pytest.raises(AttributeError, match="fp8_scale is a view of fp8_state"):
        torch.func.functional_call(linear, {"fp8_scale": torch.ones(3)}, inputs()[:1])


def test_state__is_float32_in_a_half_layer() -> None:
    linear = layer().to(torch.float16)
    assert linear.weight.dtype == torch.float16
    assert linear.fp8_scale.dtype == torch.float32


def test_state__a_layer_loads_its_own_state_dict() -> None:
    """As loaders do that write into the tensors of a state_dict."""
    linear, (x, grad) = layer(), inputs()
    step(linear, within(RECIPES["delayed"], linear), x, grad)
    wanted = copy.deepcopy(linear.state_dict())
    linear.load_state_dict(linear.state_dict())
    assert not torch.equal(wanted["fp8_state"][0], torch.ones(3))
    assert all(torch.equal(value, wanted[key]) for key, value in linear.state_dict().items())
