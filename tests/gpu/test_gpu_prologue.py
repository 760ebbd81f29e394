"""Norms and activations on the GPU are the CPU's, bit for bit, forward and backward.

The weight is the identity, so y is f(x) itself, and the gradient that the prologue's backward
gets is dy."""

import itertools

import pytest
from octet import _C, _ops, _signatures
from test_gpu_bytes import DTYPES, awkward, same, same_values

import torch

GATED = ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu")
NAMES = ("rmsnorm", "layernorm", "gelu", "qgelu", "relu", "srelu", "silu", *GATED)
SHAPES = [(1, 1), (7, 33), (129, 128), (300, 260), (1025, 8), (64, 1024)]


def words_of(name: str, dtype: str, rest: str = "") -> str:
    norm = " eps=1e-05" if name.endswith("norm") else ""
    return f"in={dtype}{' beta' if name == 'layernorm' else ''} prologue={name}{norm}{rest}"


def operands(name: str, m: int, k: int, dtype: torch.dtype) -> list[torch.Tensor]:
    wide = 2 * k if name in GATED else k
    found = [awkward(m, wide, dtype), torch.eye(k, dtype=dtype)]
    found += [torch.randn(k).to(dtype)] if name.endswith("norm") else []
    return found + ([torch.randn(k).to(dtype)] if name == "layernorm" else [])


def run(words: str, args: list[torch.Tensor], dy: torch.Tensor) -> dict[str, torch.Tensor]:
    if dy.is_cuda:
        words += f" device={_C.cuda_device(dy.device.index or 0)}"
    sizes = (args[0].shape[0], args[1].shape[1], args[1].shape[0])
    forward = _signatures.forward_signature(words)
    backward = _signatures.backward_signature(words, dy.dtype)
    made = _ops.linear(args, sizes, words)
    saved = [args[i] if given else made[i] for given, i in forward.saves]
    pool = [dy, *saved, *([made[-1]] if forward.saves_arena else [])]
    grads = _ops.linear_backward([pool[i] for i in backward.args], sizes, backward.text)
    found = {group.name: grads[group.start] for _, group in backward.grads}
    # Sums of a product begin with +0, or with -0; a CPU's own instruction for products of bf16
    # takes subnormal numbers for 0.
    y = made[0] + 0.0
    tiny = y.abs() < torch.finfo(torch.bfloat16).tiny
    return {"output": y.masked_fill(tiny, 0) if y.dtype is torch.bfloat16 else y, **found}


@pytest.mark.parametrize("name", NAMES)
def test_gpu_prologue__forward_and_backward(name: str) -> None:
    for (m, k), (word, dtype) in itertools.product(SHAPES, DTYPES.items()):
        # What is not finite would spread over a row of the product, whose order is not ours.
        args = [
            a.nan_to_num(1.0, 2.0, -3.0).clamp(-64, 64) for a in operands(name, m, k, dtype)
        ]
        dy = torch.randn(m, k).to(dtype)
        words = words_of(name, word, f" grad={'xge' if name == 'layernorm' else 'x'}")
        words = words.replace("=x", "=xg") if name == "rmsnorm" else words
        cpu, gpu = run(words, args, dy), run(words, [a.cuda() for a in args], dy.cuda())
        assert cpu.keys() == gpu.keys()
        wrong = [key for key in cpu if not same_values(cpu[key], gpu[key])]
        assert not wrong, f"{wrong} of {words} at {m} x {k}"


@pytest.mark.parametrize("name", NAMES)
def test_gpu_prologue__what_is_cast_of_it(name: str) -> None:
    """Scales are powers of two and every sum has one term: y is what the bytes stand for."""
    for m, k in ((16, 128), (300, 260), (513, 1024)):
        args = [
            a.nan_to_num(1.0, 2.0, -3.0).clamp(-64, 64)
            for a in operands(name, m, k, torch.bfloat16)
        ]
        words = words_of(name, "bf16", " recipe=block grad=none")
        cpu = _ops.linear(args, (m, k, k), words)
        on = f"{words} device={_C.cuda_device(0)}"
        gpu = _ops.linear([a.cuda() for a in args], (m, k, k), on)
        assert same_values(cpu[0] + 0.0, gpu[0] + 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_gpu_prologue__specials_and_strides(name: str) -> None:
    """Rows that lie apart, misaligned columns, and every special number: elementwise ones keep
    to themselves, and a norm's make their row NaN on both."""
    m, k = 130, 72
    args = operands(name, m, k, torch.float32)
    wide = awkward(m, args[0].shape[1] + 5, torch.float32)
    args[0] = wide[:, 3 : 3 + args[0].shape[1]]
    dy = awkward(m, k, torch.float32)
    words = words_of(name, "f32", " grad=x")
    plan = {"cpu": args, "cuda": [a.cuda() for a in args]}
    on_gpu = wide.cuda()
    plan["cuda"][0] = on_gpu[:, 3 : 3 + args[0].shape[1]]
    plan_dy = {"cpu": dy, "cuda": dy.cuda()}
    found = {key: run(words, plan[key], plan_dy[key]) for key in plan}
    # y is a product: a NaN or an Inf anywhere in a row of f(x) is a NaN there (0 times Inf).
    nan = {key: out["output"].isnan().any(1).cpu() for key, out in found.items()}
    assert torch.equal(nan["cpu"], nan["cuda"])
    clean = ~nan["cpu"]
    assert same(found["cpu"]["output"][clean], found["cuda"]["output"].cpu()[clean])
