"""Customised attention variants by FlashInfer's names. Girih compiles in process when it first schedules, so nothing is built here."""

from . import utils as utils
from .attention import (
    gen_customize_batch_attention_module,
    gen_customize_batch_decode_module,
    gen_customize_batch_pod_module,
    gen_customize_batch_prefill_module,
    gen_customize_pod_module,
    gen_customize_single_decode_module,
    gen_customize_single_prefill_module,
)

__all__ = [
    "gen_customize_batch_attention_module",
    "gen_customize_batch_decode_module",
    "gen_customize_batch_pod_module",
    "gen_customize_batch_prefill_module",
    "gen_customize_pod_module",
    "gen_customize_single_decode_module",
    "gen_customize_single_prefill_module",
]
