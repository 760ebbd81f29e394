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
