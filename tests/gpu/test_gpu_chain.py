"""Kernels begin before their predecessor has ended, and wait for what it writes."""

import octet
import pytest

import torch

QUANTIZERS: dict[str, octet.Quantizer] = {
    "current": octet.Float8CurrentScalingQuantizer("e4m3"),
    "block 1D": octet.Float8BlockQuantizer("e4m3", block_scaling_dim=1),
    "block 2D": octet.Float8BlockQuantizer("e4m3", block_scaling_dim=2),
    "mxfp8": octet.MXFP8Quantizer("e4m3"),
    "nvfp4": octet.NVFP4Quantizer(with_rht=True),
    "nvfp4 2D": octet.NVFP4Quantizer(with_2d_quantization=True),
    "mxfp4": octet.MXFP4Quantizer(with_rht=True),
    "mxfp4 2D": octet.MXFP4Quantizer(with_2d_quantization=True),
}


def data(tensor: octet.QuantizedTensor) -> list[torch.Tensor]:
    return [buffer.view(torch.uint8).clone() for buffer in tensor.buffers()]


@pytest.mark.parametrize("name", QUANTIZERS)
def test_chain__a_cast_reads_what_the_kernel_before_it_wrote(name: str) -> None:
    """Its predecessor is Octet's own, which lets it begin early. Memory is used again and holds
    what an earlier round left there, so a cast that did not wait would show."""
    first, second = octet.MXFP8Quantizer("e4m3"), QUANTIZERS[name]
    for step in range(12):
        x = torch.randn(2048 + 128 * step, 4096, dtype=torch.bfloat16, device="cuda")
        quantized = first(x)
        torch.cuda.synchronize()
        got = data(second(quantized.dequantize()))
        torch.cuda.synchronize()
        between = quantized.dequantize()
        torch.cuda.synchronize()
        want = data(second(between))
        assert all(map(torch.equal, got, want))


def test_chain__a_captured_one_does_so_too() -> None:
    quantized = octet.MXFP8Quantizer("e4m3")(torch.zeros(4096, 4096, device="cuda").bfloat16())
    second = octet.Float8CurrentScalingQuantizer("e4m3")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = second(quantized.dequantize())
    for _ in range(10):
        x = torch.randn(4096, 4096, device="cuda").bfloat16() * 3
        for to, value in zip(
            quantized.buffers(), octet.MXFP8Quantizer("e4m3")(x).buffers(), strict=True
        ):
            to.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, data(made), data(second(quantized.dequantize()))))


LAYERS: dict[str, octet.recipe.Recipe] = {
    "mxfp8": octet.recipe.MXFP8BlockScaling(),
    "nvfp4": octet.recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
    "mxfp4": octet.recipe.MXFP4BlockScaling(disable_stochastic_rounding=True),
}


@pytest.mark.parametrize("rows", [8192, 2080])
@pytest.mark.parametrize("name", LAYERS)
def test_chain__a_layer_reads_early_only_what_is_there(name: str, rows: int) -> None:
    """Each of its kernels begins while the one before it ends. Each round has other data,
    written just before, and memory that the round before has used; the second time the same
    values lie there already."""
    layer = octet.Linear(2048, 2048, bias=False, params_dtype=torch.bfloat16, device="cuda")
    x = torch.empty(rows, 2048, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    dy = torch.empty(rows, 2048, dtype=torch.bfloat16, device="cuda")

    def step() -> list[torch.Tensor]:
        x.grad = layer.weight.grad = None
        with octet.autocast(recipe=LAYERS[name]):
            y = layer(x)
        y.backward(dy)
        made = (y, x.grad, layer.weight.grad)
        return [part.detach().clone() for part in made if part is not None]

    for round in range(12):
        with torch.no_grad():
            for tensor in (x, dy, layer.weight):
                tensor.normal_(std=0.5 + round)
        got = step()
        torch.cuda.synchronize()
        want = step()
        assert len(got) == 3
        assert all(map(torch.equal, got, want))
