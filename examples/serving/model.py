"""A Llama over a paged KV cache: torch multiplies matrices, Girih does all the rest.

One forward pass takes the new tokens of all requests as rows, whatever each is doing: a chunk of a prompt, one token. Where they are in
the cache stands in a `Batch`, which the engine makes each step; `Attention.plan()` has seen it before the first layer.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import girih

Weights = dict[str, torch.Tensor]
Linear = tuple[torch.Tensor, torch.Tensor | None]  # weight and bias


@dataclass(frozen=True)
class Config:
    """What of a Hugging Face config.json matters here."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_len: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_linear: float = 1.0
    rope_llama3: dict[str, float] | None = None
    tie_word_embeddings: bool = False
    eos_tokens: frozenset[int] = frozenset()
    dtype: torch.dtype = torch.float32

    @staticmethod
    def from_dict(c: dict[str, Any]) -> Config:
        """Raises ValueError for an architecture that is not Llama's."""

        def require(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
            if value not in allowed:
                raise ValueError(
                    f"config.json: {field}={value!r}; this example takes {' or '.join(map(repr, allowed))}"
                )

        require("model_type", c.get("model_type"), ("llama",))
        require("hidden_act", c.get("hidden_act", "silu"), ("silu",))
        # transformers 5 has rope_parameters; before, rope_theta and rope_scaling stood side by side.
        rope = c.get("rope_parameters") or {**(c.get("rope_scaling") or {}), "rope_theta": c.get("rope_theta", 10000.0)}
        kind = rope.get("rope_type", rope.get("type", "default"))
        require("rope_type", kind, ("default", "linear", "llama3"))
        eos = c.get("eos_token_id")
        heads = c["num_attention_heads"]
        dtype = c.get("dtype") or c.get("torch_dtype") or "float32"
        require("dtype", dtype, ("float32", "bfloat16", "float16"))
        return Config(
            vocab_size=c["vocab_size"],
            hidden_size=c["hidden_size"],
            intermediate_size=c["intermediate_size"],
            num_layers=c["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=c.get("num_key_value_heads") or heads,
            head_dim=c.get("head_dim") or c["hidden_size"] // heads,
            max_len=c.get("max_position_embeddings", 2048),
            rms_norm_eps=c.get("rms_norm_eps", 1e-6),
            rope_theta=rope.get("rope_theta", 10000.0),
            rope_linear=rope["factor"] if kind == "linear" else 1.0,
            rope_llama3=rope if kind == "llama3" else None,
            tie_word_embeddings=c.get("tie_word_embeddings", False),
            eos_tokens=frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos),
            dtype=getattr(torch, dtype),
        )

    def rope_table(self, num_positions: int, like: torch.Tensor) -> torch.Tensor:
        llama31 = None
        if (r := self.rope_llama3) is not None:
            llama31 = girih.Rope.Llama31(
                factor=r["factor"],
                low_freq_factor=r["low_freq_factor"],
                high_freq_factor=r["high_freq_factor"],
                old_context_len=r["original_max_position_embeddings"],
            )
        table: torch.Tensor = girih.rope_cos_sin(
            self.head_dim, num_positions, theta=self.rope_theta, linear=self.rope_linear, llama31=llama31, like=like
        )
        return table


@dataclass
class Batch:
    """The tokens of one step. Index arrays are host memory; those of a GPU's copy are tensors there."""

    tokens: torch.Tensor  # int64 [rows]
    positions: torch.Tensor  # int32 [rows]
    qo_indptr: np.ndarray  # [requests + 1]: rows of each request
    kv_len: np.ndarray  # [requests], the new tokens included
    kv_indptr: np.ndarray  # [requests + 1] offsets into kv_indices
    kv_indices: np.ndarray  # int32: the pages of each request
    segment_indices: list[torch.Tensor]  # the page ids of each planned segment; the last holds the requests' own pages
    last_rows: torch.Tensor  # int64: rows whose logits are wanted


@dataclass
class Layer:
    norm: torch.Tensor
    qkv: Linear
    o: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Llama:
    """Weights on their device, the KV cache of each layer, and the forward pass."""

    def __init__(
        self,
        config: Config,
        weights: Weights,
        *,
        num_pages: int,
        page_size: int,
        max_len: int,
        device: str,
        num_threads: int = 0,
    ) -> None:
        self.config = c = config
        self.device = torch.device(device)
        self.context = girih.Context(device, num_workers=num_threads if device == "cpu" else 0)

        def take(name: str) -> torch.Tensor:
            if name not in weights:
                raise ValueError(f"weights: {name} is missing")
            return weights[name].to(self.device, c.dtype)

        def linear(prefix: str, *names: str) -> Linear:
            """Of several the rows after each other: one product in place of three."""
            weight = torch.cat([take(f"{prefix}.{name}.weight") for name in names])
            if f"{prefix}.{names[0]}.bias" not in weights:
                return weight, None
            return weight, torch.cat([take(f"{prefix}.{name}.bias") for name in names])

        self.embedding = take("model.embed_tokens.weight")
        self.norm = take("model.norm.weight")
        self.head = self.embedding if c.tie_word_embeddings else take("lm_head.weight")
        self.layers: list[Layer] = []
        for at in (f"model.layers.{i}" for i in range(c.num_layers)):
            self.layers.append(
                Layer(
                    norm=take(f"{at}.input_layernorm.weight"),
                    qkv=linear(f"{at}.self_attn", "q_proj", "k_proj", "v_proj"),
                    o=linear(f"{at}.self_attn", "o_proj"),
                    mlp_norm=take(f"{at}.post_attention_layernorm.weight"),
                    gate_up=linear(f"{at}.mlp", "gate_proj", "up_proj"),
                    down=linear(f"{at}.mlp", "down_proj"),
                )
            )
        self.cos_sin = c.rope_table(max_len, self.embedding)
        shape = (c.num_layers, 2, num_pages, page_size, c.num_kv_heads, c.head_dim)
        cache = torch.zeros(shape, dtype=c.dtype, device=self.device)
        self.stores = [girih.KvStore.paged(layer[0], layer[1]) for layer in cache]

    def attention_spec(self) -> girih.AttentionSpec:
        c = self.config
        return girih.AttentionSpec(
            num_qo_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim_qk=c.head_dim,
            q_dtype=c.dtype,
            variant=girih.Variant(mask=girih.variants.causal()),
        )

    @torch.inference_mode()
    def forward(self, batch: Batch, attention: girih.Attention) -> torch.Tensor:
        """Appends the step's keys and values to the cache; returns logits [last_rows, vocab_size]."""
        c, context = self.config, self.context
        rows, q_size, kv_size = len(batch.tokens), c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        residual = F.embedding(batch.tokens, self.embedding)
        x = girih.rms_norm(residual, self.layers[0].norm, eps=c.rms_norm_eps, context=context)
        for i, layer in enumerate(self.layers):
            qkv = F.linear(x, *layer.qkv)
            parts = torch.split(qkv, [q_size, kv_size, kv_size], dim=-1)
            q, k, v = (part.view(rows, -1, c.head_dim) for part in parts)
            self._rope_append(i, batch, attention, q, k, v)
            data = [girih.SegmentData(self.stores[i], indices) for indices in batch.segment_indices]
            x = F.linear(attention.run(q, data).view(rows, q_size), *layer.o)
            # The residual stream is updated in place by the norm that reads it.
            x = self._norm(x, layer.mlp_norm, residual)
            x = girih.silu_and_mul(F.linear(x, *layer.gate_up), context=context)
            x = F.linear(x, *layer.down)
            if i + 1 < c.num_layers:
                x = self._norm(x, self.layers[i + 1].norm, residual)
        x = self._norm(x[batch.last_rows], self.norm, residual[batch.last_rows])
        return F.linear(x, self.head)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = girih.rms_norm(
            x, weight, residual=residual, residual_out=residual, eps=self.config.rms_norm_eps, context=self.context
        )
        return normed

    def _rope_append(
        self, i: int, b: Batch, attention: girih.Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Rotates q in place; k, rotated, and v go to their places in layer i's cache."""
        store, table = self.stores[i], self.cos_sin
        if self.device.type == "cuda":  # where the plan, already on the device, says which places
            girih.rope_append_planned(
                attention,
                store,
                q,
                k,
                v,
                table,
                segment=len(b.segment_indices) - 1,
                kv_indices=b.segment_indices[-1],
                positions=b.positions,
                inplace=True,
            )
            return
        girih.rope_append(
            store,
            q,
            k,
            v,
            table,
            append_indptr=b.qo_indptr,
            kv_len=b.kv_len,
            kv_indptr=b.kv_indptr,
            kv_indices=b.kv_indices,
            positions=b.positions,
            inplace=True,
            context=self.context,
        )


def load(folder: Path) -> tuple[Config, Weights]:
    """A local folder as Hugging Face lays it out: config.json and *.safetensors."""
    from safetensors.torch import load_file

    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder}: has no config.json")
    config = json.loads((folder / "config.json").read_text())
    if (folder / "generation_config.json").is_file():
        eos = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id")
        config["eos_token_id"] = config.get("eos_token_id") if eos is None else eos
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: has no *.safetensors")
    weights: Weights = {}
    for file in files:
        weights.update(load_file(file))
    return Config.from_dict(config), weights


def random_model(vocab_size: int, seed: int = 0) -> tuple[Config, Weights]:
    """A small Llama of random weights: it babbles."""
    c = Config(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=768,
        num_layers=4,
        num_heads=8,
        num_kv_heads=2,
        head_dim=32,
        max_len=2048,
    )
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    weights = {
        "model.embed_tokens.weight": normal(c.vocab_size, c.hidden_size),
        "model.norm.weight": torch.ones(c.hidden_size),
        "lm_head.weight": normal(c.vocab_size, c.hidden_size),
    }
    for i in range(c.num_layers):
        at = f"model.layers.{i}."
        weights |= {
            at + "input_layernorm.weight": torch.ones(c.hidden_size),
            at + "post_attention_layernorm.weight": torch.ones(c.hidden_size),
            at + "self_attn.q_proj.weight": normal(q_size, c.hidden_size),
            at + "self_attn.k_proj.weight": normal(kv_size, c.hidden_size),
            at + "self_attn.v_proj.weight": normal(kv_size, c.hidden_size),
            at + "self_attn.o_proj.weight": normal(c.hidden_size, q_size),
            at + "mlp.gate_proj.weight": normal(c.intermediate_size, c.hidden_size),
            at + "mlp.up_proj.weight": normal(c.intermediate_size, c.hidden_size),
            at + "mlp.down_proj.weight": normal(c.hidden_size, c.intermediate_size),
        }
    return c, weights
