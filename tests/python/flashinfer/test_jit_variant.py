"""jit_args of girih.flashinfer: variant declarations in C++ against float64, what is refused, and the text that a GPU gets."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import girih  # noqa: E402
import girih.flashinfer.decode as decode  # noqa: E402
import girih.flashinfer.prefill as prefill  # noqa: E402
from attention_reference import attend, check, paged_batch, queries, workspace  # noqa: E402
from girih.flashinfer import _jit_variant  # noqa: E402
from girih.flashinfer._problem import NO_LSE, Problem  # noqa: E402
from girih.flashinfer.jit.attention import (  # noqa: E402
    gen_customize_pod_module,
    gen_customize_single_decode_module,
    gen_customize_single_prefill_module,
    variants,
)

HALF = torch.float16


def struct(body: str, constructor: str = "", fields: str = "", softmax: str = "true") -> str:
    return f"""
    struct Mine : AttentionVariantBase {{
      static constexpr bool use_softmax = {softmax};  // weights
      uint32_t qo_len, kv_len, window_left; float sm_scale_log2; {fields}
      template <typename Params>
      __device__ __host__ Mine(const Params& params, uint32_t batch_idx, uint8_t* smem_ptr) {{
        qo_len = params.get_qo_len(batch_idx);
        kv_len = params.get_kv_len(batch_idx);
        sm_scale_log2 = params.sm_scale * math::log2e;
        window_left = (params.window_left >= 0) ? params.window_left : kv_len;
        {constructor}
      }}
      {body}
    }};"""


def jit_args(declaration: str, tensors: Any = (), scalars: Any = (("sm_scale", "double"),)) -> list[Any]:
    names, types = [n for n, _ in tensors], [t for _, t in tensors]
    return [
        "mine", HALF, HALF, HALF, torch.int32, 64, 64, names, types, [n for n, _ in scalars], [t for _, t in scalars], "Mine", declaration
    ]  # fmt: skip


LOGITS = "REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {%s})"
MASK = "REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {%s})"


def run_prefill(
    declaration: str, *args: Any, tensors: Any = (), scalars: Any = (("sm_scale", "double"),), **plan: Any
) -> Any:
    batch = paged_batch([5, 9], [20, 35])
    wrapper = prefill.BatchPrefillWithPagedKVCacheWrapper(workspace(), jit_args=jit_args(declaration, tensors, scalars))
    wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, **plan)
    q = queries(batch, 4)
    return batch, q, wrapper.run(q, batch.cache, *args)


def test_scale_alone() -> None:
    batch, q, out = run_prefill(struct(""), 0.2, causal=True)
    for request in range(2):
        rows = batch.rows(request)
        check(out[rows], attend(q[rows], *batch.keys(request), causal=True, sm_scale=0.2)[0])


def test_logits_with_a_tensor_and_scalars() -> None:
    body = (
        LOGITS
        % """
      if (kv_head_idx == 0) {  /* the other head is left alone */
        logits = logits + params.slopes[qo_head_idx] * float(int(kv_idx) - int(qo_idx)) / params.sm_scale;
      }
      const float capped = params.cap * math::tanh(logits * params.sm_scale / params.cap) / params.sm_scale;
      return params.cap > 0.f ? capped : logits;
    """
    )
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4])
    given = (("slopes", "float"),)
    batch, q, out = run_prefill(
        struct(body), slopes, 0.2, 5.0, tensors=given, scalars=(("sm_scale", "double"), ("cap", "float")), causal=True
    )
    for request in range(2):
        rows = batch.rows(request)
        own = torch.where(torch.arange(4) < 2, slopes, torch.zeros(4))
        k, v = batch.keys(request)
        # Distances count from the row's index here; the difference is one per row and head, which the softmax takes out, but not the cap.
        rows_n = rows.stop - rows.start
        shift = k.shape[0] - rows_n
        score = torch.einsum("qhd,khd->hqk", q[rows].double(), k.double().repeat_interleave(2, 1)) * 0.2
        distance = torch.arange(k.shape[0])[None] - torch.arange(rows_n)[:, None]
        score = 5.0 * torch.tanh((score + own.double()[:, None, None] * distance) / 5.0)
        visible = torch.arange(k.shape[0])[None] <= torch.arange(rows_n)[:, None] + shift
        weight = torch.softmax(score.masked_fill(~visible, -math.inf), -1)
        check(out[rows], torch.einsum("hqk,khd->qhd", weight, v.double().repeat_interleave(2, 1)))


@pytest.mark.parametrize("window_left", [-1, 4])
def test_masks(window_left: int) -> None:
    body = MASK % "return (kv_idx + qo_len + window_left >= kv_len + qo_idx) && !(kv_idx % 3 == 1);"
    batch, q, out = run_prefill(struct(body), 0.125, window_left=window_left)
    for request in range(2):
        rows = batch.rows(request)
        k, v = batch.keys(request)
        mask = (torch.arange(k.shape[0]) % 3 != 1).expand(rows.stop - rows.start, -1)
        check(out[rows], attend(q[rows], k, v, mask=mask, window_left=window_left)[0])


def test_packed_bits_of_a_single_decode() -> None:
    body = MASK % "const uint32_t offset = kv_idx; return ((bits_ptr[offset / 8] >> (offset % 8)) & 1);"
    declaration = struct(body, "bits_ptr = params.bits;", "uint8_t* bits_ptr;")
    module = gen_customize_single_decode_module(
        "uri", HALF, HALF, HALF, 64, 64, ["bits"], ["uint8_t"], ["sm_scale"], ["double"], "Mine", declaration
    ).build_and_load()
    torch.manual_seed(0)
    q = torch.randn(4, 64).half()
    k, v = torch.randn(2, 53, 2, 64).half()
    mask = torch.rand(53) > 0.5
    import numpy as np

    bits = torch.as_tensor(np.packbits(mask.cpu().numpy(), bitorder="little"))
    out, lse = decode.single_decode_with_kv_cache_with_jit_module(module, q, k, v, bits, 0.3, return_lse=True)
    expected = attend(q[None], k, v, mask=mask[None], sm_scale=0.3)
    check((out, lse), (expected[0][0], expected[1][0]))


def test_the_mask_of_plan_may_be_read_by_the_variant() -> None:
    body = (
        MASK
        % "const uint32_t at = qo_idx * kv_len + kv_idx; return !((bits_ptr[at / 8] >> (at % 8)) & 1) || kv_idx == 0;"
    )
    declaration = struct(
        body, "bits_ptr = params.maybe_custom_mask + params.maybe_mask_indptr[batch_idx];", "uint8_t* bits_ptr;"
    )
    masks = [torch.rand(5, 20) > 0.5, torch.rand(9, 35) > 0.5]
    given = (("maybe_custom_mask", "uint8_t"), ("maybe_mask_indptr", "int32_t"))
    flat = torch.cat([m.reshape(-1) for m in masks])
    batch, q, out = run_prefill(declaration, 0.125, tensors=given, custom_mask=flat)
    for request in range(2):
        rows = batch.rows(request)
        mask = masks[request] & (torch.arange(batch.kv_lens[request]) == 0)  # plan() applies the mask too
        check(out[rows], attend(q[rows], *batch.keys(request), mask=mask)[0])


SIGMOID = LOGITS % "return math::ptx_rcp(1.f + math::ptx_exp2(-float(logits * scale_log2 + bias_log2)));"


@pytest.mark.parametrize("protocol", ["fa2", "fa3"])
def test_sigmoid_attention(protocol: str) -> None:
    if protocol == "fa2":
        output = (
            "REGISTER_OUTPUT_TRANSFORM(params, output, batch_idx, qo_idx, qo_head_idx, m, d, scale, { return output; })"
        )
        setup = "scale_log2 = params.s * math::log2e; bias_log2 = params.bias * math::log2e;"
        declaration = struct(SIGMOID + ";" + output, setup, "float scale_log2, bias_log2;", "false")
        declaration = declaration.replace("sm_scale_log2 = params.sm_scale * math::log2e;", "")
    else:
        declaration = f"""struct Mine : AttentionVariantBase {{
          float scale_log2, bias_log2;
          template <typename MainloopParams, typename BlockCoord>
          __device__ __host__ Mine(const MainloopParams& params, const BlockCoord& block_coord) {{
            scale_log2 = params.additional_params.s * math::log2e;
            bias_log2 = params.additional_params.bias * math::log2e;
          }}
          template <int NUM_ROWS_PER_THREAD>
          __device__ auto GetAttentionUpdater() {{ return DefaultUpdater<NUM_ROWS_PER_THREAD>(); }}
          {SIGMOID};
        }};"""
    module = gen_customize_single_prefill_module(
        protocol, "uri", HALF, HALF, HALF, 64, 64, [], [], ["s", "bias"], ["double", "double"], "Mine", declaration
    ).build_and_load()
    torch.manual_seed(0)
    q = torch.randn(6, 4, 64).half()
    k, v = torch.randn(2, 33, 2, 64).half()
    out = prefill.single_prefill_with_kv_cache_with_jit_module(module, q, k, v, 0.1, 0.25)
    k, v = k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
    weight = torch.sigmoid(torch.einsum("qhd,khd->hqk", q.double(), k) * 0.1 + 0.25)
    check(out, torch.einsum("hqk,khd->qhd", weight, v), 1e-2)
    with pytest.raises(ValueError, match="return_lse"):
        prefill.single_prefill_with_kv_cache_with_jit_module(module, q, k.half(), v.half(), 0.1, 0.25, return_lse=True)


@pytest.mark.parametrize("window_left", [-1, 6])
def test_declaration_of_sinks(window_left: int) -> None:
    batch = paged_batch([5, 9], [20, 35])
    arguments = jit_args(variants.attention_sink_decl["fa3"], (("sink", "float"),))
    arguments[11] = "AttentionSink"
    wrapper = prefill.BatchPrefillWithPagedKVCacheWrapper(workspace(), jit_args=arguments)
    wrapper.plan(
        batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, causal=True, window_left=window_left
    )
    q = queries(batch, 4)
    sinks = torch.tensor([0.0, 2.0, -1.0, 0.5])
    out, lse = wrapper.run(q, batch.cache, sinks, 0.2, return_lse=True)
    for request in range(2):
        rows = batch.rows(request)
        expected = attend(
            q[rows], *batch.keys(request), causal=True, sinks=sinks, sm_scale=0.2, window_left=window_left
        )
        check((out[rows], lse[rows]), expected)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (LOGITS % "params.dump[kv_idx] = logits; return logits;", "a write to memory"),
        (LOGITS % "for (int i = 0; i < 4; ++i) logits += 1.f; return logits;", "'for'"),
        (LOGITS % "return __shfl_sync(0xffffffff, logits, 0);", "__shfl_sync"),
        (MASK % "return (kv_idx & 7) == 0;", "'&' of integers"),
        (
            "REGISTER_OUTPUT_TRANSFORM(params, output, b, q, h, m, d, scale, { return output * 2.f / d; })",
            "REGISTER_OUTPUT_TRANSFORM",
        ),
        ("REGISTER_M_D_UPDATE(params, kv_tile_idx, qo_head_idx, m, d, scale, { d = d + 1.f; })", "REGISTER_M_D_UPDATE"),
        ("REGISTER_QUERY_TRANSFORM(params, q, { return q; })", "REGISTER_QUERY_TRANSFORM"),
        (LOGITS % "return logits + params.unknown;", "params.unknown"),
    ],
)
def test_what_cannot_be_mapped_is_named(body: str, what: str) -> None:
    # On a GPU what names nothing that is declared is the compiler's to tell.
    with pytest.raises((NotImplementedError, ValueError) if "unknown" in what else NotImplementedError) as error:
        run_prefill(struct(body), torch.zeros(64), 0.2, tensors=(("dump", "float"),))
    assert what in str(error.value) or "cuda" in str(error.value).lower()


def test_the_mask_is_the_variants_where_it_says_so() -> None:
    batch = paged_batch([5, 9], [20, 35])
    text = struct(MASK % "return kv_idx % 2 == 0;")
    wrapper = prefill.BatchPrefillWithPagedKVCacheWrapper(workspace(), jit_args=jit_args(text), variant_owns_mask=True)
    wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, causal=True)
    q = queries(batch, 4)
    out = wrapper.run(q, batch.cache, 0.2)
    for request in range(2):
        rows, (k, v) = batch.rows(request), batch.keys(request)
        check(out[rows], attend(q[rows], k[::2], v[::2], sm_scale=0.2)[0])
    one = torch.tensor([1, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match="variant_owns_mask"):
        wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, prefix_len_ptr=one)


def test_calls_are_of_the_declared_types() -> None:
    batch = paged_batch([5, 9], [20, 35])
    wrapper = prefill.BatchPrefillWithPagedKVCacheWrapper(workspace(), jit_args=jit_args(struct("")))
    tables = (batch.qo_indptr, batch.indptr, batch.indices, batch.last)
    with pytest.raises(ValueError, match="declared with head_dim_qk=64; the call has 128"):
        wrapper.plan(*tables, 4, 2, 128, 16)
    with pytest.raises(ValueError, match=r"dtype_q=torch.float16; the call has torch.bfloat16"):
        wrapper.plan(*tables, 4, 2, 64, 16, q_data_type="bfloat16")
    module = gen_customize_single_decode_module("mine", HALF, HALF, HALF, 64, 64, [], [], ["sm_scale"], ["double"], "Mine", struct(""))
    k = torch.zeros(4, 4, 32).half()
    with pytest.raises(ValueError, match="head_dim_qk=64; the call has 32"):
        decode.single_decode_with_kv_cache_with_jit_module(module, k[0], k, k, 0.2)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="13"):
        prefill.BatchPrefillWithRaggedKVCacheWrapper(workspace(), jit_args=[1, 2])
    with pytest.raises(NotImplementedError, match="maybe_alibi_slopes"):
        run_prefill(struct(""), torch.zeros(8), 0.2, tensors=(("maybe_alibi_slopes", "float"),))
    with pytest.raises(NotImplementedError, match="no struct Mine"):
        run_prefill("struct Yours {};", 0.2)
    with pytest.raises(TypeError, match="must have 1: sm_scale"):
        run_prefill(struct(""), 0.2, 0.3)
    with pytest.raises(NotImplementedError, match="logits_soft_cap"):
        run_prefill(struct(""), 0.2, logits_soft_cap=3.0)
    with pytest.raises(NotImplementedError, match="POD"):
        gen_customize_pod_module()
    with pytest.raises(TypeError, match="jit_module"):
        decode.single_decode_with_kv_cache_with_jit_module(
            "module", torch.zeros(4, 64).half(), *[torch.zeros(4, 4, 64).half()] * 2
        )
    with pytest.raises(NotImplementedError, match="jit_args"):
        from girih.flashinfer.pod import PODWithPagedKVCacheWrapper

        PODWithPagedKVCacheWrapper(workspace(), jit_args=[1])


def test_what_expressions_cannot_say_becomes_cuda_text() -> None:
    body = (
        LOGITS
        % "float sum = logits; for (int i = 0; i < 4; ++i) { sum += params.bias[kv_head_idx * 4 + i]; } return sum * params.gain;"
    )
    given = (("bias", "float"),)
    scalars = (("sm_scale", "double"), ("gain", "float"))
    hooks = _jit_variant.hooks_of_jit_args(jit_args(struct(body), given, scalars), None, "test")
    problem = Problem(4, 2, 64, 64, HALF, HALF, HALF, window_left=7, hooks=hooks)
    expressions = _jit_variant.hook_expressions(problem, NO_LSE)
    variant = girih.Variant(**expressions)
    assert set(variant.params) == {"bias", "gain", "sm_scale"}
    assert "cuda_code" in repr(expressions["logits"])
    with pytest.raises(NotImplementedError, match="CUDA context"):
        girih.schedule(
            girih.AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim_qk=64, variant=variant),
            girih.AttentionLimits(max_tokens=1, max_requests=1, max_kv_len=1),
        )
