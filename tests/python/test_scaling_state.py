"""Delayed scaling's state by BatchNorm's rule: fresh or exact, whoever made or loaded it."""

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, step, twins, within
from octet.state.scaling import SLOTS
from torch.nn.utils.prune import random_unstructured
from torch.torch_version import TorchVersion

import torch

DELAYED = RECIPES["delayed"]


def trained(**options: Any) -> octet.Linear:  # noqa: ANN401
    """A layer whose state was updated."""
    linear = layer(**options)
    x, grad = inputs()
    for scale in (1, 4):
        step(linear, within(DELAYED, linear), x * scale, grad)
    return linear


def state(linear: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: b.clone() for n, b in linear._buffers.items() if n in SLOTS and b is not None}


def assert_exact(found: octet.Linear, want: octet.Linear) -> None:
    left, right = state(found), state(want)
    assert left.keys() == right.keys() == SLOTS.keys()
    for name, value in right.items():
        assert left[name].dtype == torch.float32
        assert torch.equal(left[name].cpu(), value.cpu()), name


def assert_fresh(linear: octet.Linear) -> None:
    for name, value in state(linear).items():
        assert bool((value[0] == 1.0).all()), name
        assert not value[1:].any(), name


# ---- recording -------------------------------------------------------------------------------


@contextlib.contextmanager
def evaluated(linear: octet.Linear) -> Any:  # noqa: ANN401
    linear.eval()
    yield
    linear.train()


QUIET = {
    "eval": evaluated,
    "inference_mode": lambda linear: torch.inference_mode(),
}


@pytest.mark.parametrize("mode", QUIET)
@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_scaling__evaluation_reads_and_never_records(
    mode: str, compile_it: bool, inside: bool
) -> None:
    linear = trained()
    x, grad = inputs()
    call = within(DELAYED, linear) if inside else linear
    call = compiled(call)[0] if compile_it else call
    call = call if inside else within(DELAYED, call)
    before = state(linear)
    with QUIET[mode](linear):
        want = call(x * 100)
        again = call(x * 100)
    assert torch.equal(want, again)
    for name, value in state(linear).items():
        assert torch.equal(value, before[name]), name
    if mode == "eval":  # gradients of an evaluated layer record nothing either
        linear.eval()
        call(x.clone().requires_grad_()).backward(grad * 100)
        assert_same(list(state(linear).values()), list(before.values()))


def test_scaling__evaluation_measures_no_amax() -> None:
    linear, (x, _) = trained(), inputs()
    x.requires_grad_()
    measured = linear.protos(x, recipe=DELAYED)
    assert "amax" in measured.forward.arguments
    assert "amax" in measured.backward.arguments
    linear.eval()
    found = linear.protos(x, recipe=DELAYED)
    for plan in (found.forward, found.backward):
        assert "amax" not in {*plan.arguments, *plan.outputs}


def test_scaling__compiled_evaluation_measures_no_amax() -> None:
    linear, (x, _) = trained(), inputs()
    linear.eval()
    call, counter = compiled(within(DELAYED, linear))
    with torch.no_grad():
        assert torch.equal(call(x), within(DELAYED, linear)(x))
    (node,) = [n for n in counter.graphs[0].graph.nodes if n.op == "call_function"][:1]
    assert node.target is torch.ops.octet.linear_autograd.default
    assert "skip_amax" in node.args[3]


@pytest.mark.parametrize("compile_it", [False, True])
def test_scaling__training_after_evaluation_goes_on_as_if_it_had_not_been(
    compile_it: bool,
) -> None:
    one, other = trained(), trained()
    x, grad = inputs()
    calls = [within(DELAYED, one), within(DELAYED, other)]
    calls = [compiled(c)[0] for c in calls] if compile_it else calls
    other.eval()
    with torch.no_grad():
        calls[1](x * 1000)
    other.train()
    assert_same(step(one, calls[0], x, grad), step(other, calls[1], x, grad))


def test_scaling__evaluation_quantizes_by_the_scales_of_training() -> None:
    linear = trained()
    x, _ = inputs()
    other = copy.deepcopy(linear)
    with torch.no_grad():
        y = within(DELAYED, linear)(x)
        other.eval()
        assert torch.equal(within(DELAYED, other)(x), y)


# ---- one autocast around a loop --------------------------------------------------------------


def manual(linear: octet.Linear) -> Callable[[], None]:
    def update() -> None:
        with torch.no_grad():
            linear.weight.sub_(0.1 * linear.weight.grad)

    return update


def sgd(linear: octet.Linear) -> Callable[[], None]:
    return torch.optim.SGD(linear.parameters(), lr=0.1).step


def without_gradients(linear: octet.Linear) -> Callable[[], None]:
    return torch.no_grad()(torch.optim.SGD(linear.parameters(), lr=0.1).step)


def inside_backward(linear: octet.Linear) -> Callable[[], None]:
    """Each parameter has an optimizer, which steps as soon as its gradient is there."""
    for parameter in linear.parameters():
        step_of = torch.optim.SGD([parameter], lr=0.1).step
        parameter.register_post_accumulate_grad_hook(lambda _, step_of=step_of: step_of())
    return lambda: None


@pytest.mark.parametrize("optimizer", [sgd, manual, without_gradients, inside_backward])
@pytest.mark.parametrize("compile_it", [False, True])
def test_scaling__one_autocast_around_a_loop_learns_as_one_a_step(
    optimizer: Any,  # noqa: ANN401
    compile_it: bool,
) -> None:
    if compile_it and optimizer is manual:
        pytest.skip("compiled code learns of an optimizer's step by torch.optim")
    found = []
    x, grad = inputs()
    for whole in (False, True):
        linear = layer()
        update, run = optimizer(linear), linear
        run = compiled(linear)[0] if compile_it else linear
        scales = []
        with octet.autocast(enabled=whole, recipe=DELAYED):
            for factor in (1, 2, 8, 4):
                linear.zero_grad()
                with octet.autocast(recipe=DELAYED) if not whole else torch.enable_grad():
                    y = run(x * factor)
                y.backward(grad)
                update()
                scales.append(linear.weight.detach().clone())
        found.append([*scales, linear.fp8_scale.clone()])
        assert bool((linear.fp8_scale[:2] != 1).all())
    assert_same(*found)


@pytest.mark.parametrize("around", [False, True])
def test_scaling__accumulation_is_the_same_compiled_and_eager(around: bool) -> None:
    """Several microbatches in one autocast, or in one each."""
    found = []
    x, grad = inputs()
    for compile_it in (False, True):
        linear = layer()
        run = compiled(linear)[0] if compile_it else linear
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
        for _ in range(2):
            with octet.autocast(enabled=around, recipe=DELAYED):
                for factor in (1, 2, 4):
                    with octet.autocast(recipe=DELAYED):
                        y = run(x * factor)
                    y.backward(grad * factor)
            optimizer.step()
            optimizer.zero_grad()
        found.append([linear.weight, *state(linear).values()])
    assert_same(*found)


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 11),
    reason="a compiled backward refuses state that another one has updated since its forward",
)
def test_scaling__eager_and_compiled_calls_of_one_step_mix_in_any_order() -> None:
    """Microbatches, eager ("e") or compiled ("c"), in steps that begin with either."""
    found = []
    x, grad = inputs()
    for steps in (("eee",) * 4, ("ece", "cec", "cce", "eec"), ("cec", "ece", "eec", "cce")):
        linear = layer()
        runs = {"e": linear, "c": compiled(linear)[0]}
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
        for step_of in steps:
            with octet.autocast(recipe=DELAYED):
                ys = [runs[who](x * (1 + i)) for i, who in enumerate(step_of)]
            for y in reversed(ys):
                y.backward(grad)
            optimizer.step()
            optimizer.zero_grad()
        found.append([linear.weight, *state(linear).values()])
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])


# ---- made, loaded, moved, copied -------------------------------------------------------------


def saved(linear: octet.Linear) -> Any:  # noqa: ANN401
    file = io.BytesIO()
    torch.save(linear.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def whole(linear: octet.Linear) -> octet.Linear:
    file = io.BytesIO()
    torch.save(linear, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded(linear: octet.Linear, **options: Any) -> octet.Linear:  # noqa: ANN401
    other = layer()
    other.load_state_dict(saved(linear), **options)
    return other


def on_meta(linear: octet.Linear, prepared: bool = False, assign: bool = True) -> octet.Linear:
    with torch.device("meta"):
        other = layer(device=None)
    if prepared:
        octet.prepare(other, DELAYED)
    if not assign:
        other.to_empty(device="cpu")
    other.load_state_dict(saved(linear), assign=assign)
    return other


EXACT = {
    "state_dict": loaded,
    "assign": lambda linear: loaded(linear, assign=True),
    "meta, assign": on_meta,
    "meta, prepared, assign": lambda linear: on_meta(linear, prepared=True),
    "meta, to_empty": lambda linear: on_meta(linear, assign=False),
    "meta, prepared, to_empty": lambda linear: on_meta(linear, True, False),
    "prepared": lambda linear: _into(octet.prepare(layer(), DELAYED), linear),
    "deepcopy": copy.deepcopy,
    "pickle": lambda linear: pickle.loads(pickle.dumps(linear)),
    "torch.save": whole,
    "half and back": lambda linear: copy.deepcopy(linear).half().bfloat16(),
    "type": lambda linear: copy.deepcopy(linear).type(torch.float32).type(torch.bfloat16),
    "to": lambda linear: copy.deepcopy(linear).to(torch.float32).to("cpu", torch.bfloat16),
    "share_memory": lambda linear: copy.deepcopy(linear).share_memory(),
}


def _into(other: octet.Linear, linear: octet.Linear) -> octet.Linear:
    other.load_state_dict(linear.state_dict())
    return other


@pytest.mark.parametrize("way", EXACT)
def test_scaling__is_exactly_what_it_was(way: str) -> None:
    linear = trained()
    x, grad = inputs()
    other = EXACT[way](linear)
    assert_exact(other, linear)
    other.load_state_dict(linear.state_dict())
    for factor in (3, 1):
        want = step(linear, within(DELAYED, linear), x * factor, grad)
        assert_same(want, step(other, within(DELAYED, other), x * factor, grad))


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody has written is NaN."""
    for name in ("empty", "empty_like"):
        make = getattr(torch, name)

        def nan(*args: Any, make: Any = make, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
            made = make(*args, **kwargs)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        monkeypatch.setattr(torch, name, nan)


FRESH = {
    "made": layer,
    "prepared": lambda: octet.prepare(layer(), DELAYED),
    "meta, to_empty": lambda: octet.Linear(70, 44, device="meta").to_empty(device="cpu"),
    "meta, prepared, to_empty": lambda: octet.prepare(
        octet.Linear(70, 44, device="meta"), DELAYED
    ).to_empty(device="cpu"),
    "a checkpoint of nn.Linear": lambda: _plain(trained()),
    "a checkpoint of nn.Linear, assign": lambda: _plain(trained(), assign=True),
    "reset": lambda: octet.reset_state(trained()),
    "reset_parameters": lambda: _reset(trained()),
}


def _plain(linear: octet.Linear, **options: Any) -> octet.Linear:  # noqa: ANN401
    linear.load_state_dict(
        torch.nn.Linear(70, 44, dtype=torch.bfloat16).state_dict(), strict=True, **options
    )
    return linear


def _reset(linear: octet.Linear) -> octet.Linear:
    linear.reset_parameters()
    return linear


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("way", FRESH)
def test_scaling__is_fresh_where_nothing_was_saved(way: str) -> None:
    linear = FRESH[way]()
    assert_fresh(linear)
    linear.reset_parameters()
    x = torch.randn(4, 70, dtype=linear.weight.dtype)
    y = within(DELAYED, linear)(x)
    assert bool(y.isfinite().all())
    assert torch.equal(linear.fp8_scale[2], torch.tensor(1.0))
    amax = x.abs().max().float()
    assert torch.equal(linear.fp8_scale[0], torch.tensor(448.0) / amax)


def test_scaling__keys_are_there_when_the_layer_is_prepared_or_has_used_them() -> None:
    plain = ["weight", "bias"]
    linear = layer()
    assert list(linear.state_dict()) == plain
    within(RECIPES["nvfp4"], linear)(inputs()[0])
    assert list(linear.state_dict()) == plain
    assert list(octet.prepare(layer(), RECIPES["mxfp8"]).state_dict()) == plain
    prepared = octet.prepare(layer(), DELAYED)
    assert set(prepared.state_dict()) == {*plain, *SLOTS}
    assert set(trained().state_dict()) == {*plain, *SLOTS}
    assert prepared.fp8_amax_history.shape == (4, 3)


def test_scaling__a_graph_of_one_model_gives_another_no_keys() -> None:
    one, other = layer(), layer()
    compiled(within(DELAYED, one))[0](inputs()[0])
    assert list(other.state_dict()) == ["weight", "bias"]


def test_scaling__one_graph_serves_many_layers() -> None:
    """Blocks that are compiled one by one share their code; none is traced by itself."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = octet.Linear(16, 16, device="cpu")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    blocks = torch.nn.ModuleList([Block() for _ in range(12)])
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    for block in blocks:
        block.compile(fullgraph=True, backend=counter)
    x = torch.randn(4, 16, requires_grad=True)
    for _ in range(2):
        with octet.autocast(recipe=DELAYED):
            y = x
            for block in blocks:
                y = block(y)
        y.sum().backward()
    assert counter.frame_count <= 3
    assert all(bool((b.inner.fp8_scale[:2] != 1).all()) for b in blocks)


def test_prepare__says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="no octet layer"):
        octet.prepare(torch.nn.Linear(2, 2), DELAYED)
    with pytest.raises(TypeError, match="recipe is None"):
        octet.prepare(layer(), None)
    with pytest.raises(TypeError, match="DelayedScaling"):
        octet.prepare(layer(), octet.recipe.DelayedScaling)
    with pytest.raises(ValueError, match="no octet layer"):
        octet.reset_state(torch.nn.Linear(2, 2))


def test_scaling__damaged_state_is_refused_and_changes_nothing() -> None:
    linear = trained()
    before = state(linear)
    damaged = linear.state_dict() | {"fp8_state": torch.ones(7)}
    with pytest.raises(RuntimeError, match=r"fp8_state.*\(7,\)"):
        linear.load_state_dict(damaged)
    assert_same(list(state(linear).values()), list(before.values()))


def test_scaling__a_layers_own_state_dict_changes_nothing() -> None:
    linear = trained()
    before = state(linear)
    linear.load_state_dict(linear.state_dict())
    assert_same(list(state(linear).values()), list(before.values()))


def test_scaling__transformer_engines_extra_state_is_passed_over() -> None:
    linear = layer()
    given = linear.state_dict() | {"_extra_state": torch.zeros(3, dtype=torch.uint8)}
    linear.load_state_dict(given, strict=True)


@pytest.mark.parametrize("way", ["a hook", "pruned"])
def test_scaling__that_traced_code_makes_too_late_is_refused(way: str) -> None:
    """Traced code knows the buffers that a layer had when the code first looked at them."""

    def look(module: torch.nn.Module, _: Any) -> None:  # noqa: ANN401
        list(module.buffers())

    linear, eager = twins()
    for each in (linear, eager):
        if way == "pruned":
            torch.manual_seed(3)
            random_unstructured(each, "weight", 0.5)
        else:
            each.register_forward_pre_hook(look)
    x, _ = inputs()
    usual = within(DELAYED, eager)
    with pytest.raises(Exception, match=r"octet.Linear.*call octet.prepare"):
        compiled(within(DELAYED, linear))[0](x)
    octet.prepare(octet.reset_state(linear), DELAYED)
    assert torch.equal(compiled(within(DELAYED, linear))[0](x), usual(x))
