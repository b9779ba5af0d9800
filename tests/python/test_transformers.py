"""Generation through transformers with Girih's attention is, token for token, what eager attention generates (small
random models, f32).
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

from girih.integrations import _mask  # noqa: E402
from girih.integrations import transformers as girih_transformers  # noqa: E402

VOCAB = 96
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "head_dim": 16,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,  # tied ones repeat the last token for ever
}


def config(name: str) -> Any:
    t = transformers
    if name == "llama":
        return t.LlamaConfig(**SMALL)
    if name == "mistral":
        return t.MistralConfig(**SMALL, sliding_window=9)
    if name == "gemma2":
        return t.Gemma2Config(
            **SMALL, sliding_window=8, query_pre_attn_scalar=24, attn_logit_softcapping=3.0, final_logit_softcapping=5.0
        )
    if name == "gemma3":
        return t.Gemma3TextConfig(
            **SMALL,
            sliding_window=7,
            query_pre_attn_scalar=24,
            layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        )
    if name == "qwen3":
        return t.Qwen3Config(**SMALL)
    if name == "gpt_oss":
        return t.GptOssConfig(
            **SMALL,
            sliding_window=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"] * 2,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    if name == "deepseek_v3":
        small = {key: value for key, value in SMALL.items() if key not in ("head_dim", "num_key_value_heads")}
        return t.DeepseekV3Config(
            **small,
            num_key_value_heads=8,
            q_lora_rank=32,
            kv_lora_rank=32,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            moe_intermediate_size=32,
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
            num_experts_per_tok=2,
            first_k_dense_replace=2,
        )
    if name == "llama4":
        return t.Llama4TextConfig(
            **SMALL,
            intermediate_size_mlp=96,
            num_local_experts=2,
            interleave_moe_layer_step=2,
            attention_chunk_size=8,
            no_rope_layers=[1, 1, 0, 1],
            layer_types=["chunked_attention", "chunked_attention", "full_attention", "chunked_attention"],
        )
    raise AssertionError(name)


MODELS = ["llama", "mistral", "gemma2", "gemma3", "qwen3", "gpt_oss", "deepseek_v3", "llama4"]


@pytest.fixture(scope="module", autouse=True)
def registered() -> Any:
    girih_transformers.register()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small
    yield
    torch.set_num_threads(threads)


def make(name: str, num_layers: int | None = None) -> Any:
    torch.manual_seed(7)
    settings = config(name)
    if num_layers is not None:
        settings.num_hidden_layers, settings.layer_types = num_layers, settings.layer_types[:num_layers]
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far enough apart that greedy choices are none of rounding's
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.15 if parameter.dim() > 1 else parameter + noise * 0.3)
    return model


def prompts(lengths: list[int], side: str) -> dict[str, Any]:
    """Random prompts, padded to one length on `side`."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(3)
    length = max(lengths)
    ids = torch.randint(1, VOCAB, (len(lengths), length), generator=generator)
    mask = torch.zeros((len(lengths), length), dtype=torch.int64)
    for row, count in enumerate(lengths):
        keep = slice(length - count, length) if side == "left" else slice(0, count)
        mask[row, keep] = 1
    return {"input_ids": ids * mask, "attention_mask": mask}


def generate(model: Any, implementation: str, inputs: dict[str, Any], **kwargs: Any) -> Any:
    model.set_attn_implementation(implementation)
    return model.generate(**inputs, max_new_tokens=16, min_new_tokens=16, do_sample=False, **kwargs)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_generates_what_eager_does(name: str, cache: str) -> None:
    model = make(name)
    for lengths in ([11], [5, 12, 1, 8]):
        inputs = prompts(lengths, "left")
        expected = generate(model, "eager", inputs, cache_implementation=cache)
        assert len(torch.unique(expected[:, -16:])) > 2  # no constant answer
        assert torch.equal(generate(model, "girih", inputs, cache_implementation=cache), expected)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_padded_batches(name: str, side: str) -> None:
    model = make(name)
    inputs = prompts([13, 4, 9], side)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(**inputs).logits
        model.set_attn_implementation("girih")
        logits = model(**inputs).logits
    tokens = inputs["attention_mask"].bool()
    torch.testing.assert_close(logits[tokens], expected[tokens], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_logits_in_bf16(name: str) -> None:
    model = make(name)
    inputs = prompts([24, 17], "left")
    with torch.no_grad():
        expected = model(**inputs).logits
        model = model.to(torch.bfloat16)
        eager = model(**inputs).logits.float()
        model.set_attn_implementation("girih")
        logits = model(**inputs).logits.float()
    tokens = inputs["attention_mask"].bool()
    error = (logits - expected)[tokens].abs().mean()
    assert error <= 1.5 * (eager - expected)[tokens].abs().mean() + 1e-3


def test_chunked_prefill_and_long_windows() -> None:
    """A second forward with several queries on a cache that has moved on, past the window."""
    for name in ("mistral", "gemma3", "gpt_oss"):
        model = make(name)
        ids = prompts([40], "left")["input_ids"]
        results = []
        for implementation in ("eager", "girih"):
            model.set_attn_implementation(implementation)
            cache = transformers.DynamicCache(config=model.config)
            with torch.no_grad():
                model(input_ids=ids[:, :23], cache=cache)
                results.append(model(input_ids=ids[:, 23:], cache=cache).logits)
        torch.testing.assert_close(results[1], results[0], rtol=2e-4, atol=2e-4)


def test_masks_by_their_values() -> None:
    """4-D masks: boolean, additive, and with a bias of its own."""
    model = make("llama")
    ids = prompts([12, 12], "left")["input_ids"]
    generator = torch.Generator(torch.get_default_device()).manual_seed(5)
    visible = (torch.rand((2, 1, 12, 12), generator=generator) < 0.6) | torch.eye(12, dtype=torch.bool)
    lowest = torch.finfo(torch.float32).min
    additive = torch.where(visible, 0.0, lowest)
    biased = torch.where(visible, torch.randn((2, 1, 12, 12), generator=generator), lowest)
    with torch.no_grad():
        for given in (visible, additive, biased):
            model.set_attn_implementation("sdpa")
            expected = model(input_ids=ids, attention_mask=given).logits
            model.set_attn_implementation("girih")
            logits = model(input_ids=ids, attention_mask=given).logits
            torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)


def test_padding_in_the_middle() -> None:
    model = make("qwen3")
    inputs = prompts([12, 12], "left")
    inputs["attention_mask"][1, 4:7] = 0
    with torch.no_grad():
        expected = model(**inputs).logits
        model.set_attn_implementation("girih")
        logits = model(**inputs).logits
    tokens = inputs["attention_mask"].bool()
    torch.testing.assert_close(logits[tokens], expected[tokens], rtol=2e-4, atol=2e-4)


def test_packed_sequences() -> None:
    """Position ids that begin again: several sequences in one row."""
    model = make("llama")
    ids = prompts([12], "left")["input_ids"]
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad():
        expected = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        model.set_attn_implementation("girih")
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)


def test_bidirectional_models() -> None:
    torch.manual_seed(1)
    model = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
        )
    ).eval()
    inputs = prompts([9, 5], "right")
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(**inputs).last_hidden_state
        model.set_attn_implementation("girih")
        states = model(**inputs).last_hidden_state
    tokens = inputs["attention_mask"].bool()
    torch.testing.assert_close(states[tokens], expected[tokens], rtol=2e-4, atol=2e-4)


def test_encoder_and_decoder() -> None:
    """T5: a bias of positions, cross attention, a decoder that caches both."""
    torch.manual_seed(2)
    settings = transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(settings).eval()
    inputs = prompts([9, 5], "right")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        results = []
        for implementation in ("eager", "girih"):
            model.set_attn_implementation(implementation)
            results.append(model(**inputs, decoder_input_ids=prompts([7, 7], "left")["input_ids"]).logits)
    torch.testing.assert_close(results[1], results[0], rtol=2e-4, atol=2e-4)


def test_beams_and_drafts() -> None:
    model = make("gemma3")
    for options, lengths in (({"num_beams": 3}, [5, 12]), ({"prompt_lookup_num_tokens": 3}, [12])):
        inputs = prompts(lengths, "left")
        assert torch.equal(generate(model, "girih", inputs, **options), generate(model, "eager", inputs, **options)), (
            options
        )


def test_layers_share_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from girih.integrations import _attention

    planned: list[Any] = []
    plan = _attention.Batch.plan
    monkeypatch.setattr(
        _attention.Batch, "plan", lambda self, attention: planned.append(self.key) or plan(self, attention)
    )
    model = make("gemma3")
    model.set_attn_implementation("girih")
    inputs = prompts([6, 9], "left")
    with torch.no_grad():
        model(**inputs)
        assert len(planned) == 2  # 4 layers: one plan for the sliding ones, one for the full one
        model(**inputs)
        assert len(planned) == 4
    assert len(set(planned)) == 4


def test_refuses_what_it_does_not_do() -> None:
    model = make("llama")
    model.set_attn_implementation("girih")
    ids = prompts([5], "left")["input_ids"]
    with pytest.raises(RuntimeError, match="no backward pass"):
        model(input_ids=ids).logits.sum().backward()
    model.train()
    with pytest.raises(RuntimeError, match="inference"):
        model(input_ids=ids)
    model.eval()
    with torch.no_grad(), pytest.raises(ValueError, match="output_attentions"):
        model(input_ids=ids, output_attentions=True)
    q = torch.randn(1, 2, 3, 8)
    layer = torch.nn.Module().eval()
    with pytest.raises(ValueError, match="dropout"):
        girih_transformers.attention(layer, q, q, q, None, dropout=0.1)
    with pytest.raises(ValueError, match="float64"):
        girih_transformers.attention(layer, q.double(), q.double(), q.double(), None)
    with pytest.raises(ValueError, match="leaves open"):
        girih_transformers.attention(layer, q[:, :, :2], q, q, None, is_causal=True)
    with pytest.raises(ValueError, match="attention_mask"):
        girih_transformers.attention(layer, q, q, q, torch.ones(1, 1, 3, 4, dtype=torch.bool))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_forward(backend: str) -> None:
    model = make("gemma2", num_layers=2)
    inputs = prompts([12, 7], "left")
    with torch.no_grad():
        expected = model(**inputs, use_cache=False).logits
        model.set_attn_implementation("girih")
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        logits = compiled(**inputs, use_cache=False).logits
    tokens = inputs["attention_mask"].bool()
    torch.testing.assert_close(logits[tokens], expected[tokens], rtol=5e-4, atol=5e-4)


# transformers reads pages in place (8 a request here) for models without sliding windows only.
@pytest.mark.parametrize(("name", "pages"), [("llama", 0), ("llama", 8), ("mistral", 0), ("gpt_oss", 0)])
def test_continuous_batching(name: str, pages: int) -> None:
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model = make(name)
    lengths = [11, 3, 20, 7, 1]
    ids = prompts(lengths, "left")["input_ids"]
    requests = [ids[row, -count:].tolist() for row, count in enumerate(lengths)]
    settings = transformers.GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0)
    expected = []
    model.set_attn_implementation("eager")
    for request in requests:
        tokens = model.generate(torch.tensor([request]), max_new_tokens=12, do_sample=False)
        expected.append(tokens[0, len(request) :].tolist())
    batching = ContinuousBatchingConfig(num_blocks=32, page_size=16, max_batch_tokens=16, auto_switch_to_flash=False)
    results: dict[str, list[int]] = {}
    with (
        torch.no_grad(),
        girih_transformers.continuous_batching(
            model, generation_config=settings, continuous_batching_config=batching, max_pages_per_request=pages
        ) as manager,
    ):
        assert model.config._attn_implementation == "girih"
        for number, request in enumerate(requests):
            manager.add_request(request, request_id=str(number))
        while len(results) < len(requests):
            result = manager.get_result(timeout=60)
            assert result is not None and result.error is None, result
            if result.is_finished():
                results[result.request_id] = result.generated_tokens
    assert model.config._attn_implementation == "eager"
    assert [results[str(number)] for number in range(len(requests))] == expected


# ------------------------------------------------------------------------------------------------------ the function


def expected_attention(q: Any, k: Any, v: Any, visible: Any, scale: float, cap: Any, sinks: Any, bias: Any) -> Any:
    """In double precision; a row that sees nothing is 0."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * scale
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    if bias is not None:
        scores = scores + bias.double()
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    weights = scores.softmax(-1).nan_to_num(0.0)[..., : k.shape[2]]
    return (weights @ v).transpose(1, 2).float()


@pytest.mark.parametrize("given", ["structured", "dense", "one for all", "for each head"])
@pytest.mark.parametrize("extras", ["none", "cap and sinks", "bias", "bias for all"])
def test_the_function(given: str, extras: str) -> None:
    """Strided tensors, grouped heads, other dims of V, a cache without its first keys, padding, masks and biases."""
    from transformers import masking_utils as m

    torch.manual_seed(5)
    batch, heads, kv_heads, q_length, kv_length, kv_offset = 3, 4, 2, 5, 13, 6
    q = torch.randn(batch, q_length, heads, 24).transpose(1, 2)
    k = torch.randn(batch, kv_length, kv_heads, 24).transpose(1, 2)
    v = torch.randn(batch, kv_heads, kv_length, 40)[..., 4:36:2]
    padding = torch.rand(batch, kv_offset + kv_length) < 0.9
    padding[0, : kv_offset + 4] = False
    padding[1] = True
    padding[2, kv_offset:] = False  # sees nothing
    mask = girih_transformers.mask(
        batch_size=batch,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=kv_offset + kv_length - q_length,
        kv_offset=kv_offset,
        mask_function=m.sliding_window_causal_mask_function(7),
        attention_mask=padding,
    )
    assert isinstance(mask, _mask.StructuredMask)
    visible = mask.dense()
    if given == "one for all":
        visible = visible[1:2]
    elif given == "for each head":
        visible = visible & (torch.rand(batch, heads, 1, kv_length) < 0.7)
    cap, sinks, bias = None, None, None
    if extras == "cap and sinks":
        cap, sinks = 2.0, torch.randn(heads)
    elif extras != "none":
        bias = torch.randn(*((batch, heads) if extras == "bias" else (1, 1)), q_length, kv_length)
    expected = expected_attention(q, k, v, visible, 0.3, cap, sinks, bias)
    layer = torch.nn.Module().eval()
    arguments = {"scaling": 0.3, "softcap": cap, "s_aux": sinks, "position_bias": bias}
    for _ in range(2):  # planned, and planned already
        out, weights = girih_transformers.attention(
            layer, q, k, v, mask if given == "structured" else visible, **arguments
        )
        assert weights is None and out.is_contiguous()
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_masks_that_take_turns() -> None:
    """One schedule serves masks of equal form; a plan is used for its own mask only, in every thread."""
    from concurrent.futures import ThreadPoolExecutor

    torch.manual_seed(6)
    q, k, v = torch.randn(2, 4, 6, 16), torch.randn(2, 2, 6, 16), torch.randn(2, 2, 6, 16)
    masks = []
    for begin in (1, 3, 2):
        padding = torch.ones(2, 6, dtype=torch.bool)
        padding[1, :begin] = False
        masks.append(girih_transformers.mask(batch_size=2, q_length=6, kv_length=6, attention_mask=padding))
    expected = [expected_attention(q, k, v, mask.dense(), 0.25, None, None, None) for mask in masks]
    layer = torch.nn.Module().eval()

    def turns(order: list[int]) -> None:
        for i in order * 10:
            out, _ = girih_transformers.attention(layer, q, k, v, masks[i], scaling=0.25)
            torch.testing.assert_close(out, expected[i], rtol=1e-5, atol=1e-5)

    turns([0, 1, 1, 2, 0])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(turns, ([0, 1, 2], [2, 0, 1])))


def test_no_mask() -> None:
    q, k = torch.randn(2, 4, 6, 16), torch.randn(2, 2, 6, 16)
    layer = torch.nn.Module().eval()
    every = torch.ones(6, 6, dtype=torch.bool)
    for causal, window, visible in ((True, None, every.tril()), (False, None, every), (True, 2, every.tril().triu(-1))):
        out, _ = girih_transformers.attention(layer, q, k, k, None, is_causal=causal, sliding_window=window)
        expected = expected_attention(q, k, k, visible, 0.25, None, None, None)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    one, _ = girih_transformers.attention(layer, q[:, :, :1], k, k, None, is_causal=True)
    torch.testing.assert_close(one, expected_attention(q[:, :, :1], k, k, every[:1], 0.25, None, None, None))
    assert girih_transformers.attention(layer, q[:0], k[:0], k[:0], None)[0].shape == (0, 6, 4, 16)


# --------------------------------------------------------------------------------------------------------- traced masks


def test_traced_masks_are_what_transformers_makes() -> None:
    from transformers import masking_utils as m

    spans = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1], [0, 0, 0, 0, -1, -1, 2, 2]])
    functions = {
        "causal": m.causal_mask_function,
        "bidirectional": m.bidirectional_mask_function,
        "window": m.sliding_window_causal_mask_function(3),
        "both sides": m.sliding_window_bidirectional_mask_function(2),
        "chunks": m.chunked_causal_mask_function(3, torch.tensor([0, 2])),
        "spans": m.or_masks(m.causal_mask_function, m.blockwise_overlay(spans)),
        "arithmetic": lambda b, h, q, kv: ((q + kv) % 3 == 0) | (abs(q - kv) < 2) & (kv != 1),
        "reflected": lambda b, h, q, kv: (7 - kv >= 2) & ~(2 * q < kv + 1) & (torch.tensor(5) > kv),
    }
    for name, function in functions.items():
        rule, tensors = _mask.trace(function, batch=2, q_end=8, kv_end=8, device=torch.device("cpu"))
        index = [torch.arange(n).view([-1 if i == axis else 1 for i in range(3)]) for axis, n in enumerate((2, 8, 8))]
        values = torch.as_tensor(evaluate(rule, dict(zip(("batch", "q", "kv"), index, strict=True)), tensors))
        expected = m.sdpa_mask(2, 8, 8, mask_function=function, allow_is_causal_skip=False)
        assert torch.equal(values.expand(2, 8, 8), expected[:, 0]), name


def evaluate(node: Any, index: dict[str, Any], tensors: list[Any]) -> Any:
    import operator

    names = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne", "&": "and_", "|": "or_", "~": "inv"}
    names |= {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "abs": "abs"}
    kind, *rest = node
    if kind in index:
        return index[kind]
    if kind == "int":
        return rest[0]
    if kind in ("true", "false"):
        return torch.tensor(kind == "true")
    if kind in ("array", "bits"):
        return tensors[rest[0]][tuple(index[axis] for axis in rest[1])]
    return getattr(operator, names[kind])(*(evaluate(operand, index, tensors) for operand in rest))


def test_untraceable_masks_stay_dense() -> None:
    table = torch.rand(8, 8) < 0.5
    for function in (
        lambda b, h, q, kv: table[q, kv] & (kv <= torch.tensor([1])),
        lambda b, h, q, kv: table[q - 1, kv],
        lambda b, h, q, kv: torch.where(kv <= q, True, False),
        lambda b, h, q, kv: kv < 2.5,
    ):
        with pytest.raises(_mask.Untraceable):
            _mask.trace(function, batch=1, q_end=8, kv_end=8, device=torch.device("cpu"))
    values = girih_transformers.mask(
        batch_size=1, q_length=8, kv_length=8, mask_function=lambda b, h, q, kv: torch.where(kv <= q, True, False)
    )
    assert not isinstance(values, _mask.StructuredMask)
    assert torch.equal(values[0, 0], torch.ones(8, 8, dtype=torch.bool).tril())


def test_structured_mask_is_a_tensor() -> None:
    """A model that looks at its mask gets its values."""
    padding = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 1, 0]], dtype=torch.bool)
    mask = girih_transformers.mask(batch_size=2, q_length=6, kv_length=6, attention_mask=padding)
    assert isinstance(mask, _mask.StructuredMask)
    assert mask.shape == (2, 1, 6, 6) and mask.dtype == torch.bool and mask.contiguous() is mask
    expected = torch.ones(6, 6, dtype=torch.bool).tril() & padding[:, None, None, :]
    assert torch.equal(mask[:, :, :, :4], expected[:, :, :, :4])
    assert torch.equal(~mask, ~expected)
    assert mask.structure.kv_begin.tolist() == [2, 0] and mask.structure.kv_end.tolist() == [6, 5]
    assert mask.structure.holes is not None


@pytest.mark.parametrize("inference", [False, True])
def test_a_mask_that_is_written_to(inference: bool) -> None:
    """Writing into a mask, or into a view of it, counts."""
    torch.manual_seed(8)
    layer = torch.nn.Module().eval()
    with torch.inference_mode(inference):
        q = torch.randn(1, 2, 6, 16)
        for write in (
            lambda mask: mask.logical_or_(torch.eye(6, dtype=torch.bool).flip(0)),
            lambda mask: mask[:, :, 2:].fill_(True),
            lambda mask: mask.__setitem__((0, 0, 1), torch.tensor([True, False, True, False, True, False])),
        ):
            padding = torch.ones(1, 6, dtype=torch.bool)
            mask = girih_transformers.mask(batch_size=1, q_length=6, kv_length=6, attention_mask=padding)
            expected = girih_transformers.mask(batch_size=1, q_length=6, kv_length=6).dense().clone()
            write(expected)
            girih_transformers.attention(layer, q, q, q, mask)  # planned by its structure
            write(mask)
            out, _ = girih_transformers.attention(layer, q, q, q, mask)
            reference = expected_attention(q, q, q, expected, 0.25, None, None, None)
            torch.testing.assert_close(out, reference, rtol=1e-5, atol=1e-5)
