"""Quantized bytes, dequantized values and state on the GPU are the CPU's, bit for bit."""

import functools
import itertools

import pytest
from octet import _C, _ops, _texts

import torch

SHAPES = [(0, 7), (7, 0), (1, 1), (16, 17), (31, 33), (67, 129), (128, 128), (300, 260)]
LARGE = [(1024, 512), (513, 1031)]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def texts() -> list[str]:
    """Every quantizer value that the C core accepts, from the words of its grammar."""
    schemes = [("fp8-tensor:e4m3", ""), ("fp8-tensor:e5m2", ""), ("fp8-delayed:e4m3", "")]
    schemes += [("fp8-delayed:e5m2", "")]
    schemes += [("fp8-block:e4m3", "/1x128"), ("fp8-block:e4m3", "/128x128")]
    schemes += [("fp8-block:e5m2", "/1x128")]
    schemes += [("mxfp8:e4m3", "/1x32"), ("mxfp8:e5m2", "/1x32"), ("mxfp8:e4m3", "/32x32")]
    schemes += [("nvfp4:e2m1", "/1x16"), ("nvfp4:e2m1", "/16x16")]
    schemes += [("mxfp4:e2m1", "/1x32"), ("mxfp4:e2m1", "/32x32")]
    options = [
        "",
        "+pow2",
        "+nopow2",
        "+eps=0.001",
        "+swizzled",
        "+rht",
        "+rht=plain",
        "+sr",
        "+rht+sr",
    ]
    options += ["+rowscaled", "+4over6", "+4over6=mse", "+4over6+max256", "+rht+swizzled"]
    found: list[str] = []
    for (scheme, block), usage, option in itertools.product(
        schemes, ("+row", "+col", "+row+col"), options
    ):
        try:
            found.append(_C.canonical("quantizer", scheme + block + usage + option))
        except ValueError:
            continue
    return list(dict.fromkeys(found))


TEXTS = texts()


def awkward(rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers of many sizes, and every special one, anywhere."""
    x = torch.randn(rows, cols, dtype=torch.float64)
    x *= torch.exp2(torch.randint(-30, 12, (rows, 1)).double())
    largest, smallest = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), largest, -largest]
    special += [smallest, smallest / 8, 448.0, 464.0, 6.0, 5.0, 2.5, 2.0**-9, 2.0**-10]
    flat = x.view(-1)
    if flat.numel() > 64:
        where = torch.randint(flat.numel(), (max(flat.numel() // 50, 1),))
        values = torch.tensor(special, dtype=torch.float64)
        flat[where] = values[torch.randint(len(special), where.shape)]
    return x.to(dtype)


def live_of(text: str) -> list[torch.Tensor]:
    """What a quantizer reads besides the tensor."""
    if _texts.scheme(text) == "fp8-delayed":
        return [torch.tensor([3.7])]
    return [torch.tensor([0x0123456789ABCDEF])] if "+sr" in text else []


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.view(kind), b.cpu().view(kind))


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, but for what a NaN carries besides being one."""
    nan = a.isnan()
    return torch.equal(nan, b.cpu().isnan()) and same(
        a.masked_fill(nan, 0), b.cpu().masked_fill(nan, 0)
    )


def check(text: str, x: torch.Tensor) -> None:
    name = next(key for key, dtype in DTYPES.items() if dtype == x.dtype)
    live, words = live_of(text), f"{name} {text}"
    cpu = _ops.quantize(x, live, words)
    gpu = _ops.quantize(x.cuda(), [t.cuda() for t in live], words)
    wrong = [i for i, (a, b) in enumerate(zip(cpu, gpu, strict=True)) if not same(a, b)]
    assert not wrong, f"buffers {wrong} of {words} at {tuple(x.shape)}"
    buffers = cpu[: len(_texts.buffer_names(text))]
    sizes = list(x.shape)
    back = _ops.dequantize(buffers, sizes, words)
    assert same_values(back, _ops.dequantize([b.cuda() for b in buffers], sizes, words))


@pytest.mark.parametrize("text", TEXTS)
def test_gpu_bytes__every_quantizer(text: str) -> None:
    for (rows, cols), dtype in itertools.product(SHAPES, DTYPES.values()):
        check(text, awkward(rows, cols, dtype))
    for rows, cols in LARGE:
        check(text, awkward(rows, cols, torch.bfloat16))


large = functools.cache(awkward)

# A scheme's whole tensors, rows alone and columns alone.
ONE_OF_EACH = ["fp8-tensor:e4m3", "fp8-tensor:e5m2+row", "fp8-tensor:e4m3+col"]
ONE_OF_EACH += ["fp8-delayed:e5m2", "fp8-block:e4m3", "mxfp8:e4m3"]
ONE_OF_EACH += ["fp8-block:e4m3/128x128", "nvfp4:e2m1+rht+sr", "nvfp4:e2m1/16x16"]
ONE_OF_EACH += ["mxfp4:e2m1", "mxfp4:e2m1+rht+sr", "mxfp4:e2m1/32x32"]


@pytest.mark.parametrize("text", ONE_OF_EACH)
def test_gpu_bytes__more_tiles_than_a_gpu_has_room_for(text: str) -> None:
    """Whole ones and ragged ones: a block then does several, or waits for another's place."""
    for rows, cols in ((4480, 4096), (4500, 2056), (4481, 2051)):
        check(text, large(rows, cols, torch.bfloat16))
    for dtype in (torch.float16, torch.float32):
        check(text, large(2176, 4096, dtype))


@pytest.mark.parametrize("text", TEXTS[:: max(len(TEXTS) // 20, 1)])
def test_gpu_bytes__strided_and_misaligned_inputs(text: str) -> None:
    wide = awkward(130, 300, torch.bfloat16)
    for x in (wide[:, :256], wide[:, 3:259], wide[1::2], wide.t()):
        name, live = f"bf16 {text}", live_of(text)
        on_gpu = wide.cuda()
        view = torch.as_strided(on_gpu, x.shape, x.stride(), x.storage_offset())
        cpu = _ops.quantize(x, live, name)
        gpu = _ops.quantize(view, [t.cuda() for t in live], name)
        assert all(same(a, b) for a, b in zip(cpu, gpu, strict=True))


def test_gpu_bytes__all_bf16_values_in_every_scheme() -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    for text in TEXTS:
        check(text, every.view(256, 256))


@pytest.mark.parametrize("text", [t for t in TEXTS if "fp4:" in t][::3])
def test_gpu_bytes__blocks_far_below_the_amax(text: str) -> None:
    """Scales that are subnormal or 0, under amaxes of every size."""
    below = torch.exp2(-torch.arange(64.0, dtype=torch.float64)).view(64, 1)
    for exponent, dtype in itertools.product(range(-140, 124, 24), DTYPES.values()):
        x = torch.randn(64, 80, dtype=torch.float64) * below * 2.0**exponent
        check(text, x.to(dtype))


@pytest.mark.parametrize("text", [t for t in TEXTS if "fp4:" in t and "+sr" in t])
def test_gpu_bytes__elements_at_the_thresholds_of_random_bytes(text: str) -> None:
    """Where a random byte just rounds up, or just does not; nothing needs scaling."""
    part = torch.randint(1, 257, (1024, 1024)) / 512.0
    x = part * torch.tensor([1.0, 2.0, 4.0])[torch.randint(3, part.shape)]
    x -= torch.randint(-3, 5, x.shape) * 2.0**-27
    x = torch.where(torch.rand(x.shape) < 0.5, -x, x)
    x.view(1024, 64, 16)[:, :, 0] = 6.0
    x[0, 0] = 2688.0
    check(text, x)


def test_gpu_bytes__delayed_state() -> None:
    """A state: row 0 is the scales, the history is below it."""
    rule = "input delayed:history=5"
    state = torch.cat([torch.rand(1, 3) + 0.5, torch.zeros(8, 3)])
    on_gpu = state.cuda()
    for step in range(12):
        amax = torch.rand(3) * (step % 4)
        amax[step % 3] = float("inf") if step == 7 else amax[step % 3]
        for one in (state, on_gpu):
            _ops.delayed_record(one, amax.to(one.device))
            _ops.delayed_record(one, (amax * 0.5).to(one.device))
            _ops.delayed_update([one], rule)
        assert same(state, on_gpu)
