"""Girih as an attention implementation of Hugging Face transformers.

    import girih.integrations.transformers as girih_transformers
    girih_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="girih")

Masks stay what they say (_mask.py): causal order, windows, chunks and padding are never written out as 4-D tensors,
keys that nobody sees are not read, and the layers of a forward pass share one plan (_attention.py). A mask that is
given by its values is used by its values.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from ._attention import DenseMask, Features, attend_paged, attend_structured, attend_varlen, refuse_gradients
from ._mask import TRUE, MaskStructure, Node, StructuredMask, Untraceable, structure_of

__all__ = ["attention", "continuous_batching", "mask", "register"]

_CAUSAL: Node = ("<=", ("kv",), ("q",))


def register(name: str = "girih") -> None:
    """Makes `attn_implementation=name` known to transformers, for every model that goes through its AttentionInterface.

    What it does not do raises when a model asks for it: dropout, training, attention weights (`output_attentions`).
    """
    if "q_offset" not in inspect.signature(sdpa_mask).parameters:
        raise NotImplementedError(
            "girih.integrations.transformers: this transformers makes masks in another way; install 5.24 or later"
        )
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


# ---------------------------------------------------------------------------------------------------------------- masks


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor:
    """The mask of a forward pass, as transformers asks for it: a StructuredMask, or a boolean tensor where it cannot be
    one.
    """
    device = torch.device(device)

    def dense() -> torch.Tensor:
        arguments = {} if mask_function is None else {"mask_function": mask_function}
        values: torch.Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,  # type: ignore[arg-type]
            kv_offset=kv_offset,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            use_vmap=use_vmap,
            device=device,
            **arguments,
        )
        assert values is not None  # nothing was allowed to be skipped
        return values

    # Compiled graphs know no StructuredMask. With a static cache on a GPU, generate() makes masks outside of the graphs
    # that it compiles
    # for single tokens; also, that cache keeps its length on its device, where reading it would wait.
    outside = q_length == 1 and not kwargs.get("allow_is_causal_skip", True)
    if torch.compiler.is_compiling() or (device.type != "cpu" and (outside or isinstance(q_offset, torch.Tensor))):
        return dense()
    try:
        structure = structure_of(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=int(q_offset),
            kv_offset=kv_offset,
            mask_function=mask_function or (lambda batch, head, q, kv: kv <= q),
            attention_mask=attention_mask,
            device=device,
        )
    except Untraceable:
        return dense()
    if structure.holes is not None and device.type != "cpu":
        # Each hole parts a row's keys, and a GPU's plan has room for a few runs of keys a tile.
        return dense()
    return StructuredMask(structure, device, dense)


#: What the values of an additive mask say, for as long as the mask lives: all layers ask.
_read_masks: Any = WeakIdKeyDictionary()


def _read_dense(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A mask given by its values as (visible, bias): boolean, or added to the scores with the least value (or -inf) for
    "not visible".
    """
    if values.dtype == torch.bool:
        return values, None
    if not values.is_floating_point():
        raise ValueError(f"attention_mask: is of {values.dtype}; a 4-D mask must be boolean or a floating-point bias")
    version = None if values.is_inference() else values._version
    known = _read_masks.get(values)
    if known is not None and version is not None and known[0] == version:
        return known[1], known[2]
    visible = values > torch.finfo(values.dtype).min
    bias: torch.Tensor | None = torch.where(visible, values, 0).to(torch.float32)
    if bias is not None and not bias.any():
        bias = None
    if version is not None:
        _read_masks[values] = (version, visible, bias)
    return visible, bias


def _unmasked(
    module: Any, query: torch.Tensor, key: torch.Tensor, is_causal: bool | None, window: int | None
) -> MaskStructure:
    """What no mask means: every key, or causal order where the layer says so."""
    q_length, kv_length = query.shape[2], key.shape[2]
    causal = q_length > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if (causal and q_length != kv_length) or (window is not None and not causal):
        raise ValueError(
            f"attention_mask: None leaves open where {q_length} queries stand among {kv_length} keys"
            + ("" if window is None else f" with a sliding window of {window}")
            + "; let transformers make the mask (a 2-D attention_mask), or give a 4-D one"
        )
    return MaskStructure(
        batch_size=query.shape[0],
        q_length=q_length,
        kv_length=kv_length,
        q_offset=0,
        kv_offset=0,
        rule=_causal_rule(window) if causal else TRUE,
    )


def _causal_rule(window: int | None) -> Node:
    return _CAUSAL if window is None else ("&", _CAUSAL, (">", ("kv",), ("-", ("q",), ("int", window))))


# ----------------------------------------------------------------------------------------------------- the layer's call


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of a layer, as transformers calls it.

    query [batch, num_qo_heads, q_length, head_dim], key and value [batch, num_kv_heads, kv_length, head_dim (or
    head_dim_vo)];
    s_aux: a logit per head that joins the softmax's denominator. Returns ([batch, q_length, num_qo_heads, head_dim_vo],
        None).
    """
    _refuse(module, query, key, dropout, kwargs)
    continuous = kwargs.get("cu_seq_lens_q") is not None and kwargs.get("write_index") is not None
    # A given mask has the window in it.
    window = sliding_window if attention_mask is None else None
    if torch.compiler.is_compiling():
        if continuous:
            raise NotImplementedError(
                "continuous batching: cannot be compiled with girih's attention; set no compile config"
            )
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        out = torch.ops.girih.transformers_attention(
            query, key, value, attention_mask, position_bias, s_aux, scaling, softcap, causal, window
        )
        return out, None
    features = Features(sm_scale=scaling, soft_cap=softcap, sinks=s_aux, bias=position_bias)
    if continuous:
        out = _attend_continuous(query, key, value, attention_mask, _causal_rule(sliding_window), features, kwargs)
    else:
        out = _attend(module, query, key, value, attention_mask, is_causal, window, features)
    return refuse_gradients(out, query, key, value), None


def _refuse(module: Any, query: torch.Tensor, key: torch.Tensor, dropout: float, kwargs: dict[str, Any]) -> None:
    """What this attention does not do, said before anything is done."""
    if dropout:
        raise ValueError(f"dropout: {dropout} is not supported; girih is for inference: call model.eval()")
    if kwargs.get("output_attentions"):
        raise ValueError('output_attentions: weights are never formed; use attn_implementation="eager" to look at them')
    if kwargs.get("head_mask") is not None:
        raise ValueError('head_mask: is not supported; use attn_implementation="eager"')
    if getattr(module, "training", False) and torch.is_grad_enabled() and query.requires_grad:
        raise RuntimeError(
            "girih is for inference: call model.eval() and run under torch.no_grad(), or train with "
            'attn_implementation="sdpa"'
        )
    if query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"query: is of {query.dtype}; supported are float32, float16 and bfloat16")
    if query.shape[0] != key.shape[0]:
        raise ValueError(f"query: has a batch of {query.shape[0]}, key one of {key.shape[0]}; they must be the same")


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool | None,
    window: int | None,
    features: Features,
) -> torch.Tensor:
    if attention_mask is None:
        return attend_structured(query, key, value, _unmasked(module, query, key, is_causal, window), features)
    if isinstance(attention_mask, StructuredMask):
        if attention_mask.structure.batch_size == query.shape[0] and not attention_mask.is_exposed:
            return attend_structured(query, key, value, attention_mask.structure, features)
        attention_mask = attention_mask.dense()
    visible, bias = _read_dense(attention_mask)
    if bias is not None:
        bias = bias if features.bias is None else bias + features.bias
        features = Features(sm_scale=features.sm_scale, soft_cap=features.soft_cap, sinks=features.sinks, bias=bias)
    return attend_structured(query, key, value, DenseMask(visible), features)


@torch.library.custom_op("girih::transformers_attention", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _op(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    s_aux: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    causal: bool,
    window: int | None,
) -> torch.Tensor:
    features = Features(sm_scale=scaling, soft_cap=softcap, sinks=s_aux, bias=position_bias)
    return _attend(None, query, key, value, attention_mask, causal, window, features)


@_op.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    s_aux: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    causal: bool,
    window: int | None,
) -> torch.Tensor:
    return query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))


def _no_backward(ctx: Any, *grads: torch.Tensor) -> Any:
    raise RuntimeError(
        "girih::transformers_attention is for inference and has no backward pass; run under torch.no_grad()"
    )


_op.register_autograd(_no_backward)


# -------------------------------------------------------------------------------------------------- continuous batching


#: Small device tensors by their values on the host, for as long as they live: all layers of a step are given the same
#: ones.
_on_host: Any = WeakIdKeyDictionary()


def _host(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    if tensor.device.type == "cpu":
        return tensor.numpy().astype(np.int64)
    version = None if tensor.is_inference() else tensor._version
    known = _on_host.get(tensor)
    if known is not None and version is not None and known[0] == version:
        values: np.ndarray[Any, Any] = known[1]
        return values
    values = tensor.cpu().numpy().astype(np.int64)
    if version is not None:
        _on_host[tensor] = (version, values)
    return values


def _attend_continuous(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    rule: Node,
    features: Features,
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """A step of transformers' continuous batching: requests one after the other, keys as read from its cache or in its
    pages.
    """
    if attention_mask is not None:
        raise ValueError(
            "attention_mask: continuous batching gave a dense mask, which this path does not read; enter "
            "girih.integrations.transformers.continuous_batching(model)"
        )
    qo_indptr = _host(kwargs["cu_seq_lens_q"])
    kv_indptr = _host(kwargs["cu_seq_lens_k"])
    if kwargs.get("block_table") is None:
        return attend_varlen(query, key, value, qo_indptr, kv_indptr, rule, features)
    caches = (kwargs["k_cache"], kwargs["v_cache"])
    table = kwargs["block_table"][: len(qo_indptr) - 1]
    return attend_paged(query, key, value, caches, table, qo_indptr, kv_indptr, rule, features)


@contextmanager
def continuous_batching(
    model: Any, *, name: str = "girih", max_pages_per_request: int = 0, **kwargs: Any
) -> Iterator[Any]:
    """transformers' continuous batching with Girih's attention: a context that yields a started
    ContinuousBatchingManager.

        with continuous_batching(model, generation_config=config) as manager:
            manager.add_request(tokens)
            ...

    transformers admits only names that it knows to continuous batching, so the manager is made for "paged|eager" and
    the model set to `name`
    before the manager makes its cache; on leaving, the model has the implementation again that it had.
    max_pages_per_request: > 0: steps that only decode read keys in their pages instead of gathering them (models
        without sliding windows;
    requests of at most that many pages). Other arguments are those of `model.init_continuous_batching`.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("paged|eager")
    manager = None
    try:
        manager = model.init_continuous_batching(**kwargs)
        manager.continuous_batching_config.max_blocks_per_request = max_pages_per_request
        model.set_attn_implementation(name)
        manager.start()
        yield manager
    finally:
        if manager is not None:
            manager.stop(block=True)
            manager.destroy()
        model.set_attn_implementation(before)
