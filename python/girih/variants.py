"""The built-in variants: ordinary expressions, for use as they are or combined with `&` and `|`.

girih.Variant(mask=girih.variants.causal() & (girih.variants.window(1023) | girih.variants.first_tokens(4)))
"""

from ._girih.variants import (
    alibi,
    alibi_slopes,
    causal,
    causal_with_bidirectional_spans,
    chunked_local,
    custom_mask,
    document,
    first_tokens,
    multi_item,
    prefix_lm,
    rms_norm,
    sigmoid_logits,
    sinks,
    sliding_window,
    soft_cap,
    speculative_tree,
    window,
)

__all__ = [
    "alibi",
    "alibi_slopes",
    "causal",
    "causal_with_bidirectional_spans",
    "chunked_local",
    "custom_mask",
    "document",
    "first_tokens",
    "multi_item",
    "prefix_lm",
    "rms_norm",
    "sigmoid_logits",
    "sinks",
    "sliding_window",
    "soft_cap",
    "speculative_tree",
    "window",
]
