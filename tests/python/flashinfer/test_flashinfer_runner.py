"""script/flashinfer-tests over a small file of our own, written as FlashInfer's are: for a GPU, importing flashinfer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]

TESTS = """
import flashinfer
import pytest
import torch
from flashinfer.norm import rmsnorm
from flashinfer.utils import get_compute_capability

@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 989])
def test_norm(batch_size):
    x = torch.randn(batch_size, 64, device="cuda:0").to(0)
    w = torch.ones(64).cuda()
    torch.cuda.synchronize()
    torch.testing.assert_close(rmsnorm(x, w), torch.nn.functional.rms_norm(x, (64,), w, 1e-6))

def test_repeats():
    num_trails = 5000
    assert sum(1 for _ in range(num_trails)) < 100

def test_wrong():
    assert flashinfer.__name__ == "flashinfer"

def test_refused():
    flashinfer.gemm.bmm_fp8(1, 2)

def test_skipped():
    if get_compute_capability(torch.device("cuda")) < (99, 0):
        pytest.skip("old")

def test_large():
    torch.zeros(1 << 30, 8, device="cuda")
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="counts are those of a machine without a GPU")
def test_counts(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_small.py").write_text(TESTS)
    report = tmp_path / "report.json"
    command = [
        sys.executable,
        ROOT / "script/flashinfer-tests",
        folder,
        "test_small.py",
        "--max",
        "3",
        "--json",
        report,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (result,) = json.loads(report.read_text())["files"]
    counts = {name: result[name] for name in ("collected", "selected", "passed", "failed", "refused", "skipped")}
    assert counts == {"collected": 10, "selected": 8, "passed": 4, "failed": 1, "refused": 1, "skipped": 2}, done.stdout
    assert done.returncode == 1 and "| together | 10 | 8 | 4 | 1 | 1 | 2 | 0 |" in done.stdout
