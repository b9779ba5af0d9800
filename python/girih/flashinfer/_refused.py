"""Names of FlashInfer that Girih does not implement: they exist, may be imported and named, and say on use what to take instead.

`_names.json` (written by script/flashinfer-names) lists the public names of every module; what the modules of this package do not define is
made here on first access. A refused name is truthy and has attributes, since code names methods long before it calls them; calling raises.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import resources
from types import ModuleType
from typing import Any, Callable, NoReturn

from ._alternatives import alternative


class Refused:
    """A function, class or constant of FlashInfer without a counterpart in Girih. Calling it raises NotImplementedError."""

    def __init__(self, name: str, instead: str) -> None:
        self._name = name
        self._instead = instead
        self.__name__ = self.__qualname__ = name.rpartition(".")[2]
        self.__doc__ = f"Not implemented by Girih: {instead}."

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"flashinfer.{self._name} is not implemented by Girih: {self._instead}")

    def __getattr__(self, name: str) -> Refused:
        if name.startswith("__"):
            raise AttributeError(name)
        return Refused(f"{self._name}.{name}", self._instead)

    def __iter__(self) -> Any:
        self()

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __or__(self, other: Any) -> Any:
        """In an annotation: anything."""
        return Any

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return self()

    def __repr__(self) -> str:
        return f"<flashinfer.{self._name}: refused>"


@cache
def public_names() -> dict[str, dict[str, str]]:
    """Of each module ("" is the package itself) its public names and what they are, or "module.name" where they come from."""
    text = resources.files(__package__).joinpath("_names.json").read_text(encoding="utf-8")
    names: dict[str, dict[str, str]] = json.loads(text)["modules"]
    return names


def reason(module: str, name: str) -> str:
    """What to take instead of a refused name; one of the top level for the reason that its own module has."""
    if not module:
        if name in public_names():
            return alternative(name, "")
        origin, _, original = public_names()[""][name].rpartition(".")
        module, name = (origin, original) if origin else (module, name)
    return alternative(module, name)


def _lent(module: str, name: str) -> Any:
    """What `name` is where another module lends it to this one; None where that is refused too."""
    owner, dot, original = public_names()[module][name].partition(".")
    if not module or not dot or owner == module:
        return None
    value = getattr(sys.modules[f"{__package__}.{owner}"], original)
    return None if isinstance(value, Refused) else value


def refusals(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__`: refused names where FlashInfer has such a name, AttributeError otherwise."""

    def getattr_(name: str) -> Any:
        if name in public_names().get(module, {}):
            lent = _lent(module, name)
            if lent is not None:
                return lent
            qualified = f"{module}.{name}" if module else name
            return Refused(qualified, reason(module, name))
        raise AttributeError(f"module 'girih.flashinfer{'.' + module if module else ''}' has no attribute {name!r}")

    return getattr_


class RefusedModule(ModuleType):
    """A module of FlashInfer of which Girih has nothing; all of its public names are refused."""

    def __init__(self, package: str, module: str) -> None:
        super().__init__(f"{package}.{module}", "Names of FlashInfer that Girih does not implement.")
        self.__package__ = package
        self.__dict__["__path__"] = []  # modules inside it are looked for, and not found
        self._module = module
        self._getattr = refusals(module)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._getattr(name)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Some modules bear the name of a function in them, which FlashInfer's top level has in their place."""
        raise NotImplementedError(f"flashinfer.{self._module} is not implemented by Girih: {alternative(self._module, '')}")

    def __dir__(self) -> list[str]:
        return sorted(public_names()[self._module])


def complete(package: str) -> None:
    """Gives every module of FlashInfer that `package` has a `__getattr__` for the names it lacks, and makes the modules it has not."""
    for name in public_names():
        if not name:
            continue
        qualified = f"{package}.{name}"
        module = sys.modules.get(qualified)
        if module is None:
            module = sys.modules[qualified] = RefusedModule(package, name)
            parent, _, last = qualified.rpartition(".")
            setattr(sys.modules[parent], last, module)
        elif not hasattr(module, "__getattr__"):
            module.__getattr__ = refusals(name)  # type: ignore[method-assign]
