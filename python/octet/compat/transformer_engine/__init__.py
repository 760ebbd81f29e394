"""Octet under TransformerEngine's names, for libraries that import it.

>>> import octet.compat.transformer_engine as compat
>>> with compat.install():
...     import transformer_engine.pytorch as te
...     te.Linear(64, 32, device="cpu")
Linear(64, 32, bias=True)

Call ``install()`` before the libraries that look for TransformerEngine are imported: some look
once and remember what they found.
"""

import importlib
import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Iterator
from importlib.metadata import DistributionFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from octet.compat.transformer_engine import _names

__all__ = ["install", "installed", "uninstall"]

_TOP = ("transformer_engine", "transformer_engine_torch")


class _StandIn(ModuleType):
    """A module of TransformerEngine's name."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise AttributeError(_names.missing(self.__name__, name), name=name, obj=self)


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata tells of the package."""

    _texts = {  # noqa: RUF012
        "METADATA": "Metadata-Version: 2.1\nName: transformer-engine\n"
        f"Version: {_names.VERSION}\nSummary: octet.compat.transformer_engine\n",
        "top_level.txt": "\n".join(_TOP),
    }

    def read_text(self, filename: str) -> str | None:
        """The metadata, and nothing else."""
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Path:  # noqa: ANN401
        """Where a file of it would be."""
        return Path(__file__).parent / path


class _Finder(DistributionFinder):
    """Finds, makes and fills the stand-ins: one object of sys.meta_path."""

    def __init__(self) -> None:
        self.modules = _names.modules()

    def find_spec(
        self,
        fullname: str,
        path: Any = None,  # noqa: ANN401
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that Octet stands in for."""
        if fullname not in self.modules:
            return None
        inside = any(name.startswith(f"{fullname}.") for name in self.modules)
        return importlib.machinery.ModuleSpec(
            fullname,
            self,  # type: ignore[arg-type]
            origin=__file__,
            is_package=inside,
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """An empty stand-in."""
        return _StandIn(spec.name, f"Octet in place of {spec.name}.")

    def exec_module(self, module: ModuleType) -> None:
        """Its names."""
        vars(module).update(self.modules[module.__name__])
        module.__file__ = __file__  # what a failing `from ... import` quotes

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008
    ) -> Iterator[importlib.metadata.Distribution]:
        """The package's metadata, for those who ask for it by name or for all there are."""
        asked = context.name
        if asked is None or asked.lower().replace("-", "_") == _TOP[0]:
            yield _Distribution()


class _Installed:
    """What ``install`` returns. Leaving it as a context takes the stand-ins away again, unless
    they were there before."""

    def __init__(self, first: bool) -> None:
        self._first = first

    def __enter__(self) -> "_Installed":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._first:
            uninstall()


def _finders() -> list[_Finder]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Finder)]


def installed() -> bool:
    """Whether Octet stands in for TransformerEngine."""
    return bool(_finders())


def _check_free() -> None:
    """Nothing of the names is imported, or blocked by a None."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _TOP:
            where = getattr(module, "__file__", None) or "an unknown place"
            raise RuntimeError(
                f"octet.compat.transformer_engine.install: {name} is imported already, from "
                f"{where}; call install() before anything imports it, or use octet by its name"
            )


def install() -> _Installed:
    """Puts Octet where ``transformer_engine`` is imported from; also a context manager.

    ``importlib.util.find_spec`` and ``importlib.metadata`` then find it, before one that is
    installed. A second call changes nothing. Where TransformerEngine is imported already, it is
    a RuntimeError. A name that TransformerEngine has and Octet has not is an AttributeError,
    which says what to use.
    """
    if installed():
        return _Installed(False)
    _check_free()
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        for name in finder.modules:
            importlib.import_module(name)
    except BaseException:
        uninstall()
        raise
    return _Installed(True)


def uninstall() -> None:
    """Takes the stand-ins away; what else is installed under their names is found again.

    Layers that were made by their names are Octet's and go on working. A library that has
    looked for TransformerEngine may remember that it found it.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name, module in list(sys.modules.items()):
        if isinstance(module, _StandIn):
            del sys.modules[name]
    importlib.invalidate_caches()
