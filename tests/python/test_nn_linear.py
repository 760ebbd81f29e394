"""An octet.Linear is an nn.Linear to the world."""

import asyncio
import threading
from typing import Any

import octet
import pytest
from laws import RECIPES, compiled, inputs, layer, within

import torch

MX = RECIPES["mxfp8"]


def test_nn_linear__is_one() -> None:
    linear = octet.Linear(8, 4, device="cpu")
    assert isinstance(linear, torch.nn.Linear)
    assert (linear.in_features, linear.out_features) == (8, 4)
    assert [name for name, _ in linear.named_parameters()] == ["weight", "bias"]


def test_nn_linear__arguments_past_the_sizes_are_keywords() -> None:
    with pytest.raises(TypeError, match="positional"):
        octet.Linear(8, 8, False)
    assert octet.Linear(8, 8, bias=False, device="cpu").bias is None
    assert octet.Linear(8, 8, device="cpu", dtype=torch.float16).weight.dtype == torch.float16
    with pytest.raises(ValueError, match="params_dtype"):
        octet.Linear(8, 8, device="cpu", dtype=torch.float16, params_dtype=torch.float32)


@pytest.mark.parametrize("name", ["none", "mxfp8"])
@pytest.mark.parametrize("compile_it", [False, True])
def test_nn_linear__takes_its_input_by_name(name: str, compile_it: bool) -> None:
    linear = layer()
    x, _ = inputs()
    call = compiled(linear)[0] if compile_it else linear
    with octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
        assert torch.equal(call(input=x), call(x))
        assert torch.equal(call(inp=x), call(x))


@pytest.mark.parametrize("name", ["none", "mxfp8", "nvfp4", "delayed"])
def test_nn_linear__takes_jagged_tensors(name: str) -> None:
    linear, other = layer(), layer()
    parts = [torch.randn(n, 70, dtype=torch.bfloat16) for n in (3, 1, 5)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    torch.manual_seed(1)
    y = within(RECIPES[name], linear)(nested)
    assert y.is_nested
    assert y.shape[-1] == 44
    flat = torch.cat(parts).requires_grad_()
    torch.manual_seed(1)
    want = within(RECIPES[name], other)(flat)
    assert torch.equal(y.values(), want)
    grad = torch.randn_like(want)
    y.values().backward(grad)
    want.backward(grad)
    assert torch.equal(nested.grad.values(), flat.grad)
    assert torch.equal(linear.weight.grad, other.weight.grad)


def test_nn_linear__is_a_leaf_of_fx() -> None:
    model = torch.nn.Sequential(layer(name="fc1"), torch.nn.ReLU())
    traced = torch.fx.symbolic_trace(model)
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == ["0", "1"]
    x, _ = inputs()
    with octet.autocast(recipe=MX):
        assert torch.equal(traced(x), model(x))


def transposed(linear: octet.Linear) -> None:
    linear.weight = torch.nn.Parameter(linear.weight.detach().t().contiguous())


def longer(linear: octet.Linear) -> None:
    linear.bias = torch.nn.Parameter(torch.zeros(2, 22, dtype=torch.bfloat16))


@pytest.mark.parametrize(("change", "what"), [(transposed, "weight"), (longer, "bias")])
@pytest.mark.parametrize("name", ["none", "mxfp8"])
@pytest.mark.parametrize("compile_it", [False, True])
def test_nn_linear__parameters_of_another_shape_are_refused_by_name(
    change: Any,  # noqa: ANN401
    what: str,
    name: str,
    compile_it: bool,
) -> None:
    linear = layer(name="fc1")
    change(linear)
    call = within(RECIPES[name], linear)
    call = compiled(call)[0] if compile_it else call
    with pytest.raises(Exception, match=rf"'fc1'.*{what} is \("):
        call(inputs()[0])


def test_ops__arguments_of_another_shape_are_refused() -> None:
    from octet import _ops

    x, w = torch.randn(3, 6), torch.randn(4, 6)
    for given, why in (([x, w.t().contiguous()], r"weight.*\(6, 4\)"), ([x.t(), w], r"input")):
        with pytest.raises(ValueError, match=why):
            _ops.linear([t.contiguous() for t in given], [3, 6, 4], "in=f32 recipe=mxfp8")


ALONE = {
    "parallel_mode": "column",
    "ub_name": "qkv",
    "get_rng_state_tracker": lambda: None,
    "rng_tracker_name": "model-parallel-rng",
    "tp_group": object(),
    "sequence_parallel": True,
}


@pytest.mark.parametrize("name", ALONE)
def test_nn_linear__arguments_without_a_meaning_on_one_rank_are_accepted(name: str) -> None:
    octet.Linear(8, 8, device="cpu", **{name: ALONE[name]})


def test_nn_linear__quantized_outputs_outside_an_autocast_are_ignored() -> None:
    linear = layer()
    x, _ = inputs()
    assert torch.equal(linear(x, fp8_output=True, fp8_grad=True), linear(x))


# ---- autocast --------------------------------------------------------------------------------


def test_autocast__a_recipe_in_the_place_of_enabled_is_refused() -> None:
    with pytest.raises(TypeError, match=r"enabled is .*recipe="):
        octet.autocast(MX)
    with pytest.raises(TypeError, match="enabled is 1"):
        octet.autocast(1)


@pytest.mark.parametrize("compile_it", [False, True])
def test_autocast__is_a_decorator(compile_it: bool) -> None:
    linear = layer()
    x, _ = inputs()

    @octet.autocast(recipe=MX)
    def call(x: torch.Tensor) -> torch.Tensor:
        return linear(x)

    assert call.__name__ == "call"
    run = compiled(call)[0] if compile_it else call
    for _ in range(2):
        assert torch.equal(run(x), within(MX, linear)(x))
    assert octet.state.active.entered() is None


def test_autocast__decorates_coroutines_and_refuses_generators() -> None:
    linear = layer()
    x, _ = inputs()

    @octet.autocast(recipe=MX)
    async def call(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return linear(x)

    assert torch.equal(asyncio.run(call(x)), within(MX, linear)(x))
    with pytest.raises(TypeError, match="generator"):

        @octet.autocast(recipe=MX)
        def steps() -> Any:  # noqa: ANN401
            yield linear(x)


def test_autocast__one_object_serves_threads_at_once() -> None:
    """Each entry is a step of its own: both layers learn."""
    shared = octet.autocast(recipe=RECIPES["delayed"])
    layers = [layer(), layer()]
    x, _ = inputs()
    gate = threading.Barrier(2)

    def work(linear: octet.Linear) -> None:
        with shared:
            gate.wait()
            linear(x)
            gate.wait()

    threads = [threading.Thread(target=work, args=(linear,)) for linear in layers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(bool((linear.fp8_scale[:2] != 1).all()) for linear in layers)


def test_autocast__each_asyncio_task_has_its_own() -> None:
    linear = layer()
    x, _ = inputs()
    names = ("mxfp8", "block", "none", "nvfp4", "current")
    want = {name: within(RECIPES[name], linear)(x) for name in names}

    async def work(name: str) -> None:
        for _ in range(3):
            with octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
                await asyncio.sleep(0.001)
                assert torch.equal(linear(x), want[name])
                await asyncio.sleep(0)
                assert torch.equal(linear(x), want[name])

    async def main() -> None:
        await asyncio.gather(*(work(name) for name in names * 2))

    asyncio.run(main())
    assert torch.equal(linear(x), want["none"])


def test_autocast__each_thread_has_its_own() -> None:
    linear = layer()
    x, _ = inputs()
    names = ("mxfp8", "block", "none", "current")
    want = {name: within(RECIPES[name], linear)(x) for name in names}
    failed: list[str] = []
    gate = threading.Barrier(len(names))

    def work(name: str) -> None:
        with octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
            gate.wait()
            for _ in range(20):
                if not torch.equal(linear(x), want[name]):
                    failed.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_caches__have_bounds() -> None:
    within(MX, layer())(inputs()[0])
    found = octet.cache_info()
    assert found["plans"].entries > 0
    assert {"prepared plans", "replayed launches", "rules of delayed scaling"} <= found.keys()
    assert found["products of cuBLASLt"].capacity > 0
    assert all(0 <= info.entries <= info.capacity for info in found.values())
    assert all(info.capacity > 0 for name, info in found.items())
