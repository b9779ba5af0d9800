"""Every public name of FlashInfer exists, refused ones say so, and signatures of the others are FlashInfer's."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import girih.flashinfer as flashinfer
from girih.flashinfer._differences import DIFFERENCES
from girih.flashinfer._refused import Refused, RefusedModule, public_names, reason

SIGNATURES: dict[str, list[str]] = json.loads(Path(__file__).with_name("signatures.json").read_text())
ROOT = Path(__file__).resolve().parents[3]


def module_of(name: str) -> Any:
    return importlib.import_module(f"girih.flashinfer.{name}") if name else flashinfer


@pytest.mark.parametrize("module", sorted(public_names()))
def test_every_name_exists(module: str) -> None:
    owner = module_of(module)
    for name in public_names()[module]:
        value = getattr(owner, name)
        if isinstance(value, Refused):
            with pytest.raises(NotImplementedError, match="is not implemented by Girih: "):
                value()


def test_refused_names_have_an_alternative() -> None:
    names = [
        (m, n) for m, names in public_names().items() for n in names if isinstance(getattr(module_of(m), n), Refused)
    ]
    lost = [f"{m}.{n}" for m, n in names if reason(m, n) == "Girih has no counterpart"]
    assert not lost


def test_refused_names_can_be_handled_like_functions_and_classes() -> None:
    gemm = flashinfer.SegmentGEMMWrapper
    assert isinstance(gemm, Refused) and gemm and not isinstance(3, gemm)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="SegmentGEMMWrapper.run"):
        gemm.run(1, x=2)
    with pytest.raises(NotImplementedError, match="torch.matmul"):
        from girih.flashinfer.gemm import bmm_fp8  # type: ignore[import-not-found]

        bmm_fp8()
    with pytest.raises(AttributeError):
        flashinfer.gemm.no_such_function
    with pytest.raises(AttributeError):
        flashinfer.sampling.no_such_function
    assert isinstance(flashinfer.gemm, RefusedModule) and "bmm_fp8" in dir(flashinfer.gemm)


#: Where a signature of ours has more than FlashInfer's, and why.
WIDER = {
    "decode.BatchDecodeWithPagedKVCacheWrapper.plan": "FlashInfer takes its positional tail as *deprecated_positional_args",
}


def split(key: str) -> tuple[str, list[str]]:
    """ "quantization.packbits.packbits" as its module and the rest; a module may bear the name of a function in it."""
    modules = sorted((m for m in public_names() if m and key.startswith(m + ".")), key=len)
    return modules[-1], key.removeprefix(modules[-1] + ".").split(".")


def resolve(key: str) -> tuple[Any, Any]:
    """What holds the function or method of `key`, and itself as it stands there."""
    module, parts = split(key)
    owner: Any = None
    value: Any = module_of(module)
    for part in parts:
        if isinstance(value, Refused):
            return owner, value
        owner, value = value, getattr(value, part)
    return owner, value


def implemented() -> list[str]:
    """Recorded signatures whose function or method is Girih's."""
    return [key for key in SIGNATURES if not isinstance(resolve(key)[1], Refused)]


def described(owner: Any, value: Any, name: str) -> tuple[list[str], dict[str, Any]]:
    """Parameters in the form of the record, without defaults, and the defaults."""
    parameters = list(inspect.signature(value).parameters.values())
    if isinstance(owner, type) and not isinstance(inspect.getattr_static(owner, name), (staticmethod, classmethod)):
        parameters = parameters[1:]
    text: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            text.append(f"*{parameter.name}")
        elif parameter.kind is parameter.VAR_KEYWORD:
            text.append(f"**{parameter.name}")
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not any(t.startswith("*") for t in text):
                text.append("*")
            text.append(parameter.name)
    return text, {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


@pytest.mark.parametrize("key", [k for k in implemented() if k not in WIDER])
def test_signature(key: str) -> None:
    owner, value = resolve(key)
    text, defaults = described(owner, value, key.rpartition(".")[2])
    theirs = SIGNATURES[key]
    assert text == [t.split("=")[0] for t in theirs]
    function = inspect.unwrap(value)
    scope = {**vars(flashinfer.utils), "torch": torch, **getattr(function, "__globals__", {})}
    expected = {}
    for parameter in theirs:
        name, has_default, default = parameter.partition("=")
        if has_default:
            expected[name] = eval(default, scope)
    assert defaults == expected


def test_differences_are_of_names_that_exist() -> None:
    for key in DIFFERENCES:
        module, _, name = key.rpartition(".")
        assert not isinstance(getattr(module_of(module), name), Refused), key


def test_the_table_in_the_documentation_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "script/flashinfer-names", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_autotune_is_a_context() -> None:
    with flashinfer.autotune(True, tuning_buckets=(1, 2)):
        pass
    with pytest.raises(NotImplementedError, match="cache="):
        with flashinfer.autotune(cache="somewhere.json"):
            pass
