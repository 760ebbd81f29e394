"""What the tests share: quantizers, recipes, layers, and how two runs are compared."""

import copy
from collections.abc import Callable
from typing import Any

import octet
from octet import recipe
from torch._dynamo.testing import CompileCounterWithBackend

import torch

QUANTIZERS = [
    octet.Float8CurrentScalingQuantizer("e4m3"),
    octet.Float8CurrentScalingQuantizer("e5m2", columnwise=False, force_pow_2_scales=True),
    octet.Float8BlockQuantizer("e4m3"),
    octet.Float8BlockQuantizer("e4m3", block_scaling_dim=1, rowwise=False),
    octet.MXFP8Quantizer("e4m3"),
    octet.MXFP8Quantizer("e5m2", with_2d_quantization=True, columnwise=False),
    octet.NVFP4Quantizer(),
    octet.NVFP4Quantizer(with_rht=True),
    octet.NVFP4Quantizer(with_2d_quantization=True, columnwise=False),
    octet.NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=256),
    octet.NVFP4Quantizer(row_scaled_nvfp4=True),
    octet.MXFP4Quantizer(),
    octet.MXFP4Quantizer(with_rht=True, rowwise=False),
    octet.MXFP4Quantizer(with_2d_quantization=True),
]

RECIPES: dict[str, recipe.Recipe | None] = {
    "none": None,
    "delayed": recipe.DelayedScaling(amax_history_len=4),
    "current": recipe.Float8CurrentScaling(),
    "block": recipe.Float8BlockScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
    "nvfp4": recipe.NVFP4BlockScaling(),
    "mxfp4": recipe.MXFP4BlockScaling(),
}
# Rounding to n bits behind the point errs by up to 2^-(n+1) of a value, and evenly spread by
# 2^-(n+1) / sqrt(3) in the mean. A product has two such factors: e4m3 twice gives 0.051, e4m3
# and e5m2 0.081, e2m1 twice 0.20, to which FP4's scales add their own.
BOUNDS = {"none": 0.01, "current": 0.09, "delayed": 0.09, "block": 0.06, "mxfp8": 0.06}
BOUNDS |= {"nvfp4": 0.25, "mxfp4": 0.3}
DRAWING = ("nvfp4", "mxfp4")  # those that round gradients at random


def layer(**options: Any) -> octet.Linear:  # noqa: ANN401
    """A small layer whose sizes are no multiple of any block."""
    torch.manual_seed(1)
    options = {"params_dtype": torch.bfloat16, "device": "cpu", **options}
    return octet.Linear(70, 44, **options)


def inputs(*leading: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any]:
    """An input and a gradient of the output for `layer`."""
    leading = leading or (3, 13)
    torch.manual_seed(2)
    return torch.randn(*leading, 70, dtype=dtype), torch.randn(*leading, 44, dtype=dtype)


def twins(**options: Any) -> tuple[octet.Linear, octet.Linear]:  # noqa: ANN401
    """Two layers of the same weights and state."""
    first = layer(**options)
    return first, copy.deepcopy(first)


def within(active: recipe.Recipe | None, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call inside an autocast of its own."""

    def inside(*args: Any) -> Any:  # noqa: ANN401
        with octet.autocast(enabled=active is not None, recipe=active):
            return call(*args)

    return inside


def plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.dequantize() if isinstance(tensor, octet.QuantizedTensor) else tensor


def step(
    linear: octet.Linear,
    call: Callable[..., Any],
    x: Any,  # noqa: ANN401
    grad: Any,  # noqa: ANN401
    seed: int = 3,
) -> list[Any]:
    """Output and gradients of one training step, and the state it leaves.

    Steps of one seed draw the same random numbers."""
    torch.manual_seed(seed)
    x = x.detach().clone().requires_grad_()
    linear.zero_grad()
    y = call(x)
    plain(y).backward(grad)
    state = scales(linear)
    found = [y.detach(), x.grad, linear.weight.grad]
    found += [] if linear.bias is None else [linear.bias.grad]
    return [None if t is None else plain(t).clone() for t in found + state]


def scales(linear: octet.Linear) -> list[Any]:
    """Delayed scaling's scales; None where the layer has none."""
    found = [linear._buffers.get(n) for n in ("fp8_state", "fp8_grad_state")]
    return [None if state is None else state[0] for state in found]


def histories(linear: octet.Linear) -> list[Any]:
    """Delayed scaling's histories; None where the layer has none."""
    found = [linear._buffers.get(n) for n in ("fp8_state", "fp8_grad_state")]
    return [None if state is None else state[1:].clone() for state in found]


def assert_same(a: list[Any], b: list[Any]) -> None:
    """Bit for bit."""
    for left, right in zip(a, b, strict=True):
        assert (left is None) == (right is None)
        assert left is None or (left.dtype == right.dtype and torch.equal(left, right))


def assert_product(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: Any = 0.0) -> None:  # noqa: ANN401
    """y = a b + c, up to fp32 accumulation (one rounding a term) and y's own dtype."""
    exact, size = a @ b + c, a.abs() @ b.abs()
    terms = a.shape[1] + 2
    bound = terms * 2.0**-23 * size + (2.0**-8 if y.dtype == torch.bfloat16 else 2.0**-23) * (
        exact.abs() + size * terms * 2.0**-23
    )
    assert bool(((y.reshape(exact.shape).double() - exact).abs() <= bound).all())


def compiled(
    call: Callable[..., Any],
    backend: str = "aot_eager",
    dynamic: bool | None = None,
) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    """The call compiled whole, and the counter of its graphs."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(call, fullgraph=True, backend=counter, dynamic=dynamic), counter


def captured(call: Any, x: torch.Tensor, grad: torch.Tensor) -> tuple[list[str], list[str]]:  # noqa: ANN401
    """The octet ops in the forward and backward graphs."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    graphs: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:  # noqa: ANN401
        found = []
        for node in graph.graph.nodes:
            # An op that mutates stands inside torch's wrapper for those.
            names = [str(node.target), *(str(arg) for arg in node.args[:1])]
            found += [name for name in names if name.startswith("octet.")]
        graphs.append(found)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition
    )
    x = x.clone().requires_grad_()
    torch.compile(call, fullgraph=True, backend=backend)(x).backward(grad)
    return graphs[0], graphs[1]


def step_of(made: torch.nn.Module, call: Any, x: Any, grad: Any, seed: int = 3) -> list[Any]:  # noqa: ANN401
    """Output, gradients of input and parameters, and delayed scaling's state."""
    torch.manual_seed(seed)
    x = x.detach().clone().requires_grad_()
    made.zero_grad()
    y = call(x)
    y.backward(grad)
    buffers = made.named_buffers(remove_duplicate=False)
    state = [b[0] for n, b in buffers if n.endswith(("fp8_state", "fp8_grad_state"))]
    found = [y, x.grad, *(p.grad for p in made.parameters()), *state]
    return [None if t is None else t.detach().clone() for t in found]
