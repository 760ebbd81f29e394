"""What runs here, plans for people, and layers that are made quantized."""

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, step, within
from octet import _C, _opaque, _signatures, _support
from torch.torch_version import TorchVersion

import torch

QUANTIZED = [name for name in RECIPES if name != "none"]


def test_support__says_how_and_never_no() -> None:
    found = octet.support()
    assert {found[n] for n in ("fp8", "fp8_block_scaling", "mxfp8", "nvfp4", "mxfp4")} <= {
        "native",
        "folded",
        "emulated",
    }
    assert ("folded" in found) == (found["mxfp8"] == "folded")
    for name in ("fp8", "mxfp8", "fp8_block_scaling", "nvfp4", "mxfp4"):
        check = getattr(octet, f"is_{name}_available")
        assert check() is True
        assert check(return_reason=True) == (True, "")


def test_support__prints_as_lines_for_bug_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTET_CHECK_RANKS", "2")
    found = octet.support("cpu")
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == list(found)
    assert found["octet"] == octet.__version__
    assert found["torch"] == torch.__version__
    assert "OCTET_CHECK_RANKS=2" in found["variables"]
    assert isinstance(found, dict)
    assert repr(found).startswith("{'fp8': ")


def test_support__hopper_folds_mxfp8_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_support, "_chosen", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(_support._C, "cuda_device", lambda index: f"cuda:{index}/90")
    found = octet.support()
    assert found["mxfp8"] == "folded"
    assert "2^-10" in found["folded"]
    assert "OCTET_MXFP8=exact" in found["folded"]
    monkeypatch.setenv("OCTET_MXFP8", "exact")
    found = octet.support()
    assert found["mxfp8"] == "emulated"
    assert "folded" not in found


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("mxfp8", "folded into blocks of 128"),
        ("mxfp8:format=hybrid", "folded into blocks of 128"),
        ("mxfp8+2d", "folded into blocks of 128"),
        ("mxfp8:product=exact", "emulated exactly in bf16"),
        ("custom:input=mxfp8:e4m3,weight=mxfp8:e4m3", "folded into blocks of 128"),
        ("custom:product=exact,input=mxfp8:e4m3,weight=mxfp8:e4m3", "emulated exactly in bf16"),
        ("nvfp4", "emulated exactly in bf16"),
    ],
)
def test_explain__says_what_hopper_folds(
    recipe: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def product(device: str) -> str:
        text = _C.explain("linear", f"in=bf16 recipe={recipe} device={device}", (64, 128, 96))
        (line,) = (line for line in text.splitlines() if " fprop " in line)
        return line.rsplit(", ", 1)[1]

    assert product("cuda:0/90") == said
    for device in ("cpu", "cuda:0/89", "cuda:0/100"):
        assert "folded" not in product(device)
    monkeypatch.setenv("OCTET_MXFP8", "exact")
    assert product("cuda:0/90") == "emulated exactly in bf16"
    monkeypatch.setenv("OCTET_MXFP8", "quick")
    if "folded" in said or "product" in recipe:
        with pytest.raises(ValueError, match="OCTET_MXFP8 is 'quick'; it is exact, or folded"):
            product("cuda:0/90")


def test_support__says_whether_torch_knows_the_quantizers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = octet.support()["opaque_quantizers"]
    old = TorchVersion(torch.__version__) < (2, 11)  # which has no members of opaque objects
    assert said.startswith("not registered: AttributeError") if old else said == "registered"
    monkeypatch.setattr(_opaque, "API", None)
    monkeypatch.setattr(_opaque, "_missing", "ImportError: gone")
    assert octet.support()["opaque_quantizers"] == "not registered: ImportError: gone"


def test_support__checks_are_constants_of_a_graph() -> None:
    call, counter = compiled(lambda x: x + 1 if octet.is_mxfp8_available() else x)
    assert call(torch.zeros(1)) == 1
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", RECIPES)
def test_explain__shows_both_plans(name: str) -> None:
    text = octet.explain(70, 44, 39, RECIPES[name])
    assert text.startswith("linear forward: m=39 k=70 n=44")
    assert "linear backward: m=39 k=70 n=44" in text


def test_explain__takes_a_custom_recipe() -> None:
    def factory(role: octet.recipe.QuantizerRole) -> octet.Quantizer | None:
        return octet.MXFP8Quantizer("e4m3") if role.tensor_type == "weight" else None

    text = octet.explain(64, 32, 16, octet.recipe.CustomRecipe(factory), device="cpu")
    assert "quantize weight -> weight.quantized mxfp8:e4m3" in text
    assert "quantize input" not in text


@pytest.mark.parametrize("recipe", ["mxfp8", octet.recipe.MXFP8BlockScaling])
def test_explain__refuses_what_is_no_recipe(recipe: object) -> None:
    with pytest.raises(
        TypeError, match=r"recipe is .*mxfp8|MXFP8BlockScaling; it is an object"
    ):
        octet.explain(64, 32, 16, recipe, device="cpu")
    with pytest.raises(TypeError, match="it is an object"):
        octet.measure(layer(), 16, recipe)


def test_support__knows_the_devices_that_layers_run_on() -> None:
    for ask in (octet.support, lambda device: octet.explain(64, 32, 16, device=device)):
        with pytest.raises(ValueError, match="device is meta; layers run on cpu and cuda"):
            ask("meta")
        with pytest.raises(ValueError, match="device is 'gpu'; layers run on cpu and cuda"):
            ask("gpu")
        if not torch.cuda.is_available():
            with pytest.raises(ValueError, match="torch sees no GPU; use 'cpu'"):
                ask("cuda")


def test_explain__says_its_two_forms() -> None:
    with pytest.raises(TypeError, match=r"explain\(model, x\), or the sizes of a layer"):
        octet.explain()
    assert octet.explain(in_features=64, out_features=32, rows=16, device="cpu")


def quantized(name: str, preserve: bool = False) -> octet.Linear:
    with octet.quantized_model_init(
        recipe=RECIPES[name], preserve_high_precision_init_val=preserve
    ):
        return layer()


@pytest.mark.parametrize("name", QUANTIZED)
def test_model_init__weights_are_the_quantized_ones(name: str) -> None:
    linear, usual = quantized(name, preserve=True), layer()
    assert isinstance(linear.weight, octet.QuantizedTensor)
    assert torch.equal(linear.weight.get_high_precision_init_val(), usual.weight.detach())
    linear.weight.clear_high_precision_init_val()
    assert linear.weight.get_high_precision_init_val() is None
    want = linear.weight.quantizer(usual.weight.detach()).dequantize()
    assert torch.equal(linear.weight.detach().dequantize(), want)


@pytest.mark.parametrize("name", [name for name in QUANTIZED if name != "delayed"])
def test_model_init__a_step_is_that_of_a_plain_layer(name: str) -> None:
    linear, usual = quantized(name), layer()
    x, grad = inputs()
    assert_same(
        step(usual, within(RECIPES[name], usual), x, grad),
        step(linear, within(RECIPES[name], linear), x, grad),
    )


@pytest.mark.parametrize("name", QUANTIZED)
def test_model_init__trains_saves_and_loads(name: str) -> None:
    linear, other, plain = quantized(name), quantized(name), layer()
    x, grad = inputs()
    optimizer = torch.optim.AdamW(linear.parameters(), lr=0.1)
    before = linear.weight.detach().dequantize()
    within(RECIPES[name], linear)(x).backward(grad)
    optimizer.step()
    assert isinstance(linear.weight, octet.QuantizedTensor)
    assert not torch.equal(before, linear.weight.detach().dequantize())
    for target in (other, plain):
        target.load_state_dict(linear.state_dict())
    assert torch.equal(other.weight.dequantize(), linear.weight.dequantize())
    assert torch.equal(plain.weight, linear.weight.dequantize())


def test_model_init__holds_the_bytes_that_its_device_reads() -> None:
    hopper = (("device", "cuda:0/90"),)
    stored = _signatures.stored_weight("current", torch.bfloat16, hopper)
    assert stored == "fp8-tensor:e4m3+row+col"
    assert _signatures.stored_weight("current", torch.bfloat16, ()) == "fp8-tensor:e4m3+row"


def test_model_init__takes_from_a_state_the_bytes_that_it_holds() -> None:
    """A weight of both directions, as on some GPUs, loaded into one of rows: no rounding."""
    rows = octet.Float8CurrentScalingQuantizer("e4m3", columnwise=False)
    taken = rows(torch.zeros(4, 8))
    for weight in torch.randn(50, 4, 8, generator=torch.Generator().manual_seed(1)):
        both = octet.Float8CurrentScalingQuantizer("e4m3")(weight)
        taken.copy_(both)
        both.update_usage(columnwise_usage=False)
        for mine, theirs in zip(taken.buffers(), both.buffers(), strict=True):
            assert torch.equal(mine, theirs)


def test_model_init__ends_where_it_ends() -> None:
    quantized("mxfp8")
    assert not isinstance(layer().weight, octet.QuantizedTensor)
    with octet.quantized_model_init(recipe=RECIPES["mxfp8"]), octet.quantized_model_init(False):
        assert not isinstance(layer().weight, octet.QuantizedTensor)
