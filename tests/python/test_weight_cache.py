"""Cached weights: on the user's word, one memory for eager and compiled code in any order."""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, within
from torch.nn.utils.prune import random_unstructured

import torch

ACTIVE = RECIPES["mxfp8"]
Call = Callable[..., torch.Tensor]


@pytest.fixture
def linear() -> octet.Linear:
    return layer()


@pytest.fixture
def casts(linear: octet.Linear, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What the linear layer's casts were made of: the weight's first element."""
    made: list[int] = []
    store = type(linear._weight_cache).store

    def counted(cache: Any, buffers: Any, text: str, weight: torch.Tensor) -> None:  # noqa: ANN401
        made.append(int(weight._version))
        store(cache, buffers, text, weight)

    monkeypatch.setattr(type(linear._weight_cache), "store", counted)
    return made


def fill(linear: octet.Linear, value: float) -> None:
    with torch.no_grad():
        linear.weight.fill_(value)


def ones(linear: octet.Linear) -> torch.Tensor:
    return torch.ones(2, linear.in_features, dtype=linear.weight.dtype)


WORDS = list(itertools.product(("eager", "compiled"), repeat=3))


@pytest.mark.parametrize("who", WORDS, ids="-".join)
def test_cache__eager_and_compiled_calls_mix_in_any_order(
    who: tuple[str, ...], linear: octet.Linear
) -> None:
    """First, later, first of the next step, later: by each in any order."""
    linear.bias.data.zero_()
    calls: dict[str, Call] = {"eager": within(ACTIVE, linear)}
    calls["compiled"] = compiled(calls["eager"])[0]
    for value in (1.0, 0.5, 0.25):
        fill(linear, value)
        want = torch.full((2, 44), 70 * value, dtype=linear.weight.dtype)
        for is_first, name in zip((True, False, False), who, strict=True):
            assert torch.equal(calls[name](ones(linear), is_first), want)


@pytest.mark.parametrize("name", ["current", "block", "mxfp8", "nvfp4", "delayed"])
@pytest.mark.parametrize("grads", [True, False])
def test_cache__compiled_reads_what_eager_cast_and_back(name: str, grads: bool) -> None:
    one, other = layer(), layer()
    x, grad = inputs()
    calls = [within(RECIPES[name], each) for each in (one, other)]
    fast = compiled(calls[1])[0]
    with torch.set_grad_enabled(grads):
        for is_first, mixed in (
            (True, calls[1]),
            (False, fast),
            (True, fast),
            (False, calls[1]),
        ):
            torch.manual_seed(3)
            want = calls[0](x.clone().requires_grad_(), is_first)
            torch.manual_seed(3)
            found = mixed(x.clone().requires_grad_(), is_first)
            assert torch.equal(found, want)
            if grads:
                for y, each in ((want, one), (found, other)):
                    each.zero_grad()
                    y.backward(grad)
                assert torch.equal(one.weight.grad, other.weight.grad)


def optimizer(linear: octet.Linear) -> None:
    linear.weight.grad = torch.ones_like(linear.weight)
    torch.optim.SGD([linear.weight], lr=1.0).step()
    linear.weight.grad = None


def fused(linear: octet.Linear) -> None:
    """A fused optimizer writes without counting a version."""
    linear.weight.grad = torch.ones_like(linear.weight)
    version = linear.weight._version
    torch.optim.Adam([linear.weight], lr=1.0, fused=True).step()
    assert linear.weight._version == version
    linear.weight.grad = None


def another(linear: octet.Linear) -> None:
    linear.weight = torch.nn.Parameter(linear.weight.detach() * 2)


def loaded(linear: octet.Linear) -> None:
    linear.load_state_dict({k: v * 2 for k, v in linear.state_dict().items()})


def by_data(linear: octet.Linear) -> None:
    linear.weight.data = linear.weight.data * 2


CHANGES = [optimizer, fused, another, loaded, by_data, lambda linear: fill(linear, 3.0)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_cache__a_weight_that_changed_is_cast_again(
    change: Any,  # noqa: ANN401
    compile_it: bool,
    constant: bool,
    linear: octet.Linear,
) -> None:
    x, _ = inputs()
    usual = within(ACTIVE, linear)
    call = compiled(usual)[0] if compile_it else usual
    first, later = ((), ()) if constant else ((True,), (False,))
    with torch.no_grad(), octet.constant_weights() if constant else torch.no_grad():
        before = call(x, *first)
        assert torch.equal(call(x, *later), before)
        change(linear)
        changed = call(x, *later)
    assert torch.equal(changed, usual(x))
    assert not torch.equal(changed, before)


def test_cache__nothing_is_cached_without_a_word(linear: octet.Linear) -> None:
    x, _ = inputs()
    call = within(ACTIVE, linear)
    before = call(x)
    linear.weight.data.mul_(2)  # leaves no trace
    assert not torch.equal(call(x), before)
    assert linear._weight_cache.tensor is None


# Delayed scaling's cast is by the scale of its moment, which the next microbatch would update.
@pytest.mark.parametrize("name", ["current", "block", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("compile_it", [False, True])
def test_constant_weights__compute_the_same(name: str, compile_it: bool) -> None:
    one, other = layer(), layer()
    x, grad = inputs()
    usual, call = within(RECIPES[name], one), within(RECIPES[name], other)
    call = compiled(call)[0] if compile_it else call
    for _ in range(2):
        for linear in (one, other):
            linear.zero_grad()
        found = []
        for linear, run in ((one, usual), (other, call)):
            torch.manual_seed(4)
            with octet.constant_weights() if linear is other else torch.enable_grad():
                for scale in (1, 2, 4):
                    y = run(x * scale)
                    y.backward(grad)
                    found.append(y.detach())
            with torch.no_grad():
                linear.weight.sub_(0.01 * linear.weight.grad)
        assert_same(found[:3], found[3:])
        assert_same([one.weight], [other.weight])


def test_constant_weights__cast_each_weight_once(
    linear: octet.Linear, casts: list[int]
) -> None:
    x, _ = inputs()
    call = within(ACTIVE, linear)
    with torch.no_grad():
        for _ in range(2):
            with octet.constant_weights():
                for _ in range(3):
                    call(x)
        assert len(casts) == 2
        call(x)
        assert len(casts) == 2


def test_constant_weights__inside_a_graph(linear: octet.Linear) -> None:
    x, _ = inputs()

    def three(x: torch.Tensor) -> torch.Tensor:
        with octet.constant_weights():
            return linear(x) + linear(2 * x) + linear(4 * x)

    fast, counter = compiled(within(ACTIVE, three))
    for value in (1.0, 0.5):
        fill(linear, value)
        assert torch.equal(
            fast(x), within(ACTIVE, lambda x: linear(x) + linear(2 * x) + linear(4 * x))(x)
        )
    assert counter.frame_count == 1
    assert octet.state.active.constant_weights_here() is None


def test_cache__written_and_read_in_one_graph(linear: octet.Linear) -> None:
    x, _ = inputs()

    def both(x: torch.Tensor) -> torch.Tensor:
        return linear(x, True) + linear(2 * x, False)

    fast, counter = compiled(within(ACTIVE, both))
    for value in (1.0, 0.5, 0.25):
        fill(linear, value)
        want = within(ACTIVE, lambda x: linear(x) + linear(2 * x))(x)
        assert torch.equal(fast(x), want)
    assert counter.frame_count <= 2


def test_constant_weights__entering_again_recompiles_nothing(linear: octet.Linear) -> None:
    x, _ = inputs()
    fast, counter = compiled(within(ACTIVE, linear))
    graphs = []
    with torch.no_grad():
        for _ in range(5):
            with octet.constant_weights():
                fast(x), fast(x)
            graphs.append(counter.frame_count)
    assert graphs[1] == graphs[-1]


def test_cache__quantized_weights_need_none(linear: octet.Linear) -> None:
    with octet.quantized_model_init(recipe=ACTIVE):
        stored = layer()
    x, _ = inputs()
    with torch.no_grad(), octet.constant_weights():
        assert torch.equal(within(ACTIVE, stored)(x), within(ACTIVE, stored)(x))


def test_cache__a_copy_has_its_own(linear: octet.Linear) -> None:
    x, _ = inputs()
    call = within(ACTIVE, linear)
    call(x, True)
    other = copy.deepcopy(linear)
    fill(other, 0.5)
    assert torch.equal(within(ACTIVE, other)(x, False), within(ACTIVE, other)(x))
    fill(linear, 0.25)
    assert torch.equal(call(x, False), call(x))


def test_cache__an_earlier_step_still_runs_backward(linear: octet.Linear) -> None:
    """Casting again leaves what an outstanding backward has saved alone."""
    x, grad = inputs()
    call = within(ACTIVE, linear)
    want = []
    for value in (0.5, 0.25):
        fill(linear, value)
        each = x.clone().requires_grad_()
        call(each).backward(grad)
        want.append(each.grad)
    xs = [x.clone().requires_grad_() for _ in range(2)]
    ys = []
    for value, each in zip((0.5, 0.25), xs, strict=True):
        fill(linear, value)
        ys.append(call(each, True))
    for y in reversed(ys):
        y.backward(grad)
    assert_same(want, [each.grad for each in xs])


def test_cache__of_a_users_quantizer_is_cast_again_too() -> None:
    class Halved(octet.MXFP8Quantizer):
        def quantize(self, tensor: torch.Tensor, *, out: Any = None, **_: Any) -> Any:  # noqa: ANN401
            return super().quantize(tensor / 2, out=out)

    mine = octet.recipe.CustomRecipe(
        lambda role: Halved("e4m3") if role.tensor_type == "weight" else None
    )
    linear = layer()
    x, _ = inputs()
    call = within(mine, linear)
    call(x, True)
    fill(linear, 0.5)
    assert torch.equal(call(x, False), call(x))


def test_cache__split_parameters_notice_each_part() -> None:
    linear = layer(parameters_split=("a", "b"))
    x, _ = inputs()
    call = within(ACTIVE, linear)
    call(x, True)
    with torch.no_grad():
        linear.b_weight.fill_(0.5)
    assert torch.equal(call(x, False), call(x))


# ---- memory that comes again -----------------------------------------------------------------

TIMES = 12  # allocators give freed memory again within few


@pytest.mark.parametrize("compile_it", [False, True])
def test_cache__a_weight_where_a_freed_one_was_is_cast_again(
    compile_it: bool, linear: octet.Linear
) -> None:
    """A loader puts one tensor after the other into the weight."""
    x, _ = inputs()
    usual, first = within(ACTIVE, linear), linear.weight.detach().clone()
    call = compiled(usual)[0] if compile_it else usual
    with torch.no_grad():
        for number in range(TIMES):
            linear.weight.data = torch.empty(0, dtype=first.dtype)
            linear.weight.data = first * (number + 1)
            assert torch.equal(call(x, False), usual(x))


@pytest.mark.parametrize("constant", [False, True])
def test_cache__a_weight_that_a_call_was_given_is_cast_again(
    constant: bool, linear: octet.Linear
) -> None:
    x, _ = inputs()
    first, word = linear.weight.detach().clone(), None if constant else False

    def call(weight: torch.Tensor, word: bool | None) -> torch.Tensor:
        return torch.func.functional_call(linear, {"weight": weight}, (x, word))

    with torch.no_grad(), octet.autocast(recipe=ACTIVE):
        for number in range(TIMES):
            weight = first * (number + 1)
            with octet.constant_weights() if constant else torch.no_grad():
                made = call(weight, word)
                del weight
                weight = first * -(number + 1)
                again = call(weight, word)
            assert torch.equal(again, call(weight, None))
            assert not torch.equal(again, made)
            del weight


def doubled(linear: octet.Linear) -> None:
    class Doubled(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    torch.nn.utils.parametrize.register_parametrization(linear, "weight", Doubled())


COMPUTED = {
    "parametrization": doubled,
    "weight_norm": torch.nn.utils.parametrizations.weight_norm,
    "spectral_norm": torch.nn.utils.parametrizations.spectral_norm,
    "pruned": lambda linear: random_unstructured(linear, "weight", 0.5),
}


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["mxfp8", "delayed"])
@pytest.mark.parametrize("way", COMPUTED)
def test_cache__a_weight_that_each_call_computes_is_cast_again(
    way: str, name: str, bias: bool, compile_it: bool
) -> None:
    linear = layer(bias=bias)
    COMPUTED[way](linear)
    linear.eval()
    x, _ = inputs()
    usual = within(RECIPES[name], linear)
    call = torch.compile(usual, backend="aot_eager") if compile_it else usual
    with torch.no_grad():
        for number in range(4):
            with octet.constant_weights():
                before = call(x)
                for parameter in linear.parameters():
                    parameter.mul_(1 + number)
                changed = call(x)
            assert torch.equal(changed, usual(x))
            assert number == 0 or way == "spectral_norm" or not torch.equal(changed, before)


def test_cache__to_ask_for_it_changes_no_weight() -> None:
    """Torch's spectral norm iterates at each look at the weight."""
    one, two = layer(), layer()
    for linear in (one, two):
        torch.manual_seed(1)
        torch.nn.utils.parametrizations.spectral_norm(linear)
    x, _ = inputs()
    for _ in range(3):
        first = within(ACTIVE, one)(x, True)
        assert torch.equal(first, within(ACTIVE, two)(x))
