"""Prologues through the ops: f(x) against torch, gradients, fakes, and the words of a call."""

import itertools
from typing import Any

import pytest
from octet import _C, _ops, _signatures
from torch._subclasses.fake_tensor import FakeTensorMode

import torch

F = torch.nn.functional

M, K = 21, 40
GATED = ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu")
ACTS = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "srelu": lambda x: F.relu(x) ** 2,
    "silu": F.silu,
}
GATES = dict(zip(GATED, (torch.sigmoid, *ACTS.values()), strict=True))


def words_of(name: str, dtype: str, rest: str = "") -> str:
    norm = " eps=1e-05" if name.endswith("norm") else ""
    beta = " beta" if name == "layernorm" else ""
    return _C.words_on_cpu(f"in={dtype}{beta} prologue={name}{norm}{rest}")


def operands(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """x, the identity for a weight, and a norm's parameters: y is f(x), and its gradient dy."""
    torch.manual_seed(1)
    wide = 2 * K if name in GATED else K
    found = [2 * torch.randn(M, wide).to(dtype), torch.eye(K, dtype=dtype)]
    found += [torch.randn(K).to(dtype)] if name.endswith("norm") else []
    return found + ([torch.randn(K).to(dtype)] if name == "layernorm" else [])


def reference(name: str, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    if name == "rmsnorm":
        return F.rms_norm(x, (K,), rest[0], 1e-5)
    if name == "layernorm":
        return F.layer_norm(x, (K,), rest[0], rest[1], 1e-5)
    if name in GATES:
        return GATES[name](x[:, :K]) * x[:, K:]
    return ACTS[name](x)


def run(words: str, args: list[torch.Tensor], dy: torch.Tensor) -> list[torch.Tensor]:
    """y and then the gradients, in the order that the signature has them."""
    sizes = (M, K, K)
    forward = _signatures.forward_signature(words)
    backward = _signatures.backward_signature(words, dy.dtype)
    made = _ops.linear(args, sizes, words)
    saved = [args[i] if given else made[i] for given, i in forward.saves]
    pool = [dy, *saved, *([made[-1]] if forward.saves_arena else [])]
    grads = _ops.linear_backward([pool[i] for i in backward.args], sizes, backward.text)
    places = {at - 3: group.start for at, group in backward.grads}
    return [made[0], *(grads[places[i]] for i in sorted(places))]


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", *ACTS, *GATED])
def test_prologue__is_torchs_function_and_its_gradient(name: str) -> None:
    args = operands(name, torch.float32)
    dy = torch.randn(M, K)
    got = run(words_of(name, "f32"), args, dy)
    leaves = [a.double().requires_grad_() for a in args]
    x, weight, *rest = leaves
    y = reference(name, x, *rest) @ weight.t()
    want = [y, *torch.autograd.grad(y, leaves, dy.double())]
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("recipe", ["none", "current", "delayed", "block", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("name", ["layernorm", "swiglu"])
def test_prologue__fakes_say_what_the_ops_make(name: str, recipe: str) -> None:
    words = words_of(name, "bf16", f" recipe={recipe} grad=x")
    args = operands(name, torch.bfloat16)
    names = _signatures.forward_signature(words).args
    lent = {"scale": torch.ones(3), "seed": torch.tensor([5])}
    args += [lent[n] for n in names[len(args) :]]
    made = _ops.linear(args, (M, K, K), words)
    with FakeTensorMode() as mode:
        fakes = _ops.linear([mode.from_tensor(a) for a in args], (M, K, K), words)
    assert [(f.shape, f.dtype) for f in fakes] == [(m.shape, m.dtype) for m in made]


def test_prologue__words_from_typed_arguments() -> None:
    options: tuple[tuple[str, Any], ...] = (("prologue", "layernorm"), ("eps", 1e-5))
    options += (("gamma_requires_grad", True), ("beta_requires_grad", True))
    dtypes = ("bf16", "bf16", None, "f32", "bf16")
    words = _C.linear_words(dtypes, (None, None), "mxfp8", (True, True, False), options)
    assert words == words_of("layernorm", "bf16", " recipe=mxfp8 gamma=f32")
    gated = (("prologue", "swiglu"),)
    words = _C.linear_words(
        ("bf16", "bf16", None), (None, None), "none", (True,) * 2 + (False,), gated
    )
    assert words == "in=bf16 prologue=swiglu"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("in=bf16 prologue=tanh", "allowed: none, rmsnorm, layernorm, gelu"),
        ("in=bf16 prologue=rmsnorm", "eps is 0; rmsnorm takes one above 0"),
        ("in=bf16 prologue=rmsnorm eps=1e-5 beta", "only layernorm adds one"),
        ("in=bf16 prologue=gelu eps=1e-5", "eps without a norm: prologue is gelu"),
        ("in=bf16 gamma=f32", "gamma without a norm: prologue is none"),
        ("in=bf16 prologue=silu qin=mxfp8:e4m3", "input is quantized, but silu"),
        ("in=bf16 prologue=gelu grad=g", "gamma_requires_grad without a gamma"),
    ],
)
def test_prologue__refusals_say_the_rule(words: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _C.words_on_cpu(words)


def test_prologue__a_wrong_input_is_refused() -> None:
    args = operands("swiglu", torch.bfloat16)
    with pytest.raises((ValueError, RuntimeError), match="input"):
        _ops.linear(
            [args[0][:, :K].contiguous(), args[1]], (M, K, K), "in=bf16 prologue=swiglu"
        )


def test_prologue__gradients_are_asked_for_one_by_one() -> None:
    for flags in itertools.product((False, True), repeat=4):
        letters = "".join(c for c, on in zip("xwge", flags, strict=True) if on)
        words = words_of("layernorm", "bf16", f" recipe=mxfp8 grad={letters or 'none'}")
        if letters:
            backward = _signatures.backward_signature(words, torch.bfloat16)
            assert [group.name for _, group in backward.grads] == [
                name
                for name, on in zip(
                    ("grad_input", "grad_weight", "grad_gamma", "grad_beta"), flags, strict=True
                )
                if on
            ]
        else:
            assert not _signatures.forward_signature(words).has_backward
