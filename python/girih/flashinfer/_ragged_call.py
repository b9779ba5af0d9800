"""Attention over contiguous keys and values in one call, by offsets: the function that FlashInfer names after its backend and model.

Plans at every call. Where lengths are not given on the host, a GPU's are waited for, and such a call cannot be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import girih

from ._kv import ragged_store
from ._paged_call import form_of_call, output_dtype, refuse_all
from ._planner import Batch, IndexArray, Limits, host_array, planner_of_thread
from ._problem import Problem, compute_query
from ._wrapper import check_backend

__all__ = ["trtllm_ragged_attention_deepseek"]

_NAME = "trtllm_ragged_attention_deepseek"


def _offsets(name: str, offsets: torch.Tensor, lengths: torch.Tensor | None, requests: int, tokens: int) -> IndexArray:
    """[requests + 1] on the host: of the lengths where these are there, which must then sum to all tokens."""
    if lengths is None:
        result = host_array(offsets.reshape(-1))
        if len(result) != requests + 1:
            raise ValueError(f"{_NAME}: {name} has {len(result)} entries; must have batch_size + 1 = {requests + 1}")
        return result
    if lengths.device.type != "cpu" or lengths.shape != (requests,) or bool((lengths < 0).any()):
        raise ValueError(f"{_NAME}: lengths beside {name} must be {requests} numbers >= 0 in CPU memory")
    result = np.zeros(requests + 1, np.int64)
    np.cumsum(host_array(lengths), out=result[1:])
    if result[-1] != tokens:
        raise ValueError(f"{_NAME}: lengths beside {name} sum to {result[-1]}; the tensor has {tokens} tokens")
    return result


def trtllm_ragged_attention_deepseek(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    workspace_buffer: torch.Tensor,
    seq_lens: torch.Tensor,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: float | torch.Tensor,
    bmm2_scale: float | torch.Tensor,
    o_sf_scale: float,
    batch_size: int,
    window_left: int,
    cum_seq_lens_q: torch.Tensor,
    cum_seq_lens_kv: torch.Tensor,
    enable_pdl: bool | None,
    is_causal: bool,
    return_lse: bool,
    attention_sinks: torch.Tensor | None = None,
    skip_softmax_threshold_scale_factor: float | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    sage_attn_sfs: tuple[Any, Any, Any, Any] = (None, None, None, None),
    num_elts_per_sage_attn_blk: tuple[int, int, int, int] = (0, 0, 0, 0),
    backend: str = "trtllm-gen",
    q_seq_lens_cpu: torch.Tensor | None = None,
    kv_seq_lens_cpu: torch.Tensor | None = None,
    use_fp16_softmax: bool | None = None,
    uses_spcompress: bool | None = None,
    skip_all_rows_active_check: bool = True,
) -> Any:
    """Prefill over contiguous keys and values: query [rows, num_qo_heads, head_dim_qk], key [tokens, num_kv_heads, head_dim_qk], value
    [tokens, num_kv_heads, head_dim_vo] of any dims.

    Request r has rows cum_seq_lens_q[r] to [r + 1] and keys cum_seq_lens_kv[r] to [r + 1], which are read on the host; q_seq_lens_cpu and
    kv_seq_lens_cpu [batch_size], host copies of the lengths, spare a GPU that wait. is_causal counts from the end. A row without keys gets
    0 and -inf. bmm1_scale and bmm2_scale: all factors of scores and output, numbers or f32 [1]. Hints: workspace_buffer, seq_lens (the
    lengths are cum_seq_lens_kv's), max_q_len, max_kv_len, o_sf_scale (of 4-bit outputs), enable_pdl, backend, use_fp16_softmax,
    skip_all_rows_active_check (rows without keys are always right).

    Returns out [rows, num_qo_heads, head_dim_vo] of query's type (bf16 for FP8 queries), or (out, lse f32 [rows, num_qo_heads], base 2).
    """
    refuse_all(
        _NAME,
        "leave it out",
        skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor,
        sage_attn_sfs=None if all(scale is None for scale in sage_attn_sfs) else sage_attn_sfs,
        num_elts_per_sage_attn_blk=any(num_elts_per_sage_attn_blk),
        uses_spcompress=uses_spcompress,
    )
    check_backend(backend)
    if (q_seq_lens_cpu is None) != (kv_seq_lens_cpu is None):
        raise ValueError(f"{_NAME}: q_seq_lens_cpu and kv_seq_lens_cpu must be given together")
    rows = _offsets("cum_seq_lens_q", cum_seq_lens_q, q_seq_lens_cpu, batch_size, query.shape[0])
    keys = _offsets("cum_seq_lens_kv", cum_seq_lens_kv, kv_seq_lens_cpu, batch_size, key.shape[0])
    problem = Problem(
        query.shape[1],
        key.shape[1],
        query.shape[2],
        value.shape[2],
        query.dtype,
        key.dtype,
        output_dtype(_NAME, query, out, None),
        mask="band",
        window_left=window_left,
        window_right=0 if is_causal else -1,
        sm_scale=1.0 if isinstance(bmm1_scale, torch.Tensor) else float(bmm1_scale),
    )
    kv_len, q_len = keys[1:] - keys[:-1], rows[1:] - rows[:-1]
    need = Limits(int(rows[-1]), batch_size, int(kv_len.max(initial=0)), int(q_len.max(initial=0)))
    planner = planner_of_thread(query.device, _NAME)
    planner.plan(problem, Batch(rows, (girih.Segment(kv_indptr=keys, kv_len=kv_len, page_size=0),), need))
    kind = "base2" if return_lse or lse is not None else "none"
    form, stored, params = form_of_call(problem, kind, bmm1_scale, bmm2_scale, attention_sinks, query.device, "NHD")
    store = ragged_store(key, value, "NHD", problem, stored)
    q = compute_query(query, problem.o_dtype)
    result = planner.ready(form).run(q, store, out=out, lse=lse, params=params)
    return result if return_lse or kind == "none" else result[0]
