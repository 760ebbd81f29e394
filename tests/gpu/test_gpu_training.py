"""Training as a GPU meets it: graphs of whole steps, streams, no memory, tensors elsewhere."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, scales, step, within
from models import (
    Inside,
    batch,
    called,
    model,
    prepared,
    quantizing,
    seed,
    sgd,
    state,
    train,
    usual,
)
from torch.utils.checkpoint import checkpoint

import torch

every_recipe = pytest.mark.parametrize("name", RECIPES)


# ---- graphs ----------------------------------------------------------------------------------


@every_recipe
def test_gpu_training__whole_steps_captured_with_their_optimizer(name: str) -> None:
    """Forward, backward, delayed scaling's updates and the optimizer in one graph."""
    warm = model()
    train(warm, called(warm, RECIPES[name]), sgd(warm))  # torch's own: generator, engine
    net = prepared(model(), name)
    optimizer, call = sgd(net), called(net, RECIPES[name])
    x, dy = batch()
    x.requires_grad_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.grad = None
        optimizer.zero_grad()
        y = call(x)
        y.backward(dy)
        optimizer.step()
    found: list[torch.Tensor] = []
    for turn in range(3):
        for ours, drawn in zip((x, dy), batch(turn), strict=True):
            ours.data.copy_(drawn)
        seed(turn)
        graph.replay()
        found += [y.detach().clone(), x.grad.clone()]
    assert_same(usual(name), found + state(net))


@every_recipe
def test_gpu_training__graphed_callables(name: str) -> None:
    net = model()
    x, _ = batch()
    call = torch.cuda.make_graphed_callables(Inside(net, name), (x.requires_grad_(),))
    octet.reset_state(net)  # as it was before torch's warm-up
    assert_same(usual(name), train(net, call, sgd(net)))


def captured_gradient() -> tuple[torch.cuda.CUDAGraph, torch.Tensor, Any]:
    """A captured step of NVFP4, the gradient that each replay writes, and what it reads."""
    linear = model().a_up
    x, _ = batch()
    x.requires_grad_()
    x.grad = torch.zeros_like(x)
    with torch.no_grad():
        arrives = torch.randn_like(linear(x))  # ones would need no rounding
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.grad.zero_()
        with quantizing("nvfp4"):
            y = linear(x)
        y.backward(arrives)
    return graph, x.grad, (linear, x, arrives)


def test_gpu_training__each_replay_draws_anew_by_torchs_generator() -> None:
    warm = model()
    train(warm, called(warm, RECIPES["nvfp4"]))
    graph, grad, _held = captured_gradient()
    seen = []
    for first in (True, False, True):
        if first:
            seed(0)
        graph.replay()
        seen.append(grad.clone())
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    state = torch.cuda.get_rng_state()
    graph.replay()
    once = grad.clone()
    torch.cuda.set_rng_state(state)
    graph.replay()
    assert torch.equal(grad, once)


def test_gpu_training__a_capture_does_not_make_the_state_of_delayed_scaling() -> None:
    """Each replay would make it afresh: the layer would never learn."""
    linear = model().a_up
    x, _ = batch()
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match=r"'a.up'.*octet\.prepare"),
        torch.cuda.graph(graph),
        quantizing("delayed"),
    ):
        linear(x)
    with quantizing("delayed"):
        linear(x)  # and the next call works
    assert linear.fp8_amax_history[:, 0].max() == x.abs().max()


# ---- streams and synchronization -------------------------------------------------------------


@every_recipe
def test_gpu_training__another_stream(name: str) -> None:
    """The input comes late on a side stream and the layer runs there; backward is called on
    the main one, where memory is taken and overwritten meanwhile."""
    linear, other = (octet.Linear(512, 768, params_dtype=torch.bfloat16) for _ in range(2))
    other.load_state_dict(linear.state_dict())
    x = torch.randn(1024, 512, device="cuda").bfloat16()
    dy = torch.randn(1024, 768, device="cuda").bfloat16()
    want = step(linear, within(RECIPES[name], linear), x * 2, dy)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    junk = []
    side.wait_stream(main)
    torch.manual_seed(3)  # as a step does
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late = (x * 2).requires_grad_()
        y = within(RECIPES[name], other)(late)
    for _ in range(20):
        junk.append(torch.full((1024, 1024), float("nan"), device="cuda"))
    main.wait_stream(side)
    y.backward(dy)
    for _ in range(20):
        junk.append(torch.full((1024, 1024), float("nan"), device="cuda"))
    found = [y.detach(), late.grad, other.weight.grad, other.bias.grad]
    found += scales(other)
    assert_same(want, found)


@every_recipe
def test_gpu_training__memory_that_is_recorded_for_a_stream(name: str) -> None:
    """The input is let go of on the main stream while the layer on another waits to read it."""
    linear = octet.Linear(512, 768, params_dtype=torch.bfloat16)
    source = torch.randn(1024, 512, device="cuda").bfloat16()
    with torch.no_grad(), quantizing(name):
        want = linear(source)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x = source.clone()
    side.wait_stream(main)
    with torch.cuda.stream(side), torch.no_grad(), quantizing(name):
        torch.cuda._sleep(20_000_000)
        found = linear(x)
    x.record_stream(side)
    del x
    junk = [torch.full_like(source, float("nan")) for _ in range(20)]
    main.wait_stream(side)
    assert_same([want], [found])
    del junk


@pytest.fixture
def strict() -> Iterator[Callable[[], None]]:
    """Called, it makes an error of each operation that waits for the GPU."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


WAYS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "plain": lambda net: net,
    "checkpoint": lambda net: lambda x: checkpoint(net, x, use_reentrant=False),
    "reentrant": lambda net: lambda x: checkpoint(net, x, use_reentrant=True),
    "microbatch": lambda net: lambda x: net(x, True),
}


@every_recipe
@pytest.mark.parametrize("way", WAYS)
def test_gpu_training__waits_for_nothing(name: str, way: str, strict: Any) -> None:  # noqa: ANN401
    """From the first call on."""
    net = model()
    optimizer, call = sgd(net), called(WAYS[way](net), RECIPES[name])
    batches = [batch(turn) for turn in range(3)]
    found: list[torch.Tensor] = []
    strict()
    for turn, (x, dy) in enumerate(batches):
        x.requires_grad_()
        optimizer.zero_grad()
        seed(turn)
        y = call(x)
        y.backward(dy)
        optimizer.step()
        found += [y.detach().clone(), x.grad.clone()]
    torch.cuda.set_sync_debug_mode("default")
    assert_same(usual(name), found + state(net))


@pytest.mark.parametrize("way", ["plain", "reentrant"])
@pytest.mark.parametrize("name", ["delayed", "nvfp4"])
def test_gpu_training__backward_in_the_callers_thread(name: str, way: str) -> None:
    net = model()
    with torch.autograd.set_multithreading_enabled(False):
        found = train(net, called(WAYS[way](net), RECIPES[name]), sgd(net))
    assert_same(usual(name), found)


# ---- what is refused -------------------------------------------------------------------------


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    """Called, it leaves the process that many bytes more than it has."""

    def limit(spare: int) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(
            (torch.cuda.memory_reserved() + spare) / total
        )

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("name", ["current", "block", "mxfp8"])
def test_gpu_training__a_step_without_memory_and_a_good_one(
    name: str,
    when: str,
    limited: Any,  # noqa: ANN401
) -> None:
    linear = octet.Linear(512, 512, params_dtype=torch.bfloat16)
    call = within(RECIPES[name], linear)
    x = torch.randn(1 << 16, 512, device="cuda").bfloat16()
    dy = torch.randn(1 << 16, 512, device="cuda").bfloat16()
    want = step(linear, call, x, dy)
    leaf = x.clone().requires_grad_()
    if when == "forward":
        part = functools.partial(call, leaf)
    else:
        part = functools.partial(call(leaf).backward, dy)
    limited(4 << 20)
    with pytest.raises(torch.OutOfMemoryError, match=r"(?i)memory|allocate"):
        part()
    torch.cuda.set_per_process_memory_fraction(1.0)
    del part, leaf
    assert_same(want, step(linear, call, x, dy))


@pytest.mark.parametrize("what", ["bias", "fp8_grad_state", "main_grad"])
def test_gpu_training__a_tensor_that_was_left_behind_is_named(what: str) -> None:
    linear = octet.Linear(96, 48, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True)
    x = torch.randn(64, 96, device="cuda").bfloat16()
    linear.weight.main_grad = torch.zeros(48, 96, device="cuda")
    call = within(RECIPES["delayed"], linear)
    call(x).sum().backward()
    kept = linear.weight.main_grad.clone()
    if what == "main_grad":
        linear.weight.main_grad = linear.weight.main_grad.cpu()
    elif what == "bias":
        linear.bias = torch.nn.Parameter(linear.bias.detach().cpu())
    else:
        linear.fp8_grad_state = linear.fp8_grad_state.cpu()
    named = {"fp8_grad_state": "state"}.get(what, what)
    with pytest.raises(ValueError, match=rf"{named}.*on (another device|cpu)"):
        call(x).sum().backward()
    linear.cuda()
    linear.weight.main_grad = kept
    call(x).sum().backward()  # and the next call works
    assert torch.isfinite(kept).all()
    assert kept.any()


def test_gpu_training__a_stochastic_quantizer_draws_on_the_gpu() -> None:
    """Its generator is the GPU's, so that a captured call draws anew at each replay."""
    x = torch.full((256, 256), 2.5, device="cuda")
    x[:, ::16] = 6.0
    q = octet.NVFP4Quantizer(stochastic_rounding=True, columnwise=False)
    graph = torch.cuda.CUDAGraph()
    q(x)
    with torch.cuda.graph(graph):
        y = q(x).dequantize()
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(y.clone())
        assert set(seen[-1].unique().tolist()) == {2.0, 3.0, 6.0}
    assert not torch.equal(*seen)
