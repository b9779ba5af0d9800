"""How arrays cross: every library and protocol, strides, byte orders, read-only and empty ones, gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import close, merge

import girih
from girih._girih import array_info

LENGTH, HEADS, DIM = 9, 2, 16


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(17)


class Capsule:
    """An array that has nothing but DLPack, of the old form or the versioned one."""

    def __init__(self, array: np.ndarray, versioned: bool = True) -> None:
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versioned:
            if options:
                raise TypeError("__dlpack__() got an unexpected keyword argument")
            return self.array.__dlpack__()
        return self.array.__dlpack__(**options)


class OnGpu:
    """What an array of a CUDA library says of itself."""

    def __init__(self, shape: tuple[int, ...], typestr: str, strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {
            "data": (1 << 20, False),
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
            "version": 3,
        }


def attend(q: Any, k: Any, v: Any, **more: Any) -> Any:
    return girih.attention(q, k, v, **more)


@pytest.fixture
def qkv(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q = rng.standard_normal((3, HEADS, DIM), np.float32)
    return q, *(rng.standard_normal((LENGTH, HEADS, DIM), np.float32) for _ in range(2))


@pytest.mark.parametrize("versioned", [True, False])
def test_capsules(qkv: tuple[np.ndarray, ...], versioned: bool) -> None:
    expected = attend(*qkv)
    out = np.zeros_like(expected)
    found = attend(*(Capsule(x, versioned) for x in qkv), out=Capsule(out, versioned))
    assert isinstance(found, Capsule) and (out == expected).all()
    with pytest.raises(ValueError, match="out: must be given, since Capsule arrays cannot be made here"):
        attend(*(Capsule(x, versioned) for x in qkv))


def test_an_object_with_a_bad_capsule(qkv: tuple[np.ndarray, ...]) -> None:
    class Wrong(Capsule):
        def __dlpack__(self, **options: Any) -> Any:
            return 3

    with pytest.raises(ValueError, match="q: .*does not return a DLPack capsule"):
        attend(Wrong(qkv[0]), *qkv[1:])

    class Failing(Capsule):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("not today")

    with pytest.raises(BufferError, match="not today"):
        attend(Failing(qkv[0]), *qkv[1:])


def test_libraries_mix(qkv: tuple[np.ndarray, ...]) -> None:
    torch = pytest.importorskip("torch")
    expected = attend(*qkv)
    found = attend(torch.from_numpy(qkv[0]), qkv[1], Capsule(qkv[2]))
    assert isinstance(found, torch.Tensor) and (found.numpy() == expected).all()
    assert isinstance(attend(qkv[0], torch.from_numpy(qkv[1]), qkv[2]), np.ndarray)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_ml_dtypes_and_torch(name: str) -> None:
    ml_dtypes, torch = pytest.importorskip("ml_dtypes"), pytest.importorskip("torch")
    short = {"float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[name]
    of_numpy = np.zeros((2, 3), getattr(ml_dtypes, name, np.float16))
    assert array_info(of_numpy) == ((2, 3), short, "cpu")
    assert array_info(torch.zeros((2, 3), dtype=getattr(torch, name))) == ((2, 3), short, "cpu")
    assert girih.AttentionSpec(num_qo_heads=1, num_kv_heads=1, head_dim_qk=8, k_dtype=of_numpy.dtype).k_dtype == short
    assert (
        girih.AttentionSpec(num_qo_heads=1, num_kv_heads=1, head_dim_qk=8, k_dtype=getattr(torch, name)).k_dtype
        == short
    )
    assert girih.AttentionSpec(num_qo_heads=1, num_kv_heads=1, head_dim_qk=8, k_dtype=name).k_dtype == short


def test_strides_of_every_kind(qkv: tuple[np.ndarray, ...], rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = qkv
    expected = attend(q, k, v)
    wide = rng.standard_normal((LENGTH, 2, HEADS, 2 * DIM), np.float32)
    wide[:, 1, :, :DIM] = k
    backwards = np.ascontiguousarray(v[::-1])[::-1]
    for make in (lambda x: x, torch.from_numpy):
        parts = make(wide)[:, 1, :, :DIM]
        values = backwards if isinstance(parts, np.ndarray) else torch.from_numpy(v.copy())
        heads_first = make(np.ascontiguousarray(q.transpose(1, 0, 2))).swapaxes(0, 1)
        assert np.array_equal(np.asarray(attend(heads_first, parts, values)), expected)
    # A V whose tokens are adjacent, dims apart; one key for all by a stride of 0.
    turned = np.ascontiguousarray(v.transpose(1, 2, 0)).transpose(2, 0, 1)
    close(attend(q, k, turned), expected.astype(np.float64))
    same = np.broadcast_to(v[:1], v.shape)
    close(attend(q, k, same), np.broadcast_to(v[:1], (3, HEADS, DIM)).astype(np.float64))
    with pytest.raises(ValueError, match=r"q.strides\[2\]=2; the last dimension must be dense"):
        attend(np.repeat(q, 2, axis=2)[:, :, ::2], k, v)


def test_packed_fields_of_a_struct_are_refused() -> None:
    packed = np.zeros(4, np.dtype([("byte", "i1"), ("value", "f4")]))["value"]
    with pytest.raises(ValueError, match="q: has a stride of 5 bytes"):
        array_info(packed, "q")


@pytest.mark.parametrize(
    "kind", [np.float64, np.complex64, np.uint16, np.dtype("U3"), np.dtype("datetime64[s]"), object]
)
def test_other_types_are_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="q: has dtype"):
        array_info(np.zeros(3, kind), "q")


def test_big_endian_arrays_are_refused(qkv: tuple[np.ndarray, ...]) -> None:
    with pytest.raises(ValueError, match="k: has big-endian elements"):
        attend(qkv[0], qkv[1].astype(">f4"), qkv[2])
    with pytest.raises(ValueError, match="kv_len: has big-endian elements"):
        girih.Segment(kv_len=np.array([3], ">i4"))


def test_read_only_arrays_are_inputs_only(qkv: tuple[np.ndarray, ...]) -> None:
    expected = attend(*qkv)
    for x in qkv:
        x.flags.writeable = False
    assert (attend(*qkv) == expected).all()
    out = np.zeros_like(expected)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: is a read-only array"):
        attend(*qkv, out=out)
    # NumPy's capsules say so too, where they can.
    with pytest.raises((ValueError, BufferError)):
        attend(*qkv, out=Capsule(out))
    assert (out == 0).all()


@pytest.mark.parametrize("lib", ["numpy", "torch"])
def test_empty_arrays(lib: str) -> None:
    make: Any = np.zeros if lib == "numpy" else pytest.importorskip("torch").zeros
    kind: Any = np.float32 if lib == "numpy" else pytest.importorskip("torch").float32
    none, some = make((0, HEADS, DIM), dtype=kind), make((4, HEADS, DIM), dtype=kind)
    assert tuple(attend(none, some, some).shape) == (0, HEADS, DIM)
    o, lse = attend(some, none, none, return_lse=True)
    assert (np.asarray(o) == 0).all() and (np.asarray(lse) == -np.inf).all()
    assert tuple(attend(none, none, none).shape) == (0, HEADS, DIM)
    planned = girih.Attention(
        girih.AttentionSpec(num_qo_heads=HEADS, num_kv_heads=HEADS, head_dim_qk=DIM, q_dtype="f32"),
        girih.AttentionLimits(max_tokens=4, max_requests=2, max_kv_len=8),
    )
    planned.plan([0], girih.Segment(kv_indptr=[0], kv_len=[]))
    store = girih.KvStore.paged(*(make((0, 16, HEADS, DIM), dtype=kind) for _ in range(2)))
    assert tuple(planned.run(none, store, kv_indices=[]).shape) == (0, HEADS, DIM)


def test_a_gradient_is_not_lost_silently(qkv: tuple[np.ndarray, ...]) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in qkv)
    expected = attend(q, k, v)
    k.requires_grad_()
    with pytest.raises(ValueError, match="k: requires a gradient"):
        attend(q, k, v)
    with torch.no_grad():
        assert torch.equal(attend(q, k, v), expected)
    with torch.inference_mode():
        found = attend(q.clone(), torch.nn.Parameter(k), v)
    assert torch.equal(found, expected)


def test_tensors_without_memory_are_refused(qkv: tuple[np.ndarray, ...]) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises((ValueError, TypeError, RuntimeError, BufferError), match="q: "):
        array_info(torch.zeros(3, device="meta"), "q")
    with pytest.raises((ValueError, TypeError, RuntimeError, BufferError), match="q: "):
        array_info(torch.eye(3).to_sparse(), "q")


@pytest.mark.parametrize("thing", [3, 2.5, "text", [[1.0]], object()])
def test_what_is_no_array(thing: Any) -> None:
    with pytest.raises(TypeError, match="q: .* is no array"):
        array_info(thing, "q")


def test_more_dimensions_than_there_are() -> None:
    with pytest.raises(ValueError, match="q: has 7 dimensions; at most 6"):
        array_info(np.zeros((1,) * 7, np.float32), "q")


def test_gpu_arrays_where_host_memory_is_needed() -> None:
    gpu = OnGpu((3,), "<i4")
    assert array_info(gpu) == ((3,), "i32", "cuda:0")
    for call, name in (
        (lambda: girih.Segment(kv_len=gpu), "kv_len"),
        (lambda: girih.append_positions(gpu, [1]), "append_indptr"),
        (lambda: girih.kv_len_from_last_page([0, 1], gpu, 16), "last_page_len"),
        (lambda: girih.block_sparse(4, 4, 2, 2, [0, 1, 2], gpu), "indices"),
    ):
        with pytest.raises(ValueError, match=rf"{name}: is on cuda:0; .*\.cpu\(\)"):
            call()


def test_devices_do_not_mix(qkv: tuple[np.ndarray, ...]) -> None:
    q, k, v = qkv
    gpu = OnGpu((LENGTH, HEADS, DIM), "<f4")
    with pytest.raises(ValueError, match="v: is on cuda:0; the first array of the store is on cpu"):
        girih.KvStore.ragged(k, gpu)
    store = girih.KvStore.ragged(gpu, gpu)
    assert store.device == "cuda:0"
    planned = girih.Attention(
        girih.AttentionSpec(num_qo_heads=HEADS, num_kv_heads=HEADS, head_dim_qk=DIM, q_dtype="f32"),
        girih.AttentionLimits(max_tokens=4, max_requests=2, max_kv_len=LENGTH),
    )
    planned.plan([0, 3], girih.Segment(kv_indptr=[0, LENGTH], page_size=0))
    with pytest.raises(ValueError, match="kv: the store is on cuda:0; the attention is for cpu"):
        planned.run(q, store)
    with pytest.raises(ValueError, match="q: is on cuda:0; this attention is for cpu"):
        planned.run(OnGpu((3, HEADS, DIM), "<f4"), girih.KvStore.ragged(k, v))
    with pytest.raises(ValueError, match="kv_indices: is on cuda:0; must be on cpu"):
        girih.SegmentData(girih.KvStore.paged(k[None], v[None]), OnGpu((1,), "<i4"))
    with pytest.raises(ValueError, match="page_pos: is on cpu; must be on cuda:0"):
        girih.SegmentData(girih.KvStore.paged(OnGpu((1, *k.shape), "<f4")), OnGpu((1,), "<i4"), np.zeros(1, np.int64))


def test_gpu_strides_and_streams() -> None:
    gpu = OnGpu((3, 4), "<f2", (16, 2))
    assert array_info(gpu) == ((3, 4), "f16", "cuda:0")
    with pytest.raises(ValueError, match="x: has a stride of 3 bytes"):
        array_info(OnGpu((3, 4), "<f2", (16, 3)), "x")


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"layout": "DHN"}, ValueError, "layout"),
        ({"k_dtype": "nvfp4"}, ValueError, "k_dtype: is nvfp4 but k holds f32"),
        ({"k_scale": 1.0}, ValueError, "k_scale: is given but f32 data has no scales"),
        ({"k_global_scale": 2.0}, ValueError, "global scale is 2"),
        ({"v": np.zeros((2, 4, HEADS + 1, DIM), np.float32)}, ValueError, "v: has shape"),
        ({"v": np.zeros((4, HEADS), np.float32)}, ValueError, "v: has 2 dimensions"),
        ({"k_rope": np.zeros((2, 3, HEADS, 8), np.float32)}, ValueError, "k_rope: has shape"),
        ({"k_rope_scale": 1.0}, ValueError, "k_rope_scale: is given without k_rope"),
    ],
)
def test_bad_stores(given: dict[str, Any], error: type[Exception], text: str) -> None:
    k = np.zeros((2, 4, HEADS, DIM), np.float32)
    v = given.pop("v", k) if "v" in given else k
    with pytest.raises(error, match=text):
        girih.KvStore.paged(k, v, **given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "k: is uint8, which may hold several types"),
        ({"k_dtype": "nvfp4"}, "k_scale: must be given"),
        ({"k_dtype": "e4m3", "k_scale": np.ones(3, np.float32)}, "k_scale: has shape"),
        ({"k_dtype": "e4m3", "k_scale": np.ones(1, np.float16)}, "k_scale: is f16; must be float32"),
        ({"k_dtype": "nvfp4", "k_scale": np.ones((2, 4, HEADS, 2), np.float32)}, "k_scale: is f32; the block scales"),
        ({"k_dtype": "nvfp4", "k_scale": np.ones((2, 4, HEADS, 3), np.uint8)}, "k_scale: has shape"),
    ],
)
def test_bad_quantised_stores(given: dict[str, Any], text: str) -> None:
    k = np.zeros((2, 4, HEADS, DIM), np.uint8)
    with pytest.raises(ValueError, match=text):
        girih.KvStore.paged(k, **given)


def test_masks_of_bool_are_bytes() -> None:
    torch = pytest.importorskip("torch")
    for flags in (np.ones((2, 3), bool), torch.ones((2, 3), dtype=torch.bool)):
        assert array_info(flags) == ((2, 3), "u8", "cpu")
        assert girih.variable_block_sparse([4, 4], [2, 2, 2], flags).kv_indices.tolist() == [0, 1, 2, 0, 1, 2]


def test_scalars_from_numpy_and_torch(qkv: tuple[np.ndarray, ...]) -> None:
    torch = pytest.importorskip("torch")
    variant = girih.Variant(logits=girih.score() * girih.scalar("gain"))
    expected = attend(*qkv, variant=variant, params={"gain": 2.0})
    for gain in (2, np.float32(2), np.int64(2), np.array(2.0), torch.tensor(2.0)):
        assert (attend(*qkv, variant=variant, params={"gain": gain}) == expected).all()


def test_merging_takes_any_library(rng: np.random.Generator) -> None:
    v, s = rng.standard_normal((2, 3, HEADS, DIM), np.float32), rng.standard_normal((2, 3, HEADS), np.float32)
    out_v, out_s = np.empty((3, HEADS, DIM), np.float32), np.empty((3, HEADS), np.float32)
    girih.merge_state(
        Capsule(v[0]), Capsule(s[0]), Capsule(v[1]), Capsule(s[1]), v_out=Capsule(out_v), s_out=Capsule(out_s)
    )
    close(out_v, merge(v, s)[0])
    close(out_s, merge(v, s)[1])
