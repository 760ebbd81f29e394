"""Views of a quantized tensor: decoded copies to read, which refuse writes."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import octet
import pytest
import torch.nn.functional as F  # noqa: N812
from laws import compiled

import torch

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda w: w[0],
    "slice": lambda w: w[:2],
    "narrow": lambda w: w.narrow(0, 1, 2),
    "column": lambda w: w[..., 3],
    "t": lambda w: w.t(),
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "transpose": lambda w: w.transpose(0, 1),
    "permute": lambda w: w.permute(1, 0),
    "view": lambda w: w.view(-1),
    "flatten": lambda w: w.flatten(),
    "reshape": lambda w: w.reshape(128, 32),
    "unbind": lambda w: w.unbind()[1],
    "iterate": lambda w: next(iter(w)),
    "split": lambda w: w.split(7)[0],
    "chunk": lambda w: w.chunk(5, dim=1)[0],
    "diagonal": lambda w: w.diagonal(),
    "expand": lambda w: w.expand(2, 64, 64),
    "unsqueeze": lambda w: w.unsqueeze(0),
    "none": lambda w: w[None],
    "unfold": lambda w: w.unfold(0, 2, 2),
    "as_strided": lambda w: torch.as_strided(w, (2, 2), (1, 1)),
    "atleast_3d": lambda w: torch.atleast_3d(w),
    "of_rows": lambda w: w.view(4, 16, 64)[0],
    "of_a_view": lambda w: w.t()[0][1:],
    "detached": lambda w: w[0].detach(),
    "data": lambda w: w[0].data,
    "contiguous": lambda w: w[0].contiguous(),
}

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "mul_": lambda v: v.mul_(2),
    "copy_": lambda v: v.copy_(torch.zeros(v.shape)),
    "zero_": lambda v: v.zero_(),
    "setitem": lambda v: v.__setitem__(0, 1.0),
    "iadd": lambda v: v.__iadd__(1),
    "out": lambda v: torch.add(torch.zeros(v.shape), 1, out=v),
    "relu": lambda v: F.relu(v, inplace=True),
    "relu_positional": lambda v: F.relu(v, True),
    "dropout": lambda v: torch.nn.Dropout(0.5, inplace=True)(v),
    "init": torch.nn.init.zeros_,
    "foreach": lambda v: torch._foreach_mul_([v], 2.0),
    "op": lambda v: torch.ops.aten.mul_.Tensor(v, torch.tensor(2.0)),
    "masked": lambda v: v.masked_fill_(v > 0, 1.0),
    "index": lambda v: v.index_fill_(0, torch.tensor([0]), 1.0),
    "normal": lambda v: v.normal_(),
    "apply": lambda v: v.apply_(lambda value: 0.0),
    "map": lambda v: v.map_(v, lambda a, b: 0.0),
    "parameter": lambda v: torch.nn.Parameter(v).data.zero_(),
}


@pytest.fixture(params=["grad", "no_grad", "inference"])
def mode(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401
    return {
        "grad": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
    }[request.param]


@pytest.fixture
def w() -> torch.nn.Parameter:
    return torch.nn.Parameter(octet.MXFP8Quantizer("e4m3")(torch.randn(64, 64)))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_view__reads_what_the_tensor_stands_for(w: Any, view: Any, mode: Any) -> None:  # noqa: ANN401
    want = view(w.dequantize().detach())
    with mode():
        found = view(w)
        assert torch.equal(found, want)
        assert torch.equal(found + 1, want + 1)
        assert type(found + 1) is type(found.clone()) is torch.Tensor
        assert found.stride() == want.stride()
        assert found.detach().numpy().tolist() == want.numpy().tolist() == found.tolist()
        target = torch.zeros(want.shape)
        assert torch.equal(target.copy_(found), want)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_view__refuses_a_write(w: Any, view: Any, mode: Any) -> None:  # noqa: ANN401
    before = w.dequantize()
    with mode():
        found = view(w)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"zero_.*lost.*w\[0\] =.*dequanti"):
        found.zero_()
    assert torch.equal(w.dequantize(), before)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("view", [VIEWS["slice"], VIEWS["t"], VIEWS["view"]])
def test_view__refuses_every_write(w: Any, view: Any, write: Any) -> None:  # noqa: ANN401
    with torch.no_grad(), pytest.raises(RuntimeError, match="would be lost"):
        write(view(w.data))
    write(view(w.data).clone())
    write(view(w.data.dequantize()))


def test_view__writes_that_are_not_lost_work(w: Any) -> None:  # noqa: ANN401
    with torch.no_grad():
        w[0] = 2 * w[0]
        w[1] = 0.0
        w.view(4, 16, 64).mul_(2)
        w.t().clone().zero_()
    assert not w.dequantize()[1].any()


def test_view__assignment_with_an_operator_is_refused(w: Any) -> None:  # noqa: ANN401
    """Python writes into the view before it assigns it: too late to tell this from v += 1."""
    before = w.dequantize()
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"w\[0\] = w\[0\] \+ 1"):
        w[0] += 1
    assert torch.equal(w.dequantize(), before)


def test_view__bits_of_elements_are_refused(w: Any) -> None:  # noqa: ANN401
    with pytest.raises(RuntimeError, match=r"view\(torch.int32\).*buffers\(\).*dequantize"):
        w.view(torch.int32)


def test_view__trains(w: Any) -> None:  # noqa: ANN401
    plain = torch.nn.Parameter(w.dequantize().detach())
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    for weight in (w, plain):
        (((x @ weight.t()) * y).sum() + weight[0].square().sum()).backward()
    assert type(w.grad) is torch.Tensor
    assert torch.allclose(w.grad, plain.grad)


def test_view__is_saved_and_copied_as_a_plain_tensor(w: Any) -> None:  # noqa: ANN401
    view = w.data[3]
    file = io.BytesIO()
    torch.save(view, file)
    file.seek(0)
    for made in (
        copy.deepcopy(view),
        pickle.loads(pickle.dumps(view)),
        torch.load(file, weights_only=True),
        torch.from_dlpack(view),
    ):
        assert type(made) is torch.Tensor
        assert torch.equal(made, w.dequantize()[3])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_view__crosses_compiled_code(w: Any, backend: str) -> None:  # noqa: ANN401
    x = torch.randn(8, 64)
    inside, counter = compiled(lambda w, x: x @ w.t(), backend)
    assert torch.allclose(inside(w, x), x @ w.t(), atol=1e-5)
    assert counter.frame_count == 1
    given, _ = compiled(lambda v: v.view(8, 8).t().relu() + v.sum(), backend)
    want = w.dequantize()[0]
    assert torch.allclose(given(w[0]), want.view(8, 8).t().relu() + want.sum())
    given(w[0]).sum().backward()
    assert w.grad[0].any()
    assert not w.grad[1:].any()


def test_view__refuses_a_write_of_compiled_code_that_it_is_given_to(w: Any) -> None:  # noqa: ANN401
    with torch.no_grad(), pytest.raises(Exception, match="would be lost"):
        compiled(lambda v: v.mul_(2))[0](w.data[0])


def test_view__is_an_input_of_layers(w: Any) -> None:  # noqa: ANN401
    layer = octet.Linear(64, 32, device="cpu")
    with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
        found, want = layer(w[:8]), layer(w.dequantize()[:8])
    assert torch.equal(found, want)
    found.sum().backward()
    assert w.grad[:8].any()
