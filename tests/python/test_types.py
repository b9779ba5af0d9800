"""The package's types, under the strict mypy and under pyright, with a file that uses it. What is written for PyTorch is checked by both
where PyTorch's types are there to be read.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    torch = importlib.util.find_spec("torch") is not None
    exclude = [] if torch else ["--exclude", "girih/(flashinfer|integrations)/"]
    run("mypy", "--cache-dir", str(tmp_path), *exclude, "python/girih")
    run("mypy", "--cache-dir", str(tmp_path), "tests/python/typing_check.py")


def test_pyright() -> None:
    pytest.importorskip("basedpyright")
    files = ["python/girih", "tests/python/typing_check.py"]
    if importlib.util.find_spec("torch") is None:
        package = ROOT / "python/girih"
        without = ("flashinfer", "integrations")
        files = [str(p) for p in package.iterdir() if p.suffix == ".py" or (p.is_dir() and p.name not in without)] + files[1:]
    run("basedpyright", "--pythonpath", sys.executable, *files)
