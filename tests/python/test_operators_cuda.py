"""Operators on a CUDA device as far as a machine without one shows them: in a process of its own over the tests' fake driver, whose memory is
the host's and whose kernels do nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import girih

PROGRAM = """
import ctypes
import girih

memory = ctypes.create_string_buffer(1 << 16)
start = -(-ctypes.addressof(memory) // 256) * 256


class OnGpu:
    def __init__(self, shape, typestr, at):
        self.__cuda_array_interface__ = {"data": (start + at, False), "typestr": typestr, "shape": shape, "version": 3}


def refused(error, text, call):
    try:
        call()
    except error as caught:
        assert text in str(caught), caught
        return
    raise SystemExit(f"not refused: {text}")


x, tokens, out = OnGpu((2, 8), "<f4", 0), OnGpu((2,), "<i4", 1024), OnGpu((2, 8), "<f4", 4096)
host = __import__("numpy").zeros(2, "i4")
refused(ValueError, "tokens.device=cpu; the context is for cuda:0", lambda: girih.sample(x, tokens=host))
refused(ValueError, "tokens: must be given, since OnGpu arrays cannot be made here", lambda: girih.sample(x))
refused(ValueError, "out: must be given, since OnGpu arrays cannot be made here", lambda: girih.softmax(x))
refused(ValueError, "out: must be given, since OnGpu arrays cannot be made here", lambda: girih.rms_norm(x))
refused(ValueError, "x.device=cuda:0; the context is for cpu", lambda: girih.rms_norm(x, out=out, context=girih.default_context()))
refused(ValueError, "weight.device=cpu; the context is for cuda:0", lambda: girih.rms_norm(x, __import__("numpy").ones(8, "f4"), out=out))
refused(ValueError, "indptr: is on cuda:0", lambda: girih.segment_packbits(OnGpu((2,), "|u1", 0), tokens, out=OnGpu((2,), "|u1", 512)))
print("done")
"""


def test_refusals() -> None:
    # A driver of a sanitized build (asan, tsan) cannot be loaded here.
    drivers = sorted((Path(__file__).resolve().parents[2] / "build").glob("[!at]*/tests/fake_cuda/lib/libcuda.so.1"))
    if not drivers:
        pytest.skip("the tests' fake driver is not built: cmake --build --preset release --target girih_fake_cuda")
    package = str(Path(girih.__file__).resolve().parents[1])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(drivers[0].parent), "PYTHONPATH": package}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "done\n", run.stdout + run.stderr
