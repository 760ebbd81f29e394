"""Quantizers in traced code: constants of the graph, arguments of a user's own op."""

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import octet
import pytest
from laws import compiled
from octet import _opaque

import torch

needs_api = pytest.mark.skipif(
    _opaque.API is None,
    reason="an op takes quantizers only where torch's opaque objects have members: from 2.11",
)


@pytest.fixture(scope="module")
def round_trip() -> Iterator[object]:
    @torch.library.custom_op("octet_tests::round_trip", mutates_args=())
    def op(x: torch.Tensor, q: octet.MXFP8Quantizer) -> torch.Tensor:
        return q(x).dequantize()

    @op.register_fake
    def _(x: torch.Tensor, q: octet.MXFP8Quantizer) -> torch.Tensor:
        return torch.empty_like(x)

    return op


@needs_api
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_opaque__is_an_argument_of_a_users_op(round_trip: object, backend: str) -> None:
    x = torch.randn(4, 64)
    call, counter = compiled(lambda x, q: round_trip(x, q), backend)
    for fmt in ("e4m3", "e5m2", "e4m3"):
        q = octet.MXFP8Quantizer(fmt)
        assert torch.equal(call(x, q), q(x).dequantize())
    assert counter.frame_count == 2  # one for each value, not for each object


def test_opaque__quantize_is_traced() -> None:
    q, x = octet.NVFP4Quantizer(with_rht=True), torch.randn(4, 70)
    call, counter = compiled(lambda x: q.quantize(x).dequantize(), dynamic=True)
    for rows in (4, 9):
        x = torch.randn(rows, 70)
        assert torch.equal(call(x), q(x).dequantize())
    assert counter.frame_count == 1


def test_opaque__is_value_is_traceable() -> None:
    q = octet.MXFP8Quantizer("e4m3")
    call, _ = compiled(lambda x: x + int(octet.is_value_opaque_quantizer(q)))
    assert call(torch.zeros(1)) == 1


def test_opaque__a_subclass_is_a_value_only_if_it_registers() -> None:
    class Mine(octet.MXFP8Quantizer):
        pass

    assert not octet.is_value_opaque_quantizer(Mine("e4m3"))
    octet.register_value_opaque_quantizer(Mine)
    assert octet.is_value_opaque_quantizer(Mine("e4m3"))


def test_opaque__a_class_without_equality_is_refused() -> None:
    class Mine(octet.Quantizer):
        pass

    with pytest.raises(TypeError, match="__eq__"):
        octet.register_value_opaque_quantizer(Mine)


def test_opaque__works_without_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_opaque, "API", None)

    @octet.register_value_opaque_quantizer
    class Mine(octet.MXFP8Quantizer):
        pass

    q = Mine("e4m3")
    assert q == Mine("e4m3")
    assert octet.is_value_opaque_quantizer(q)
    assert eval(*q.__fx_repr__()) == q


@needs_api
def test_opaque__registering_again_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def register(cls: type, **options: object) -> None:
        calls.append((cls, options))

    monkeypatch.setattr(_opaque, "API", _opaque.API._replace(register=register))

    class Mine(octet.MXFP8Quantizer):
        pass

    assert octet.register_value_opaque_quantizer(Mine) is Mine
    assert octet.register_value_opaque_quantizer(Mine) is Mine
    assert [cls for cls, _ in calls] == [Mine]
    octet.register_value_opaque_quantizer(octet.MXFP8Quantizer)
    assert len(calls) == 1


CELL = """
@octet.register_value_opaque_quantizer
class Again(octet.MXFP8Quantizer):
    def quantize(self, tensor, *, out=None):
        return octet.MXFP8Quantizer("e4m3").quantize(tensor * factor, out=out)

@torch.library.custom_op("octet_tests::again", mutates_args=())
def op(x: torch.Tensor, q: Again) -> torch.Tensor:
    return q.quantize(x).dequantize()

@op.register_fake
def _(x, q):
    return torch.empty_like(x)
"""


@needs_api
def test_opaque__a_cell_of_a_notebook_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, classes = torch.randn(4, 64), []
    notebook = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    for factor in (1, 2):
        vars(notebook).update(octet=octet, torch=torch, factor=factor)
        exec(CELL, vars(notebook))
        classes.append(notebook.Again)  # the first one still lives when the second comes
        q = notebook.Again("e4m3")
        assert octet.is_value_opaque_quantizer(q)
        want = octet.MXFP8Quantizer("e4m3")(x * factor).dequantize()
        for call in (lambda x, q: q.quantize(x).dequantize(), notebook.op):
            assert torch.equal(call(x, q), want)
            assert torch.equal(compiled(call)[0](x, q), want)


@needs_api
def test_opaque__torch_may_refuse_a_users_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(cls: type, **options: object) -> None:
        raise ValueError(f"{cls.__name__} is a pytree")

    monkeypatch.setattr(_opaque, "API", _opaque.API._replace(register=register))

    class Mine(octet.MXFP8Quantizer):
        pass

    with pytest.raises(ValueError, match="Mine is a pytree"):
        octet.register_value_opaque_quantizer(Mine)
    assert not octet.is_value_opaque_quantizer(Mine("e4m3"))
    assert octet.support()["opaque_quantizers"] == "registered"


# What a torch of the future may do to its API, and what must work nevertheless.
BREAK = {
    "ImportError": """
def without(name, scope=None, *rest):
    if name.startswith("torch._library") and scope and scope["__name__"] == "octet._opaque":
        raise ImportError("no such module")
    return whole(name, scope, *rest)
builtins.__import__ = without
""",
    "AttributeError": """
for name in ("register_custom_class", "register_opaque_type", "MemberType"):
    vars(api).pop(name, None)
""",
    "TypeError": """
api.register_custom_class = api.register_opaque_type = lambda cls: None
""",
    "RuntimeError": """
def refuse(cls, **options):
    raise RuntimeError("a name is taken")
api.register_custom_class = api.register_opaque_type = refuse
""",
}

PROGRAM = """
import builtins
import sys
import torch
import torch._dynamo
from torch._library import opaque_object as api
before, whole = dict(vars(api)), builtins.__import__
{broken}
import octet
vars(api).update(before)
builtins.__import__ = whole

@octet.register_value_opaque_quantizer
class Mine(octet.MXFP8Quantizer):
    pass

found = octet.support()["opaque_quantizers"]
assert found.startswith("not registered: " + sys.argv[1]), found
x, q = torch.randn(4, 64), Mine("e4m3")
assert octet.is_value_opaque_quantizer(q) and q == Mine("e4m3") and eval(*q.__fx_repr__()) == q
for quantize in (q.quantize, octet.MXFP8Quantizer("e4m3").quantize):
    traced = torch.compile(
        lambda x: quantize(x).dequantize(), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(traced(x), quantize(x).dequantize())
linear = octet.Linear(64, 32, params_dtype=torch.bfloat16, device="cpu")

def call(x):
    with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
        return linear(x)

grads = []
for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
    x = torch.ones(32, 64, dtype=torch.bfloat16, requires_grad=True)
    run(x).sum().backward()
    grads.append(x.grad)
assert torch.equal(*grads)
print("works")
"""


@pytest.mark.parametrize("error", BREAK)
def test_opaque__whatever_becomes_of_the_api_the_rest_works(error: str) -> None:
    program = PROGRAM.format(broken=BREAK[error])
    done = subprocess.run(
        [sys.executable, "-c", program, error if _opaque.API else ""],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "python")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "works\n"


def test_opaque__is_made_in_traced_code() -> None:
    x = torch.randn(4, 70)

    def call(x: torch.Tensor, fmt: str) -> torch.Tensor:
        q = octet.MXFP8Quantizer(fmt, columnwise=False)
        q.set_usage(rowwise=True)
        return q.quantize(x).dequantize()

    fast, _ = compiled(call)
    for fmt in ("e4m3", "e5m2"):
        assert torch.equal(fast(x, fmt), call(x, fmt))


def test_opaque__only_quantizers_register() -> None:
    with pytest.raises(TypeError, match=r"octet\.Quantizer"):
        octet.register_value_opaque_quantizer(dict)
