"""Linear on the GPU: right, the same in eager, compiled and captured, and without growth."""

import threading
from collections.abc import Callable
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, step, within
from octet import recipe

import torch

every_recipe = pytest.mark.parametrize("name", RECIPES)
SHAPES = [
    (64, 96, 48),
    (39, 70, 44),
    (1, 16, 16),
    (0, 32, 16),
    (256, 512, 384),
    (250, 512, 384),  # ragged rows
    (1300, 128, 75),  # sums of a ragged result, in two parts
]


# Of 128-blocks: columns that are no whole eights, rows behind whole eights, fewer than eight.
RAGGED = [
    (250, 1003, 509),
    (129, 4104, 777),
    (64, 128, 50257),
    (1030, 257, 129),
    (7, 1024, 1000),
    (1, 9, 17),
]


def layers(k: int, n: int, **options: Any) -> tuple[octet.Linear, octet.Linear]:  # noqa: ANN401
    """The same layer on the CPU and on the GPU."""
    options = {"params_dtype": torch.bfloat16, **options}
    torch.manual_seed(1)
    cpu = octet.Linear(k, n, device="cpu", **options)
    gpu = octet.Linear(k, n, device="cuda", **options)
    gpu.load_state_dict(cpu.state_dict())
    return cpu, gpu


def data(m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any]:
    torch.manual_seed(2)
    return torch.randn(m, k).to(dtype), torch.randn(m, n).to(dtype)


def near(gpu: torch.Tensor, cpu: torch.Tensor, depth: int, scale: float) -> None:
    """Sums of `depth` products in another order, of the tensor cores' own precision: about 13
    bits where accumulation is fast; and one rounding of the result. A product of nearly all
    zeros is compared with the size of its terms."""
    a, b = gpu.double().cpu(), cpu.double()
    eps = torch.finfo(gpu.dtype).eps
    slack = 2.0**-12 * depth**0.5 * scale
    assert torch.isfinite(a).all()
    assert ((a - b).abs() <= 2 * eps * b.abs() + slack).all(), float((a - b).abs().max())


def errors(
    gpu: octet.Linear, found: list[Any], x: torch.Tensor, dy: torch.Tensor
) -> list[float]:
    """Of output and gradients, against double, by norm."""
    w, b = gpu.weight.detach().double().cpu(), gpu.bias.detach().double().cpu()
    wanted = (x.double() @ w.t() + b, dy.double() @ w, dy.double().t() @ x.double())
    return [
        float((got.double().cpu() - want).norm() / want.norm())
        for got, want in zip(found, wanted, strict=True)
    ]


# ---- right -----------------------------------------------------------------------------------


@every_recipe
@pytest.mark.usefixtures("same_seeds")
@pytest.mark.parametrize("sizes", SHAPES)
def test_gpu_linear__equals_the_cpu_within_its_sums(name: str, sizes: Any) -> None:  # noqa: ANN401
    m, k, n = sizes
    cpu, gpu = layers(k, n)
    x, dy = data(m, k, n)
    for _ in range(2):
        a = step(cpu, within(RECIPES[name], cpu), x, dy)
        b = step(gpu, within(RECIPES[name], gpu), x.cuda(), dy.cuda())
        near(b[0], a[0], k, 4 * float(cpu.weight.detach().abs().max()))
        near(b[1], a[1], n, 4 * float(cpu.weight.detach().abs().max()))
        near(b[2], a[2], m, 16.0)
        if name == "none":  # torch's own
            near(b[3], a[3], m, 4.0)
        else:
            assert torch.equal(b[3].cpu(), a[3])  # the bias gradient's sums are the CPU's
        assert_same([t if t is None else t.cpu() for t in b[4:]], a[4:])  # so is the state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.usefixtures("same_seeds")
@every_recipe
def test_gpu_linear__other_dtypes(name: str, dtype: torch.dtype) -> None:
    cpu, gpu = layers(96, 48, params_dtype=dtype)
    x, dy = data(64, 96, 48, dtype)
    a = step(cpu, within(RECIPES[name], cpu), x, dy)
    b = step(gpu, within(RECIPES[name], gpu), x.cuda(), dy.cuda())
    near(b[0], a[0], 96, 2.0)
    near(b[1], a[1], 48, 2.0)
    near(b[2], a[2], 64, 16.0)


@every_recipe
def test_gpu_linear__against_double(name: str) -> None:
    """The result of the whole layer, quantization included, by norm."""
    _, gpu = layers(512, 384)
    x, dy = data(256, 512, 384)
    limit = {"none": 0.005, "nvfp4": 0.25, "mxfp4": 0.3}.get(name, 0.08)
    found = step(gpu, within(RECIPES[name], gpu), x.cuda(), dy.cuda())
    assert max(errors(gpu, found[:3], x, dy)) < limit


@pytest.mark.parametrize("bias", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("sizes", RAGGED)
def test_gpu_linear__blocks_of_ragged_shapes(sizes: Any, dim: int, bias: torch.dtype) -> None:  # noqa: ANN401
    """The CPU's products, and the layer's by norm; the weight in rows or in squares."""
    m, k, n = sizes
    active = recipe.Float8BlockScaling(w_block_scaling_dim=dim)
    cpu, gpu = layers(k, n)
    for linear in (cpu, gpu):
        linear.bias = torch.nn.Parameter(
            torch.linspace(-2, 2, n).to(linear.weight.device, bias)
        )
    x, dy = data(m, k, n)
    a = step(cpu, within(active, cpu), x, dy)
    b = step(gpu, within(active, gpu), x.cuda(), dy.cuda())
    scale = 4 * float(cpu.weight.detach().abs().max())
    near(b[0], a[0], k, scale)
    near(b[1], a[1], n, scale)
    near(b[2], a[2], m, 16.0)
    assert max(errors(gpu, b[:3], x, dy)) < 0.08


@pytest.mark.parametrize("sizes", RAGGED)
def test_gpu_linear__blocks_of_ragged_shapes_add_to_main_grad(sizes: Any) -> None:  # noqa: ANN401
    m, k, n = sizes
    active = recipe.Float8BlockScaling()
    pair = layers(k, n, fuse_wgrad_accumulation=True)
    x, dy = data(m, k, n)
    for linear in pair:
        linear.weight.main_grad = torch.full_like(linear.weight, 0.5, dtype=torch.float32)
        device = linear.weight.device
        for _ in range(2):
            step(linear, within(active, linear), x.to(device), dy.to(device))
    near(pair[1].weight.main_grad, pair[0].weight.main_grad, m, 32.0)


@pytest.mark.parametrize("name", ["block", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("sizes", [(32, 5), (528, 1000), (4096, 4099), (14336, 160), (70, 44)])
def test_gpu_linear__few_rows_with_a_cached_weight(name: str, sizes: Any) -> None:  # noqa: ANN401
    """Decoding: the CPU's products, and the same bits each time."""
    k, n = sizes
    cpu, gpu = (linear.eval() for linear in layers(k, n))
    scale = 4 * float(cpu.weight.detach().abs().max())
    with torch.no_grad(), octet.autocast(recipe=RECIPES[name]):
        for linear in (cpu, gpu):
            x, _ = data(32, k, n)
            linear(x.to(linear.weight.device), is_first_microbatch=True)
        for m in range(1, 19):
            x, _ = data(m, k, n)
            a = cpu(x, is_first_microbatch=False)
            b = gpu(x.cuda(), is_first_microbatch=False)
            near(b, a, k, scale)
            assert torch.equal(b, gpu(x.cuda(), is_first_microbatch=False))
            x[m // 2, k // 2] = float("nan")
            a = cpu(x, is_first_microbatch=False)
            b = gpu(x.cuda(), is_first_microbatch=False)
            assert torch.equal(a.isnan(), b.isnan().cpu())


@pytest.mark.parametrize(
    ("name", "columns"),
    [("current", True), ("current", False), ("block", True), ("block", False), ("mxfp8", True)],
)
def test_gpu_linear__a_stored_weight_steps_as_a_plain_one(name: str, columns: bool) -> None:
    """Cast in one launch with the input, or alone before; its columns kept, or turned anew."""
    _, plain = layers(1024, 1536)
    with octet.quantized_model_init(recipe=RECIPES[name]):
        _, stored = layers(1024, 1536)
    stored.load_state_dict(plain.state_dict())
    if not columns:
        stored.weight.update_usage(columnwise_usage=False)
    x, dy = (t.cuda() for t in data(2048, 1024, 1536))
    assert_same(
        step(plain, within(RECIPES[name], plain), x, dy),
        step(stored, within(RECIPES[name], stored), x, dy),
    )


# ---- the same in every way -------------------------------------------------------------------


def assert_eager(name: str, eager: list[Any], fast: list[Any]) -> None:
    """Bit for bit; without a recipe both are torch's, which may choose other algorithms."""
    if name != "none":
        assert_same(eager, fast)
        return
    for a, b in zip(eager[:4], fast[:4], strict=True):
        torch.testing.assert_close(a, b, rtol=2.0**-6, atol=2.0**-6)


@every_recipe
def test_gpu_linear__compiled_is_eager(name: str) -> None:
    _, eager = layers(96, 48)
    _, other = layers(96, 48)
    x, dy = (t.cuda() for t in data(64, 96, 48))
    fast, counter = compiled(within(RECIPES[name], other), "inductor")
    for scale in (1, 3, 0.5):
        a = step(eager, within(RECIPES[name], eager), x * scale, dy)
        assert_eager(name, a, step(other, fast, x * scale, dy))
    assert counter.frame_count == 1


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    graph = torch.cuda.CUDAGraph()
    kept: list[Any] = []
    with torch.cuda.graph(graph):
        kept.append(call())

    def replay() -> Any:  # noqa: ANN401
        graph.replay()
        return kept[0]

    return replay


@every_recipe
def test_gpu_linear__captured_is_eager(name: str) -> None:
    _, eager = layers(96, 48)
    _, other = layers(96, 48)
    if name == "delayed":  # whose state a capture may not make
        octet.prepare(other, RECIPES[name])
    x, dy = (t.cuda() for t in data(64, 96, 48))
    inp = x.clone().requires_grad_()
    inp.grad = torch.zeros_like(inp)
    for p in other.parameters():
        p.grad = torch.zeros_like(p)

    def call() -> torch.Tensor:
        for t in (inp, *other.parameters()):
            t.grad.zero_()
        with octet.autocast(enabled=RECIPES[name] is not None, recipe=RECIPES[name]):
            y = other(inp)
        y.backward(dy)
        return y

    warm = layers(96, 48)[1]
    step(warm, within(RECIPES[name], warm), x, dy)  # torch's own: its generator, its engine
    replay = captured(call)
    for scale in (1.0, 2.0):
        inp.data.copy_(x * scale)
        a = step(eager, within(RECIPES[name], eager), x * scale, dy)
        torch.manual_seed(3)  # as a step does
        y = replay()
        found = [y, inp.grad, other.weight.grad, other.bias.grad]
        assert_same(a[:4], [t.detach().clone() for t in found])


@pytest.mark.parametrize("cached", [False, True])
@every_recipe
def test_gpu_linear__reduce_overhead_skips_nothing(name: str, cached: bool) -> None:
    from torch._dynamo.utils import counters

    _, eager = layers(96, 48)
    _, other = layers(96, 48)
    x, dy = (t.cuda() for t in data(64, 96, 48))
    counters.clear()
    fast = torch.compile(within(RECIPES[name], other), fullgraph=True, mode="reduce-overhead")
    for turn in range(4):
        words = ((turn == 0),) if cached and name != "none" else ()
        torch.compiler.cudagraph_mark_step_begin()
        a = step(eager, lambda x, w=words: within(RECIPES[name], eager)(x, *w), x, dy)
        assert_eager(name, a, step(other, lambda x, w=words: fast(x, *w), x, dy))
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.parametrize("mode", ["eager", "default", "reduce-overhead"])
def test_gpu_linear__later_weight_gradients(mode: str) -> None:
    """The op that hands a backward's tensors over is Python's; no replay may leave it out."""
    _, eager = layers(96, 48)
    _, other = layers(96, 48, delay_wgrad_compute=True)
    x, dy = (t.cuda() for t in data(64, 96, 48))
    active = recipe.Float8CurrentScaling()
    call = within(active, other)
    if mode != "eager":
        call = torch.compile(call, fullgraph=True, mode=mode)
    for turn in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        a = step(eager, within(active, eager), x * (turn + 1), dy)
        b = step(other, call, x * (turn + 1), dy)
        assert b[2] is None
        other.backward_dw()
        assert_same(a, [*b[:2], other.weight.grad, *b[3:]])


# ---- many steps, streams and threads ---------------------------------------------------------


def test_gpu_linear__a_thousand_steps_keep_nothing() -> None:
    for name in ("delayed", "current", "nvfp4"):
        _, linear = layers(96, 48)
        x, dy = (t.cuda() for t in data(64, 96, 48))
        for turn in range(1000):
            step(linear, within(RECIPES[name], linear), x, dy)
            if turn == 20:
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() <= before[0]
        assert torch.cuda.mem_get_info()[0] >= before[1] - (1 << 21)


def test_gpu_linear__streams_and_threads() -> None:
    _, linear = layers(96, 48)
    x, dy = (t.cuda() for t in data(64, 96, 48))
    active = recipe.Float8CurrentScaling()
    wanted = step(linear, within(active, linear), x, dy)
    found: list[list[Any]] = []

    def work(mine: octet.Linear) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                got = step(mine, within(active, mine), x, dy)
            torch.cuda.current_stream().synchronize()
        found.append(got)

    ours = [layers(96, 48)[1] for _ in range(4)]
    threads = [threading.Thread(target=work, args=(mine,)) for mine in ours]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for got in found:
        assert_same(wanted, got)


# ---- what is refused -------------------------------------------------------------------------


def test_gpu_linear__a_tensor_elsewhere_is_named() -> None:
    _, linear = layers(96, 48)
    x, dy = data(64, 96, 48)
    with (
        octet.autocast(recipe=recipe.Float8CurrentScaling()),
        pytest.raises(ValueError, match=r"device|cuda|cpu"),
    ):
        linear(x)
    step(linear, within(None, linear), x.cuda(), dy.cuda())  # and the next call works
