"""Multi-head latent attention by FlashInfer's names: one compressed KV head of 512 dims, which is K and V, and 64 dims that carry RoPE.

Long because FlashInfer's signatures are.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch

import girih

from ._kv import check_sinks
from ._planner import Batch, IndexArray, Limits, host_array, kv_len_of_pages
from ._problem import _FP8, FLOAT16, Form, Problem, data_types, refuse, torch_dtype
from ._wrapper import AttentionWrapper, older_names

__all__ = [
    "BatchDecodeMlaWithPagedKVCacheWrapper",
    "BatchMLAPagedAttentionWrapper",
    "MLAHeadDimensions",
    "MLALayerDimensions",
    "MLAPlanMetadata",
    "deepseek_mla_dimensions",
    "nope_mla_dimensions",
    "smaller_mla_dimensions",
    "supported_mla_head_dimensions",
    "supported_mla_layer_dimensions",
]


class MLAHeadDimensions(NamedTuple):
    """Widths of one MLA head: of the uncompressed parts of q and k, of v, and of the compressed cache."""

    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    kv_lora_rank: int


class MLALayerDimensions(NamedTuple):
    """A head's widths, and how many heads a layer has."""

    head_dimensions: MLAHeadDimensions
    num_heads: int


deepseek_mla_dimensions = MLAHeadDimensions(128, 64, 128, 512)
smaller_mla_dimensions = MLAHeadDimensions(64, 64, 128, 256)
nope_mla_dimensions = MLAHeadDimensions(256, 0, 256, 512)
#: Those that FlashInfer has kernels for; Girih takes any.
supported_mla_head_dimensions = [deepseek_mla_dimensions, smaller_mla_dimensions, nope_mla_dimensions]
supported_mla_layer_dimensions = [
    MLALayerDimensions(deepseek_mla_dimensions, 128),
    MLALayerDimensions(deepseek_mla_dimensions, 64),
    MLALayerDimensions(smaller_mla_dimensions, 32),
]


class MLAPlanMetadata(NamedTuple):
    """Page tables of a plan as CSR arrays, as block tables, or as both: fields of the same names as plan()'s arguments."""

    qo_indptr: torch.Tensor | None = None
    kv_indptr: torch.Tensor | None = None
    kv_indices: torch.Tensor | None = None
    kv_len_arr: torch.Tensor | None = None
    cum_seq_lens_q: torch.Tensor | None = None
    block_tables: torch.Tensor | None = None
    seq_lens: torch.Tensor | None = None
    max_q_len: int | None = None

    @classmethod
    def csr(
        cls, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor, kv_len_arr: torch.Tensor
    ) -> MLAPlanMetadata:
        """Of page lists: qo_indptr, kv_indptr [batch + 1], kv_indices [pages], kv_len_arr [batch]."""
        return cls(qo_indptr, kv_indptr, kv_indices, kv_len_arr)

    @classmethod
    def dense(
        cls,
        cum_seq_lens_q: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        max_q_len: int | None = None,
    ) -> MLAPlanMetadata:
        """Of block tables: cum_seq_lens_q [batch + 1], block_tables [batch, pages of the longest], seq_lens [batch]."""
        return cls(cum_seq_lens_q=cum_seq_lens_q, block_tables=block_tables, seq_lens=seq_lens, max_q_len=max_q_len)

    @classmethod
    def dual(
        cls,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
        *,
        cum_seq_lens_q: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        max_q_len: int | None = None,
    ) -> MLAPlanMetadata:
        """Both, which must say the same; plan() reads the page lists."""
        return cls(qo_indptr, kv_indptr, kv_indices, kv_len_arr, cum_seq_lens_q, block_tables, seq_lens, max_q_len)

    def check(self, page_size: int) -> None:
        """Raises ValueError where a form is given in part, neither is given, or the two say different things."""
        lists = {name: getattr(self, name) for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")}
        tables = {name: getattr(self, name) for name in ("cum_seq_lens_q", "block_tables", "seq_lens")}
        for form in (lists, tables):
            missing = [name for name, value in form.items() if value is None]
            if 0 < len(missing) < len(form):
                raise ValueError(f"metadata has no {', '.join(missing)} beside {', '.join(form.keys() - {*missing})}")
        if self.qo_indptr is None and self.block_tables is None:
            raise ValueError("metadata is empty; make it by MLAPlanMetadata.csr(), dense() or dual()")
        if self.max_q_len is not None and self.block_tables is None:
            raise ValueError("metadata has max_q_len without block_tables; it is theirs")
        if self.qo_indptr is None or self.block_tables is None:
            return
        pairs = [("qo_indptr", "cum_seq_lens_q"), ("kv_len_arr", "seq_lens")]
        if any(not np.array_equal(host_array(lists[a]), host_array(tables[b])) for a, b in pairs) or not np.array_equal(
            _listed_pages(self, page_size), host_array(lists["kv_indices"])[: int(host_array(lists["kv_indptr"])[-1])]
        ):
            raise ValueError("metadata: the page lists and the block tables differ; they must say the same")


def _listed_pages(metadata: MLAPlanMetadata, page_size: int) -> IndexArray:
    """The pages of block tables, one request after the other."""
    assert metadata.block_tables is not None and metadata.seq_lens is not None
    tables, lengths = host_array(metadata.block_tables), host_array(metadata.seq_lens)
    used = (lengths + page_size - 1) // page_size
    return np.concatenate([row[:n] for row, n in zip(tables, used, strict=True)] or [np.zeros(0, tables.dtype)])


@functools.lru_cache(maxsize=64)
def _number(value: float, device: torch.device) -> torch.Tensor:
    return torch.full((1,), value, dtype=torch.float32, device=device)


def _split(
    pair: Any, first: Any, second: Any, width: int, names: tuple[str, str, str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The two parts of a query or cache: a pair, a packed tensor, or the older two arguments."""
    if pair is None:
        if first is None or second is None:
            raise TypeError(f"run() requires {names[0]}=, or {names[1]} and {names[2]}")
        return first, second
    if first is not None or second is not None:
        raise TypeError(f"pass either {names[0]}= or {names[1]}/{names[2]}, not both")
    if not isinstance(pair, (tuple, list)):
        return pair[..., :width], pair[..., width:]
    if len(pair) != 2:
        raise ValueError(f"{names[0]} is a tuple of {len(pair)}; must be a tensor or a pair")
    for inner in pair:  # one packed tensor beside the pair of its parts: the parts are taken
        if isinstance(inner, (tuple, list)):
            return _split(inner, None, None, width, names)
    return pair[0], pair[1]


class BatchMLAPagedAttentionWrapper(AttentionWrapper):
    """MLA over a paged cache: plan() each step, run() each layer. backend is a hint."""

    _name = "BatchMLAPagedAttentionWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: torch.Tensor | None = None,
        kv_indptr: torch.Tensor | None = None,
        kv_indices: torch.Tensor | None = None,
        kv_len_arr: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, "NHD", use_cuda_graph, backend)
        self._problem: Problem | None = None
        self._use_sinks = False
        self._lse_mode = "none"
        self._buffers = {
            "qo_indptr": qo_indptr,
            "kv_indptr": kv_indptr,
            "kv_indices": kv_indices,
            "kv_len_arr": kv_len_arr,
        }
        if use_cuda_graph:
            for name, buffer in self._buffers.items():
                if not torch.is_tensor(buffer):
                    raise ValueError(f"{name} should be a torch.Tensor in CUDA graph mode")

    def plan(
        self,
        qo_indptr: torch.Tensor | None = None,
        kv_indptr: torch.Tensor | None = None,
        kv_indices: torch.Tensor | None = None,
        kv_len_arr: torch.Tensor | None = None,
        num_heads: int | None = None,
        head_dim_ckv: int | None = None,
        head_dim_kpe: int | None = None,
        page_size: int | None = None,
        causal: bool | None = None,
        sm_scale: float | None = None,
        q_data_type: str | torch.dtype | None = None,
        kv_data_type: str | torch.dtype | None = None,
        use_profiler: bool = False,
        *,
        metadata: MLAPlanMetadata | None = None,
        cum_seq_lens_q: torch.Tensor | None = None,
        block_tables: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        max_q_len: int | None = None,
        query_layout: str | None = None,
        kv_cache_layout: str | None = None,
        lse_mode: str = "none",
        output_dtype: torch.dtype | None = None,
        output_scale: str = "none",
        scale_mode: str = "default",
        skip_softmax: bool = False,
        enable_pdl: bool | None = None,
        use_sinks: bool = False,
    ) -> None:
        """Plans a batch.

        qo_indptr, kv_indptr [batch + 1], kv_indices, kv_len_arr [batch]; or cum_seq_lens_q [batch + 1], block_tables [batch, pages],
        seq_lens [batch]; or one or both as an MLAPlanMetadata. sm_scale has no default: it is that of the uncompressed heads,
        1 / sqrt(128 + 64) for DeepSeek. Hints: query_layout, kv_cache_layout, max_q_len, enable_pdl.
        """
        flat = MLAPlanMetadata(
            qo_indptr, kv_indptr, kv_indices, kv_len_arr, cum_seq_lens_q, block_tables, seq_lens, max_q_len
        )
        if metadata is not None:
            if not isinstance(metadata, MLAPlanMetadata):
                raise TypeError(f"metadata is a {type(metadata).__name__}; must be a flashinfer.mla.MLAPlanMetadata")
            if any(value is not None for value in flat):
                raise ValueError("metadata is given beside arrays of its own; give one form")
            qo_indptr, kv_indptr, kv_indices, kv_len_arr, cum_seq_lens_q, block_tables, seq_lens, max_q_len = metadata
        elif qo_indptr is not None and block_tables is not None:
            raise ValueError("qo_indptr and block_tables: both forms are given; give one, or MLAPlanMetadata.dual()")
        missing = {
            "num_heads": num_heads,
            "head_dim_ckv": head_dim_ckv,
            "head_dim_kpe": head_dim_kpe,
            "causal": causal,
            "sm_scale": sm_scale,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type,
            "page_size": page_size,
        }
        for name, value in missing.items():
            if value is None:
                raise TypeError(f"BatchMLAPagedAttentionWrapper.plan(): {name} must be given")
        assert num_heads is not None and head_dim_ckv is not None and head_dim_kpe is not None and page_size is not None
        if metadata is not None:
            metadata.check(page_size)
        if use_profiler:
            refuse("BatchMLAPagedAttentionWrapper.plan", "use_profiler", "use a profiler of CUDA")
        if skip_softmax:
            refuse("BatchMLAPagedAttentionWrapper.plan", "skip_softmax", "leave it out: every key is computed")
        if output_scale != "none":
            refuse(
                "BatchMLAPagedAttentionWrapper.plan", f"output_scale={output_scale!r}", "quantise the output afterwards"
            )
        if scale_mode not in ("default", "kv-per-tensor"):
            refuse("BatchMLAPagedAttentionWrapper.plan", f"scale_mode={scale_mode!r}", "fold bmm1_scale into sm_scale")
        if lse_mode not in ("none", "base2", "basee"):
            raise ValueError(f"lse_mode={lse_mode!r}; must be none, base2 or basee")
        q_type, kv_type, o_type = data_types(q_data_type, kv_data_type, output_dtype)
        problem = Problem(
            num_heads,
            1,
            head_dim_ckv + head_dim_kpe,
            head_dim_ckv,
            q_type,
            kv_type,
            o_type,
            window_right=0 if causal else -1,
            sm_scale=sm_scale,
            head_dim_rope=head_dim_kpe,
            v_is_k=True,
        )
        if qo_indptr is not None and kv_indptr is not None and kv_indices is not None and kv_len_arr is not None:
            rows, kv_len = host_array(qo_indptr), host_array(kv_len_arr)
            table = host_array(kv_indptr)[: len(kv_len) + 1]
            segment = girih.Segment(kv_indptr=table, kv_len=kv_len, page_size=page_size)
            self._plan(problem, rows, kv_len, segment, page_size, kv_indices)
            self._copy_to_buffers(qo_indptr, kv_indptr, kv_len_arr)
        elif block_tables is not None and seq_lens is not None and cum_seq_lens_q is not None:
            rows, kv_len = host_array(cum_seq_lens_q), host_array(seq_lens)
            segment = girih.Segment(table_stride=block_tables.shape[1], kv_len=kv_len, page_size=page_size)
            self._plan(problem, rows, kv_len, segment, page_size, block_tables.reshape(-1))
        else:
            raise TypeError(
                "plan() requires qo_indptr, kv_indptr, kv_indices and kv_len_arr, or cum_seq_lens_q, block_tables and seq_lens"
            )
        self._use_sinks = use_sinks
        self._lse_mode = lse_mode

    begin_forward = plan

    def _plan(
        self,
        problem: Problem,
        rows: IndexArray,
        kv_len: IndexArray,
        segment: Any,
        page_size: int,
        indices: torch.Tensor,
    ) -> None:
        num_requests = len(kv_len)
        need = Limits(
            int(rows[-1]),
            num_requests,
            int(kv_len.max()) if num_requests else 0,
            int((rows[1:] - rows[:-1]).max()) if num_requests else 0,
        )
        buffer = self._buffers["kv_indices"]
        if self._use_cuda_graph and self._planner.limits is None:
            assert buffer is not None
            self._planner.limits = need._replace(kv_len=len(buffer) * page_size, qo_len=need.tokens)
        if self._use_cuda_graph and buffer is not None and len(indices) > len(buffer):
            raise ValueError("The size of kv_indices should be less than or equal to the allocated buffer")
        self._planner.plan(problem, Batch(rows, (segment,), need))
        self._problem = problem
        if self._use_cuda_graph:
            assert buffer is not None
            buffer[: len(indices)].copy_(indices, non_blocking=True)
            self._kv_indices = buffer
        else:
            self._kv_indices = self._on_device(indices)

    def _copy_to_buffers(self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_len_arr: torch.Tensor) -> None:
        if not self._use_cuda_graph:
            return
        for name, given in (("qo_indptr", qo_indptr), ("kv_indptr", kv_indptr), ("kv_len_arr", kv_len_arr)):
            buffer = self._buffers[name]
            assert buffer is not None
            buffer[: len(given)].copy_(given, non_blocking=True)

    def run(
        self,
        q_nope: torch.Tensor | None = None,
        q_pe: torch.Tensor | None = None,
        ckv_cache: torch.Tensor | None = None,
        kpe_cache: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        profiler_buffer: torch.Tensor | None = None,
        kv_len: torch.Tensor | None = None,
        page_table: torch.Tensor | None = None,
        return_lse_base_on_e: bool = False,
        o_scale: float | None = None,
        *,
        query: Any = None,
        kv_cache: Any = None,
        ckv_scale: float | None = None,
        ckv_scale_arr: torch.Tensor | None = None,
        kpe_scale: float | None = None,
        sinks: torch.Tensor | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        bmm1_scale: float | torch.Tensor | None = None,
        bmm2_scale: float | torch.Tensor | None = None,
    ) -> Any:
        """Attention of the planned batch.

        q_nope [rows, num_heads, head_dim_ckv], q_pe [rows, num_heads, head_dim_kpe]; ckv_cache [pages, page_size, head_dim_ckv], kpe_cache
        [pages, page_size, head_dim_kpe]; or query= and kv_cache= as pairs or as one tensor each. ckv_scale and kpe_scale: of a one-byte
        cache. Returns out [rows, num_heads, head_dim_ckv], or (out, lse f32 [rows, num_heads], base 2 or e).
        """
        problem = self._problem
        for name, value in (
            ("profiler_buffer", profiler_buffer),
            ("skip_softmax_threshold_scale_factor", skip_softmax_threshold_scale_factor),
        ):
            if value is not None:
                refuse("BatchMLAPagedAttentionWrapper.run", name, "leave it out")
        if o_scale is not None:
            refuse("BatchMLAPagedAttentionWrapper.run", "o_scale", "quantise the output afterwards")
        if bmm1_scale is not None or bmm2_scale is not None:
            refuse(
                "BatchMLAPagedAttentionWrapper.run", "bmm1_scale/bmm2_scale", "fold them into sm_scale and ckv_scale"
            )
        if problem is None or kv_len is not None or page_table is not None:
            refuse(
                "BatchMLAPagedAttentionWrapper.run",
                "kv_len/page_table without plan()",
                "call plan(cum_seq_lens_q=, block_tables=, seq_lens=)",
            )
        if (sinks is not None) != self._use_sinks and self._use_sinks:
            raise ValueError("plan(use_sinks=True) was called; run() needs sinks")
        if return_lse and self._lse_mode != "none" and (self._lse_mode == "basee") != return_lse_base_on_e:
            raise ValueError(
                f"plan(lse_mode={self._lse_mode!r}) and run(return_lse_base_on_e={return_lse_base_on_e}) differ"
            )
        width = problem.head_dim_vo
        q_nope, q_pe = _split(query, q_nope, q_pe, width, ("query", "q_nope", "q_pe"))
        ckv, kpe = _split(kv_cache, ckv_cache, kpe_cache, width, ("kv_cache", "ckv_cache", "kpe_cache"))
        _check_dtypes({"q_nope": q_nope, "q_pe": q_pe}, problem.q_dtype, "q_data_type")
        _check_dtypes({"ckv_cache": ckv, "kpe_cache": kpe}, problem.kv_dtype, "kv_data_type")
        scales: dict[str, Any] = {}
        granularity = "none"
        if problem.kv_dtype in _FP8:
            granularity = "tensor"
            scales = self._scales_of_cache(ckv_scale, ckv_scale_arr, kpe_scale, problem)
        elif ckv_scale is not None or ckv_scale_arr is not None or kpe_scale is not None:
            raise ValueError("ckv_scale, ckv_scale_arr and kpe_scale are only valid when kv_data_type is FP8.")
        has_rope = problem.head_dim_rope > 0
        store = girih.KvStore.paged(ckv, k_rope=kpe if has_rope else None, **scales)
        kind: Any = ("natural" if return_lse_base_on_e else "base2") if return_lse or lse is not None else "none"
        if sinks is not None:
            check_sinks(sinks, problem.num_qo_heads)
        params = None if sinks is None else {"sinks": sinks.float()}
        form = Form(kind, sinks is not None, granularity, granularity)
        result = self._compute(
            self._query(q_nope, problem),
            store,
            form,
            params,
            kv_indices=self._kv_indices,
            q_rope=self._query(q_pe, problem) if has_rope else None,
            out=out,
            lse=lse,
        )
        return result if return_lse or kind == "none" else result[0]

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def _scales_of_cache(
        self, ckv_scale: float | None, ckv_scale_arr: torch.Tensor | None, kpe_scale: float | None, problem: Problem
    ) -> dict[str, Any]:
        if (ckv_scale is None) == (ckv_scale_arr is None):
            raise ValueError("Exactly one of ckv_scale or ckv_scale_arr is required when kv_data_type is FP8.")
        scales: dict[str, Any] = {}
        if ckv_scale_arr is not None:
            if ckv_scale_arr.numel() != 1:
                refuse(
                    "BatchMLAPagedAttentionWrapper.run",
                    "ckv_scale_arr of more than one entry",
                    "give one scale for the tensor",
                )
            scales["k_scale"] = ckv_scale_arr.reshape(1).float()
        else:
            assert ckv_scale is not None
            scales["k_scale"] = _number(float(ckv_scale), self.device)
        if problem.head_dim_rope > 0:
            if kpe_scale is None:
                raise ValueError("kpe_scale is required when kv_data_type is FP8.")
            scales["k_rope_scale"] = _number(float(kpe_scale), self.device)
        return scales


def _check_dtypes(tensors: dict[str, torch.Tensor], dtype: torch.dtype, argument: str) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise ValueError(f"{name}.dtype is {tensor.dtype}; plan() was given {argument}={dtype}")


class BatchDecodeMlaWithPagedKVCacheWrapper(AttentionWrapper):
    """The older wrapper for MLA decode (until 0.6): BatchMLAPagedAttentionWrapper with one query row per request.

    head_dim_kpe is an eighth of head_dim_compressed_kv, as there. q_pe and the cache are taken as rotated.
    """

    _name = "BatchDecodeMlaWithPagedKVCacheWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, "NHD", use_cuda_graph)
        self._use_tensor_cores = bool(use_tensor_cores)
        self._last_page_len = paged_kv_last_page_len_buffer
        num_requests = 0 if paged_kv_last_page_len_buffer is None else len(paged_kv_last_page_len_buffer)
        lengths = torch.zeros(num_requests, dtype=torch.int32, device=self.device) if use_cuda_graph else None
        rows = torch.zeros(num_requests + 1, dtype=torch.int32, device=self.device) if use_cuda_graph else None
        self._inner = BatchMLAPagedAttentionWrapper(
            float_workspace_buffer, use_cuda_graph, rows, paged_kv_indptr_buffer, paged_kv_indices_buffer, lengths
        )

    @property
    def use_tensor_cores(self) -> bool:
        """The hint that was given."""
        return self._use_tensor_cores

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        head_dim_compressed_kv: int,
        page_size: int,
        sm_scale: float,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        data_type: str | torch.dtype = "float16",
        q_data_type: str | torch.dtype | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> None:
        """Plans a batch of one query row per request; data_type is that of the cache, q_data_type (else the same) that of q."""
        if rope_scale is not None or rope_theta is not None:
            refuse(
                "BatchDecodeMlaWithPagedKVCacheWrapper.plan",
                "rope_scale/rope_theta",
                "rotate q_pe and the cache's kpe beforehand",
            )
        table = host_array(indptr)
        kv_len = kv_len_of_pages(table, host_array(last_page_len), page_size)
        inner = self._inner
        kv_type = torch_dtype(data_type)
        q_type, kv_type, o_type = data_types(FLOAT16 if q_data_type is None else q_data_type, kv_type, None, data_type)
        kpe = head_dim_compressed_kv // 8
        problem = Problem(
            num_qo_heads,
            1,
            head_dim_compressed_kv + kpe,
            head_dim_compressed_kv,
            q_type,
            kv_type,
            o_type,
            window_left=window_left,
            soft_cap=0.0 if logits_soft_cap is None else logits_soft_cap,
            sm_scale=sm_scale,
            head_dim_rope=kpe,
            v_is_k=True,
        )
        rows = host_array(range(len(kv_len) + 1))
        segment = girih.Segment(kv_indptr=table, kv_len=kv_len, page_size=page_size)
        inner._plan(problem, rows, kv_len, segment, page_size, indices)
        if self._last_page_len is not None:
            self._last_page_len[: len(last_page_len)].copy_(last_page_len, non_blocking=True)

    begin_forward = plan

    def run(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        paged_ckv_cache: torch.Tensor,
        paged_kpe_cache: torch.Tensor,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
    ) -> Any:
        """As BatchMLAPagedAttentionWrapper.run()."""
        for name, value in (("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale)):
            if value is not None and value != 1.0:
                refuse(
                    "BatchDecodeMlaWithPagedKVCacheWrapper.run",
                    name,
                    "use BatchMLAPagedAttentionWrapper with ckv_scale and kpe_scale",
                )
        return self._inner.run(q_nope, q_pe, paged_ckv_cache, paged_kpe_cache, out=out, lse=lse, return_lse=return_lse)

    run_return_lse = functools.partialmethod(run, return_lse=True)
