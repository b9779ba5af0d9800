"""Attention on a CUDA device as far as a machine without one shows it: in a process of its own over the tests' fake driver, whose memory is
the host's and whose kernels do what the test says: they are counted. What is launched, waited for, allocated and refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import girih

PROGRAM = """
import ctypes
import numpy as np
import girih

fake = ctypes.CDLL("libcuda.so.1")


class Launch(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("params", ctypes.c_void_p), ("num_blocks", ctypes.c_int)]


class Hooks(ctypes.Structure):
    _fields_ = [
        ("prepare", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Launch))),
        ("execute", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


launches = []


def prepare(launch):
    launches.append((launch[0].name.decode(), launch[0].num_blocks))
    return None


hooks = Hooks(Hooks._fields_[0][1](prepare), Hooks._fields_[1][1](lambda _: None))
fake.fake_cuda_set_hooks(ctypes.byref(hooks))


def count(name):
    function = getattr(fake, "fake_cuda_num_" + name)
    function.restype = ctypes.c_int64
    return function()


memory = ctypes.create_string_buffer(1 << 26)
top = -(-ctypes.addressof(memory) // 256) * 256


class OnGpu:
    def __init__(self, shape, typestr="<f2", stream=None):
        global top
        facts = {"data": (top, False), "typestr": typestr, "shape": shape, "strides": None, "version": 3}
        if stream is not None:
            facts["stream"] = stream
        self.__cuda_array_interface__ = facts
        top += -(-int(np.prod(shape)) * int(typestr[2:]) // 256) * 256


def refused(error, text, call):
    before = len(launches)
    try:
        call()
    except error as caught:
        assert text in str(caught), caught
        assert len(launches) == before
        return
    raise SystemExit(f"not refused: {text}")


spec = girih.AttentionSpec(
    num_qo_heads=8, num_kv_heads=2, head_dim_qk=64, q_dtype="f16", lse="natural",
    variant=girih.Variant(mask=girih.variants.causal(), sink=girih.variants.sinks()),
)
limits = girih.AttentionLimits(max_tokens=4, max_requests=4, max_kv_len=256, max_qo_len=1)
context = girih.Context("cuda", cache_dir="")
seen = []
girih.warmup(spec, context=context, progress=lambda *call: seen.append(call))
assert seen[0][:2] == (0, len(seen) - 1) and seen[-1][0] == len(seen) - 1 > 0
assert seen[-1][4] == "compiled" and seen[-1][3].startswith("sm_")

workspace = OnGpu((girih.schedule(spec, limits, context=context).workspace_bytes + 64,), "|u1")
planned = girih.Attention(spec, limits, context=context, workspace=workspace)
assert planned.context is context
k, v = OnGpu((16, 16, 2, 64)), OnGpu((16, 16, 2, 64))
store = girih.KvStore.paged(k, v)
ids = OnGpu((8,), "<i4")
q, out, lse, sinks = OnGpu((4, 8, 64)), OnGpu((4, 8, 64)), OnGpu((4, 8), "<f4"), OnGpu((8,), "<f4")
given = {"out": out, "lse": lse, "params": {"sinks": sinks}}
segment = girih.Segment(kv_indptr=[0, 3, 8], kv_len=[40, 70])

refused(ValueError, "plan", lambda: planned.run(q, store, kv_indices=ids, **given))
info = planned.plan([0, 1, 2], segment)
assert info.num_items > 0 and count("queued") > 0
waits, allocations = count("waits"), count("allocations")
for layer in range(3):
    result = planned.run(q, store, kv_indices=ids, **given)
    assert result[0] is out and result[1] is lse
planned.plan([0, 1], girih.Segment(kv_indptr=[0, 3], kv_len=[40]))
planned.run(q, girih.SegmentData(store, ids), **given)
assert (count("waits"), count("allocations")) == (waits, allocations)
assert len(launches) >= 4 and all(planned.schedule.key in name and blocks > 0 for name, blocks in launches), launches
launches.clear()

host = np.zeros((4, 8, 64), np.float16)
run = planned.run
refused(ValueError, "q: is on cpu; this attention is for cuda:0", lambda: run(host, store, kv_indices=ids, **given))
refused(ValueError, "kv_indices: is on cpu; must be on cuda:0", lambda: run(q, store, kv_indices=np.zeros(8, np.int32), **given))
refused(TypeError, "kv_indices: ", lambda: run(q, store, kv_indices=[0, 1], **given))
refused(ValueError, "out: must be given", lambda: run(q, store, kv_indices=ids, lse=lse, params=given["params"]))
refused(ValueError, "out.device=cpu", lambda: run(q, store, kv_indices=ids, **{**given, "out": host}))
refused(ValueError, "params['sinks']", lambda: run(q, store, kv_indices=ids, **{**given, "params": {"sinks": np.zeros(8, np.float32)}}))
refused(ValueError, "kv: the store is on cpu", lambda: run(q, girih.KvStore.paged(host[None], host[None]), **given))
refused(ValueError, "kv_len: is on cuda:0", lambda: planned.plan([0, 1], girih.Segment(kv_indptr=[0, 3], kv_len=OnGpu((1,), "<i4"))))


def run_without_workspace():
    other = girih.Attention(spec, limits, context=context)
    other.plan([0, 1], girih.Segment(kv_indptr=[0, 3], kv_len=[40]))
    other.run(q, store, kv_indices=ids, **given)


refused(ValueError, "workspace: must be given", run_without_workspace)
refused(ValueError, "workspace: is on cpu", lambda: girih.Attention(spec, limits, context=context, workspace=np.zeros(1 << 24, np.uint8)))
refused(ValueError, "workspace: has 64 bytes", lambda: girih.Attention(spec, limits, context=context, workspace=OnGpu((64,), "|u1")))

# Streams: given as an int, by an object, or known from the array.
fake.cuStreamCreate.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint]
stream = ctypes.c_void_p()
assert fake.cuStreamCreate(ctypes.byref(stream), 0) == 0


class Stream:
    cuda_stream = stream.value


planned.plan([0, 1], girih.Segment(kv_indptr=[0, 3], kv_len=[40]), stream=stream.value)
run(q, store, kv_indices=ids, stream=Stream, **given)
run(OnGpu((4, 8, 64), stream=stream.value), store, kv_indices=ids, **given)
assert len(launches) >= 2
launches.clear()
refused(TypeError, "stream: give a CUstream", lambda: run(q, store, kv_indices=ids, stream="x", **given))

# The cache beside attention.
new = OnGpu((4, 2, 64))
girih.append(store, new, new, append_indptr=[0, 1], kv_len=[40], kv_indices=[1, 2, 3], kv_indptr=[0, 3], context=context)
girih.append_planned(planned, store, new, new, kv_indices=ids)
girih.copy_pages(store, [(0, 9)], context=context)
vs = OnGpu((4, 8), "<f4"), OnGpu((4, 8), "<f4")
girih.merge_state(out, vs[0], q, vs[1], v_out=out, s_out=lse, context=context)
assert len(launches) >= 4, launches
refused(ValueError, "store", lambda: girih.append_planned(planned, girih.KvStore.paged(host[None], host[None]), new, new, kv_indices=ids))
refused(ValueError, "kv_indices: is on cuda:0; must be on cpu", lambda: girih.append(
    store, new, new, append_indptr=[0, 1], kv_len=[40], kv_indices=ids, kv_indptr=[0, 3], context=context))
refused(ValueError, "k_rope: is given", lambda: girih.append_planned(planned, store, new, new, k_rope=new, kv_indices=ids))
del planned, run
assert fake.cuCtxSynchronize() == 0
print("done")
"""


def test_host_side() -> None:
    # A driver of a sanitized build (asan, tsan) cannot be loaded here.
    drivers = sorted((Path(__file__).resolve().parents[2] / "build").glob("[!at]*/tests/fake_cuda/lib/libcuda.so.1"))
    if not drivers:
        pytest.skip("the tests' fake driver is not built: cmake --build --preset release --target girih_fake_cuda")
    if "missing" in girih.info()["nvrtc"]:
        pytest.skip("NVRTC is not installed")
    package = str(Path(girih.__file__).resolve().parents[1])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(drivers[0].parent), "PYTHONPATH": package}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "done\n", run.stdout + run.stderr
