"""Runs that come again are launched as one graph, and compute what they computed before."""

import threading
import zlib

import octet
import pytest
from octet import _C, recipe

import torch

RECIPES: dict[str, recipe.Recipe] = {
    "delayed": recipe.DelayedScaling(amax_history_len=4),
    "current": recipe.Float8CurrentScaling(),
    "block": recipe.Float8BlockScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
    "nvfp4": recipe.NVFP4BlockScaling(),
}
STEPS = 30


def replays() -> int:
    return _C.replays()[2]


def digest(*tensors: torch.Tensor) -> int:
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.detach().view(torch.uint8).cpu().numpy().tobytes(), found)
    return found


def train(name: str) -> list[int]:
    """What each step of a small layer computes, its weight and its input changing in place."""
    torch.manual_seed(1)
    layer = octet.Linear(256, 192, params_dtype=torch.bfloat16, device="cuda")
    x = torch.randn(160, 256, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    dy = torch.randn(160, 192, dtype=torch.bfloat16, device="cuda")
    found = []
    for step in range(STEPS):
        with octet.autocast(recipe=RECIPES[name]):
            y = layer(x)
        y.backward(dy)
        found.append(digest(y, x.grad, layer.weight.grad, layer.bias.grad))
        with torch.no_grad():
            x.mul_(0.75 + step % 5 / 8)
            dy.add_(x[:, :192])
            for p in layer.parameters():
                p -= 0.01 * p.grad
                p.grad = None
            x.grad = None
        del y  # or it would be somewhere else every other time
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_replay__computes_what_single_launches_do(name: str) -> None:
    allowed = _C.allow_replays(False)
    try:
        before, wanted = replays(), train(name)
        assert replays() == before
        _C.allow_replays(True)
        found = train(name)
        assert replays() - before >= STEPS // 4  # of two a step; addresses take turns
        assert found == wanted
        assert len(set(found)) == STEPS
    finally:
        _C.allow_replays(allowed)


def repeat(layer: octet.Linear, x: torch.Tensor, active: recipe.Recipe) -> list[int]:
    seen = []
    for _ in range(30):
        layer.zero_grad()
        with octet.autocast(recipe=active):
            y = layer(x)
        y.sum().backward()
        seen.append(digest(y, layer.weight.grad))
    return seen


@pytest.mark.parametrize("name", ["delayed", "current", "block", "mxfp8"])
def test_replay__by_threads_with_streams_of_their_own(name: str) -> None:
    """Equal layers, one for each thread; NVFP4's would draw different numbers."""
    layers = [
        octet.Linear(128, 128, params_dtype=torch.bfloat16, device="cuda") for _ in range(4)
    ]
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())
    x = torch.randn(64, 128, dtype=torch.bfloat16, device="cuda")
    torch.cuda.synchronize()
    found: dict[int, list[int]] = {}

    def work(at: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found[at] = repeat(layers[at], x.clone(), RECIPES[name])

    before = replays()
    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(layers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replays() > before
    assert all(found[at] == found[0] for at in range(len(layers)))
    assert found[0] == repeat(layers[0], x, RECIPES[name]) or name == "delayed"


def test_replay__a_captured_layer_is_the_same_afterwards() -> None:
    """A capture takes single launches; graphs of the same run stay what they were."""
    layer = octet.Linear(128, 128, bias=False, params_dtype=torch.bfloat16, device="cuda")
    x = torch.randn(64, 128, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad(), octet.autocast(recipe=RECIPES["current"]):
        for _ in range(5):
            wanted = layer(x)
        graph, before = torch.cuda.CUDAGraph(), replays()
        with torch.cuda.graph(graph):
            captured = layer(x)
        assert replays() == before
        for step in range(30):
            x.mul_(1.5 if step % 2 else -0.75)
            graph.replay()
            again = layer(x)
            assert torch.equal(captured, again)
            assert not torch.equal(again, wanted)
        assert replays() > before


def test_replay__many_layers_take_little_memory() -> None:
    """128 KiB of a GPU for each, about; never more than the bound."""
    layers = [
        octet.Linear(64, 64, params_dtype=torch.bfloat16, device="cuda") for _ in range(200)
    ]
    x = torch.randn(32, 64, dtype=torch.bfloat16, device="cuda")
    counts = []
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(8):
        with torch.no_grad(), octet.autocast(recipe=RECIPES["current"]):
            for layer in layers:
                x = layer(x)
        counts.append(_C.replays()[0])
    torch.cuda.synchronize()
    taken = free - torch.cuda.mem_get_info()[0]
    assert counts[-1] - counts[0] <= 420  # each layer's input is one of two tensors
    assert _C.replays()[0] <= _C.replays()[1]
    assert taken <= 256 * 2**10 * max(counts[-1] - counts[0], 1) + 2**26
