"""The committed stubs of the extension are those that its build generates."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "python/girih/_girih"

pytest.importorskip("nanobind")


def test_stubs_are_as_generated(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "nanobind.stubgen",
        "-q",
        "-r",
        "-m",
        "girih._girih",
        "-p",
        str(ROOT / "python/stubs.pat"),
        "-O",
        str(tmp_path),
    ]
    subprocess.run(command, check=True, cwd=ROOT)
    generated = {str(path.relative_to(tmp_path / "_girih")): path.read_text() for path in tmp_path.rglob("*.pyi")}
    committed = {str(path.relative_to(STUBS)): path.read_text() for path in STUBS.rglob("*.pyi")}
    renew = "cmake --preset python && ninja -C build/python python_stubs"
    assert sorted(generated) == sorted(committed), renew
    for name, text in generated.items():
        assert text == committed[name], f"{name}: {renew}"
