"""Operators on a CUDA device as far as a machine without one shows them: in a process of its own over the tests' fake driver, whose memory is
the host's and whose kernels do nothing: what is launched and what is refused."""

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


x, tokens = OnGpu((2, 8), "<f4", 0), OnGpu((2,), "<i4", 1024)
probs, out = OnGpu((2, 3, 8), "<f4", 2048), OnGpu((2, 8), "<f4", 4096)
few, drafts, drawn = OnGpu((2, 2), "<i4", 1024), OnGpu((2, 2), "<i4", 1536), OnGpu((2, 3), "<i4", 8192)
values = OnGpu((2, 2), "<f4", 12288)
assert girih.sample(x, tokens=tokens).tokens is tokens
assert girih.sample(x, tokens=tokens, top_k=3, top_p=0.5, min_p=0.1, temperature=0.7, seed=1).tokens is tokens
assert girih.softmax(x, out=out) is out
assert girih.top_p_renorm_probs(x, 0.5, out=out) is out
assert girih.top_k_renorm_probs(x, 2, out=out) is out
assert girih.top_k_mask_logits(x, 2, out=out) is out
girih.top_k(x, 2, values=values, indices=few)
girih.chain_speculative_sample(probs, drafts, OnGpu((2, 2, 8), "<f4", 16384), tokens=drawn, accepted=False)
refused(ValueError, "tokens: must be given, since OnGpu arrays cannot be made here", lambda: girih.sample(x))
host = __import__("numpy").zeros(2, "i4")
refused(ValueError, "tokens.device=cpu; the context is for cuda:0", lambda: girih.sample(x, tokens=host))
refused(ValueError, "out: must be given, since OnGpu arrays cannot be made here", lambda: girih.softmax(x))
refused(ValueError, "out: must be given, since OnGpu arrays cannot be made here", lambda: girih.rms_norm(x))
refused(ValueError, "x.device=cuda:0; the context is for cpu", lambda: girih.rms_norm(x, out=out, context=girih.default_context()))
refused(ValueError, "weight.device=cpu; the context is for cuda:0", lambda: girih.rms_norm(x, __import__("numpy").ones(8, "f4"), out=out))
refused(ValueError, "indptr: is on cuda:0", lambda: girih.segment_packbits(OnGpu((2,), "|u1", 0), tokens, out=OnGpu((2,), "|u1", 512)))
print("done")
"""


def test_host_side() -> None:
    # A driver of a sanitized build (asan, tsan) cannot be loaded here.
    drivers = sorted((Path(__file__).resolve().parents[2] / "build").glob("[!at]*/tests/fake_cuda/lib/libcuda.so.1"))
    if not drivers:
        pytest.skip("the tests' fake driver is not built: cmake --build --preset release --target girih_fake_cuda")
    package = str(Path(girih.__file__).resolve().parents[1])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(drivers[0].parent), "PYTHONPATH": package}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "done\n", run.stdout + run.stderr
