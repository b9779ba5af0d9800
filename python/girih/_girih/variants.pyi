"""
The built-in variants: ordinary expressions, for use as they are or combined.
"""

import girih._girih


def causal() -> girih._girih.Expr:
    """kv_pos <= q_pos."""

def window(left: int, right: int = 0) -> girih._girih.Expr:
    """
    q_pos - left <= kv_pos <= q_pos + right; a negative bound is open. `left` counts keys before self (FlashInfer's window_left).
    """

def sliding_window(size: int) -> girih._girih.Expr:
    """
    At most `size` keys including self, causal (Hugging Face's sliding_window).
    """

def chunked_local(size: int) -> girih._girih.Expr:
    """
    Keys of the same chunk of `size` positions, causal (Llama 4's chunked local attention).
    """

def first_tokens(size: int) -> girih._girih.Expr:
    """
    The first `size` keys stay visible (StreamingLLM); combine with window by | and with causal by &.
    """

def prefix_lm(time: str = 'plan') -> girih._girih.Expr:
    """
    Causal, and every key below position prefix_len[request] (array "prefix_len", i32).
    """

def document(time: str = 'plan') -> girih._girih.Expr:
    """
    Keys whose document id equals the query's (array "document_id", i32, indexed by position: one id per position of one sequence).
    """

def custom_mask(time: str = 'run') -> girih._girih.Expr:
    """
    Bits "custom_mask": for each request, row-major [q_len, kv_len] starting at bit custom_mask_start[request] (i64 array).
    """

def speculative_tree(time: str = 'run') -> girih._girih.Expr:
    """
    Draft-tree verification: the committed prefix is visible, of the q_len draft tokens (the last q_len keys) those whose bit is set in
    "tree_mask": row-major [q_len, q_len] from bit tree_mask_start[request] (i64 array).
    """

def multi_item(time: str = 'plan') -> girih._girih.Expr:
    """
    Multi-item scoring: causal; a token of an item sees the prefix (positions below prefix_len[request], i32) and its own item
    ("item_id", i32 by position).
    """

def causal_with_bidirectional_spans(time: str = 'plan') -> girih._girih.Expr:
    """
    Causal, plus both directions within a span: positions with equal "span_id" (i32 by position, 0 = none) see each other.
    """

def soft_cap(cap: float) -> girih._girih.Expr:
    """Logits: cap * tanh(score / cap) with a constant cap."""

def alibi() -> girih._girih.Expr:
    """
    Logits: score + slope[q_head] * (kv_pos - q_pos), array "alibi_slopes" (f32).
    """

def alibi_slopes(num_heads: int) -> list[float]:
    """
    The standard slopes of ALiBi (Press et al. 2022) for `num_heads` heads, also when it is not a power of two.
    """

def sigmoid_logits(bias: float) -> girih._girih.Expr:
    """
    Logits of sigmoid attention (Ramapuram et al. 2024): sigmoid(score + bias); use with softmax=False.
    """

def sinks() -> girih._girih.Expr:
    """
    Sink: learned logits per query head, array "sinks" (f32), as gpt-oss has.
    """

def rms_norm(weight_name: str, eps: float) -> girih._girih.Expr:
    """
    Query or key: x * rsqrt(mean_square + eps) * weight[dim], array `weight_name` (f32): QK-norm.
    """
