"""As much of torchtitan 0.3's interface as a quantization converter meets, for the tests."""

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch

Row = tuple[str, Any, Any, Any]


class Configurable:
    """A class with a nested Config that builds it."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        _owner: ClassVar[type | None] = None

        def build(self) -> Any:  # noqa: ANN401
            return self._owner(config=replace(self))

        def traverse(self, kind: type, _prefix: str = "") -> Iterator[Row]:
            """Name, config, parent and place of every nested config of a kind."""
            if isinstance(self, kind):
                yield _prefix, self, None, None
                return
            for each in fields(self):
                value = getattr(self, each.name)
                name = f"{_prefix}.{each.name}" if _prefix else each.name
                items = enumerate(value) if isinstance(value, list) else [(None, value)]
                for index, item in items:
                    inner = name if index is None else f"{name}.{index}"
                    place = (self, each.name) if index is None else (value, index)
                    if hasattr(item, "traverse"):
                        for fqn, found, parent, attr in item.traverse(kind, inner):
                            yield fqn, found, *(place if parent is None else (parent, attr))

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**kwargs)
        config = cls.__dict__.get("Config")
        if config is not None:
            if "__slots__" not in config.__dict__ or not all(f.kw_only for f in fields(config)):
                raise TypeError(f"{cls.__name__}.Config is dataclass(kw_only, slots)")
            config._owner = cls


class Module(torch.nn.Module, Configurable):
    """A module that is built on meta, gets memory, and is then initialized."""

    _param_init: dict[str, Any] | None = None

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        param_init: dict[str, Any] | None = None
        sharding_config: Any = None

        def build(self) -> Any:  # noqa: ANN401
            made = Configurable.Config.build(self)
            if self.param_init is not None:
                made._param_init = self.param_init
            return made

    def init_states(self) -> None:
        for child in self.children():
            child.init_states()
        if self._param_init is None and hasattr(self, "reset_parameters"):
            self.reset_parameters()
            return
        for name, parameter in self.named_parameters(recurse=False):
            self._param_init[name](parameter)


class Linear(torch.nn.Linear, Module):
    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        in_features: int
        out_features: int
        bias: bool = False

    def __init__(self, config: Config) -> None:
        super().__init__(config.in_features, config.out_features, bias=config.bias)


class ScaledBiasRowwiseLinear(Linear):
    """A Linear with a forward of its own."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(input, self.weight, self.bias / 2)


class ModelConfigConverter(Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass


class QuantizationConverter(ModelConfigConverter):
    @dataclass(kw_only=True, slots=True)
    class Config(ModelConfigConverter.Config):
        model_compile_enabled: bool = False


PLACES = {
    "torchtitan": (),
    "torchtitan.components": (),
    "torchtitan.components.quantization": (QuantizationConverter,),
    "torchtitan.models": (),
    "torchtitan.models.common": (),
    "torchtitan.models.common.linear": (Linear, ScaledBiasRowwiseLinear),
    "torchtitan.protocols": (),
    "torchtitan.protocols.module": (Module,),
}


def modules() -> dict[str, types.ModuleType]:
    """The modules of torchtitan that a converter imports."""
    made = {}
    for name, members in PLACES.items():
        made[name] = types.ModuleType(name)
        vars(made[name]).update({member.__name__: member for member in members})
    return made


def is_installed() -> bool:
    """Whether torchtitan itself can be imported with all that it needs."""
    if "torchtitan" in sys.modules:
        return True
    try:
        import torchtitan.components.quantization  # noqa: F401
    except ImportError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchtitan"]:
            del sys.modules[name]
        return False
    return True
