"""What the backends are to reach, as data: bars over the rows of a result file. bench/table.py --bars prints them.

A bar is a list of cases, what is measured of a row (and of the file's other rows, by case), and a limit. On the CPU ratios of two cases come
from runs in turns (a row's "twins"), on a GPU, whose clock is steady, from two rows. Those to another library come from the row's "peers".
"""

import fnmatch


class Missing(Exception):
    """The results lack what the bar is about."""


def roofline(row, _):
    return row["roofline_fraction"]


def peak(row, _):
    """Part of the peak of the widest instruction that the types allow."""
    return row["flops"] / row["seconds"] / row["peak_flops"]


def twin_of(row, name):
    for twin in row.get("twins", []):
        if fnmatch.fnmatchcase(twin["case"], name):
            return twin
    raise Missing(f"no twin {name}")


def speedup_over(twin):
    return lambda row, _: twin_of(row, twin)["ratio"]


def time_over(twin):
    return lambda row, _: 1 / twin_of(row, twin)["ratio"]


def fraction_over(twin):
    return lambda row, _: row["roofline_fraction"] / twin_of(row, twin)["roofline_fraction"]


def pair_cost_over(twin):
    """Time per visible (row, key) pair over the twin's."""
    def value(row, _):
        other = twin_of(row, twin)
        return other["flops"] / row["flops"] / other["ratio"]
    return value


def speedup_over_peer(*kinds):
    """Over the fastest of the peers whose name ends in one of these kinds."""
    def value(row, _):
        ratios = [peer["ratio"] for peer in row.get("peers", []) if peer["name"].split(" ", 2)[-1] in kinds]
        if not ratios:
            raise Missing("no peer")
        return min(ratios)
    return value


def speedup_over_one_worker(row, _):
    if "one_worker" not in row:
        raise Missing("not timed with one worker")
    return row["one_worker"]["ratio"]


def teraflops(row, _):
    return row["flops"] / row["seconds"] / 1e12


def terabytes(row, _):
    return row["bytes"] / row["seconds"] / 1e12


def plan_microseconds(row, _):
    return 1e6 * (row["plan_seconds"] + row["upload_seconds"])


def host_microseconds(row, _):
    return 1e6 * row["host_seconds"]


def time_of_row_over(case, per_pair=False):
    """Time over another row's; `per_pair`: for each visible (row, key) pair."""
    def value(row, rows):
        if case not in rows:
            raise Missing(f"no row {case}")
        other = rows[case]
        return row["seconds"] / other["seconds"] * (other["flops"] / row["flops"] if per_pair else 1)
    return value


def speedup_over_row(case):
    return lambda row, rows: 1 / time_of_row_over(case)(row, rows)


TORCH = speedup_over_peer("SDPA", "FlexAttention")
TORCH_ANY = speedup_over_peer("SDPA", "FlexAttention", "SDPA heads as rows", "SDPA per request")
SIZES = ("b2-kv4096", "b16-kv2048")


def sizes(stem):
    return [f"{stem}-{size}" for size in SIZES]


# (what, cases, measured value, ">=" or "<=", limit, how to print)
PERCENT, TIMES, TERAFLOPS, MICROSECONDS = "{:.0%}", "{:.2f}x", "{:.0f} TF/s", "{:.0f} us"
BARS = (
    ("part of roofline: decode MHA bf16", sizes("decode-mha-bf16"), roofline, ">=", 0.85, PERCENT),
    ("part of roofline: decode GQA bf16", sizes("decode-gqa-bf16"), roofline, ">=", 0.60, PERCENT),
    ("part of roofline: decode GQA f32", sizes("decode-gqa-f32"), roofline, ">=", 0.70, PERCENT),
    ("part of roofline: decode MLA", ["decode-mla-bf16-b2-kv2048", "decode-mla-bf16-b16-kv2048"], roofline, ">=", 0.55, PERCENT),
    ("tokens/s of fp8 KV over bf16, MHA", sizes("decode-mha-e4m3"), speedup_over("decode-mha-bf16-*"), ">=", 1.3, TIMES),
    ("tokens/s of int8 KV over bf16, MHA", sizes("decode-mha-i8"), speedup_over("decode-mha-bf16-*"), ">=", 1.3, TIMES),
    ("over PyTorch: decode GQA bf16", sizes("decode-gqa-bf16"), TORCH, ">=", 20, TIMES),
    ("over PyTorch with heads as rows: decode GQA bf16", sizes("decode-gqa-bf16"), TORCH_ANY, None, None, TIMES),
    ("over PyTorch: decode GQA f32", sizes("decode-gqa-f32"), TORCH, ">=", 4, TIMES),
    ("over PyTorch with heads as rows: decode GQA f32", sizes("decode-gqa-f32"), TORCH_ANY, None, None, TIMES),
    ("fraction of skewed over uniform lengths", ["decode-mha-bf16-skewed-b32", "decode-gqa-bf16-skewed-b32"],
     fraction_over("decode-*-uniform-b32"), ">=", 0.9, TIMES),
    ("over PyTorch's padded, masked SDPA: skewed", ["decode-gqa-bf16-skewed-b32"], speedup_over_peer("SDPA"), ">=", 100, TIMES),
    ("over PyTorch's fastest way: skewed", ["decode-gqa-bf16-skewed-b32"], TORCH_ANY, None, None, TIMES),
    ("part of bf16 dot peak: prefill causal", ["prefill-bf16-causal-2048", "prefill-bf16-causal-8192"], peak, ">=", 0.55, PERCENT),
    ("over PyTorch's SDPA: prefill causal bf16", ["prefill-bf16-causal-2048", "prefill-bf16-causal-8192"], speedup_over_peer("SDPA"), ">=",
     1.5, TIMES),
    ("over PyTorch's SDPA: prefill causal f32", ["prefill-f32-causal-2048", "prefill-f32-causal-8192"], speedup_over_peer("SDPA"), ">=", 1.15,
     TIMES),
    ("time of causal over full", ["prefill-bf16-causal-8192"], time_over("prefill-bf16-full-8192"), "<=", 0.56, TIMES),
    ("time of window 1024 over causal, 16k", ["prefill-bf16-window1024-16384"], time_over("prefill-bf16-causal-16384"), "<=", 0.2, TIMES),
    ("time of 8 documents over full", ["prefill-bf16-document8-2048", "prefill-bf16-document8-8192"], time_over("prefill-bf16-full-*"), "<=",
     0.2, TIMES),
    ("cascade over flat, 4096 shared", ["prefix4096-gqa-bf16-b16-cascade"], speedup_over("*-flat"), ">=", 3, TIMES),
    ("two workers over one",
     ["prefill-bf16-causal-2048", "prefill-bf16-full-2048", "prefill-f32-causal-2048", "prefill-f32-full-2048"], speedup_over_one_worker, ">=",
     1.85, TIMES),
    ("time per pair over plain causal",
     ["prefill-bf16-softcap-2048", "prefill-bf16-alibi-2048", "prefill-bf16-document8-2048", "prefill-bf16-document8-8192",
      "prefill-bf16-window1024-16384"], pair_cost_over("prefill-bf16-causal-*"), "<=", 1.15, TIMES),
)


FA2 = speedup_over_peer("fa2")
FLEX = speedup_over_peer("FlexAttention")
PLAIN_PREFILL = "prefill-causal-8192"
SCORED = ("softcap", "alibi", "sink")
GPU_BARS = (
    ("over fa2: decode", ["decode-b64-kv8192"], FA2, ">=", 0.98, TIMES),
    ("over fa2: decode", ["decode-b32-kv4096", "decode-b16-kv8192", "decode-b1-kv131072"], FA2, ">=", 1.0, TIMES),
    ("over fa2: decode of short requests", ["decode-b64-kv1024"], FA2, ">=", 1.08, TIMES),
    ("over fa2: decode of uniform lengths", ["decode-b256-uniform1024"], FA2, ">=", 1.02, TIMES),
    ("over fa2: decode of uniform lengths", ["decode-b64-uniform4096"], FA2, ">=", 1.06, TIMES),
    ("over fa2: decode of Zipf's lengths", ["decode-b64-zipf4096"], FA2, ">=", 3.1, TIMES),
    ("over xqa: decode of Zipf's lengths", ["decode-b64-zipf4096"], speedup_over_peer("xqa"), ">=", 2.3, TIMES),
    ("over fa2: decode of Zipf's lengths", ["decode-b16-zipf1024"], FA2, ">=", 1.15, TIMES),
    ("over fa2: decode of one request", ["decode-b1-kv8192"], FA2, ">=", 1.2, TIMES),
    ("time of page 1 over page 16: decode", ["decode-b32-kv4096-page1"], time_of_row_over("decode-b32-kv4096"), "<=", 1.05, TIMES),
    ("over fa2: decode with fp8 KV", ["decode-b64-kv8192-e4m3"], FA2, ">=", 1.35, TIMES),
    ("speed of fp8 KV over bf16: decode", ["decode-b64-kv8192-e4m3"], speedup_over_row("decode-b64-kv8192"), ">=", 1.6, TIMES),
    ("time of batch_invariant: decode", ["decode-b64-kv8192-invariant"], time_of_row_over("decode-b64-kv8192"), "<=", 1.1, TIMES),
    ("time of batch_invariant: decode", ["decode-b64-zipf4096-invariant"], time_of_row_over("decode-b64-zipf4096"), "<=", 1.1, TIMES),
    ("over cascade: shared prefix", ["prefix8192-b64-cascade"], speedup_over_peer("cascade"), ">=", 1.8, TIMES),
    ("over fa2: append of 16", ["append16-b16-kv4096"], FA2, ">=", 1.3, TIMES),
    ("TFLOP/s: prefill causal, mma", [f"{PLAIN_PREFILL}-mma"], teraflops, ">=", 380, TERAFLOPS),
    ("over fa2: prefill causal", [PLAIN_PREFILL, f"{PLAIN_PREFILL}-mma"], FA2, ">=", 1.07, TIMES),
    ("over FlexAttention: prefill causal, window", [PLAIN_PREFILL, "prefill-window1024-b4-8192"], FLEX, ">=", 1.05, TIMES),
    ("over fa2: prefill window", ["prefill-window1024-b4-8192", "prefill-window1024-b4-8192-mma"], FA2, ">=", 1.05, TIMES),
    ("time of page 16 over ragged: prefill", ["prefill-causal-8192-page16"], time_of_row_over(PLAIN_PREFILL), "<=", 1.05, TIMES),
    ("time of page 16 over ragged: prefill, mma", [f"{PLAIN_PREFILL}-page16-mma"], time_of_row_over(f"{PLAIN_PREFILL}-mma"), "<=", 1.05,
     TIMES),
    ("TFLOP/s: prefill, Hopper", ["prefill-causal-8192", "prefill-causal-8192-page16"], teraflops, ">=", 650, TERAFLOPS),
    ("TFLOP/s: prefill, Hopper", ["prefill-causal-16384"], teraflops, ">=", 680, TERAFLOPS),
    ("TFLOP/s: prefill, Hopper", ["prefill-full-16384"], teraflops, ">=", 700, TERAFLOPS),
    ("TFLOP/s: prefill, Hopper", ["prefill-causal-b8-2048"], teraflops, ">=", 570, TERAFLOPS),
    ("TFLOP/s: prefill, Hopper", ["prefill-window1024-b4-8192"], teraflops, ">=", 560, TERAFLOPS),
    ("TFLOP/s: prefill, Hopper", ["append256-b16-kv4096"], teraflops, ">=", 600, TERAFLOPS),
    ("TFLOP/s: prefill, Hopper", ["prefill-d64-full-16384"], teraflops, ">=", 500, TERAFLOPS),
    ("TFLOP/s: prefill, Hopper", ["prefill-d64-causal-16384"], teraflops, ">=", 470, TERAFLOPS),
    ("TFLOP/s: prefill, Hopper", ["prefill-d256-full-16384"], teraflops, ">=", 740, TERAFLOPS),
    ("TFLOP/s: prefill, Hopper", ["prefill-d256-causal-16384"], teraflops, ">=", 620, TERAFLOPS),
    ("TFLOP/s: prefill of e4m3, Hopper", ["prefill-causal-16384-fp8"], teraflops, ">=", 880, TERAFLOPS),
    ("TFLOP/s: prefill of e4m3, Hopper", ["prefill-causal-16384-fp8-page16"], teraflops, ">=", 850, TERAFLOPS),
    ("time of page 16 over ragged: prefill, Hopper", ["prefill-causal-8192-page16"], time_of_row_over(PLAIN_PREFILL), "<=", 1.03, TIMES),
    ("time of page 1 over ragged: prefill, Hopper", ["prefill-causal-8192-page1"], time_of_row_over(PLAIN_PREFILL), "<=", 1.08, TIMES),
    ("TFLOP/s: MLA decode, 128 heads", ["mla128-b64-kv5120", "mla128-b128-kv4096"], teraflops, ">=", 630, TERAFLOPS),
    ("TB/s: MLA decode, 16 heads", ["mla16-b64-kv5120"], terabytes, ">=", 4.0, "{:.2f} TB/s"),
    ("time of page 1 over page 64: MLA", ["mla128-b64-kv5120-page1"], time_of_row_over("mla128-b64-kv5120"), "<=", 1.05, TIMES),
    ("TFLOP/s: sparse MLA, 128 heads", ["mla128-sparse2048-b128", "mla128-sparse2048-b128-tokens656-wgmma"], teraflops, ">=", 420, TERAFLOPS),
    ("over fa2: MLA decode, 128 heads", ["mla128-b64-kv5120", "mla128-b64-kv5120-mma"], FA2, ">=", 1.2, TIMES),
    ("over fa3: MLA decode, 16 heads", ["mla16-b64-kv5120", "mla16-b64-kv5120-mma"], speedup_over_peer("fa3"), ">=", 0.9, TIMES),
    ("time per pair over plain: prefill", [f"{PLAIN_PREFILL}-{variant}" for variant in SCORED],
     time_of_row_over(PLAIN_PREFILL, per_pair=True), "<=", 1.1, TIMES),
    ("time per pair over plain: prefill, mma", [f"{PLAIN_PREFILL}-{variant}-mma" for variant in SCORED],
     time_of_row_over(f"{PLAIN_PREFILL}-mma", per_pair=True), "<=", 1.1, TIMES),
    # The same pairs of queries and keys without a mask: the documents as requests.
    ("time over full: documents", [f"{PLAIN_PREFILL}-document"], time_of_row_over("prefill-full-b8-1024"), "<=", 1.1, TIMES),
    ("time over full: documents, mma", [f"{PLAIN_PREFILL}-document-mma"], time_of_row_over("prefill-full-b8-1024-mma"), "<=", 1.1, TIMES),
    ("time over plain: decode", ["decode-b64-kv8192-softcap", "decode-b64-kv8192-sink"], time_of_row_over("decode-b64-kv8192"), "<=", 1.1,
     TIMES),
    # A mask of packed bits is unknown to the planner, so that all keys are visited, as in a full prefill.
    ("time over full: packed mask", ["prefill-packed-causal-8192"], time_of_row_over("prefill-full-8192"), "<=", 1.1, TIMES),
    ("time over full: packed mask, mma", ["prefill-packed-causal-8192-mma"], time_of_row_over("prefill-full-8192-mma"), "<=", 1.1, TIMES),
    ("plan and upload at batch 256", ["decode-b256-uniform1024"], plan_microseconds, "<=", 25, MICROSECONDS),
    ("host time of run()", ["decode-b64-kv8192", "decode-b256-uniform1024", PLAIN_PREFILL, "mixed-b32", "prefix8192-b64-cascade"],
     host_microseconds, "<=", 8, "{:.1f} us"),
)


def over_fastest_peer(row, _):
    if not row.get("peers"):
        raise Missing("no peer")
    return min(peer["ratio"] for peer in row["peers"])


def microseconds(row, _):
    return 1e6 * row["seconds"]


def time_over_longer_part(*parts):
    """Time over the longest of other operators' at as many rows."""
    def value(row, rows):
        names = [f"{part}_{row['case'].rsplit('_', 1)[1]}" for part in parts]
        if any(name not in rows for name in names):
            raise Missing(f"no row {', '.join(name for name in names if name not in rows)}")
        return row["seconds"] / max(rows[name]["seconds"] for name in names)
    return value


# Operators beside attention on a GPU; "of the copy" is of the rate at which the fastest copy of that run moves bytes.
PLAIN = ("rms_4096", "add_rms_4096", "layer_4096", "qk_rms_40x128", "rope_32x8x128", "rope_interleaved_32x8x128", "silu_14336", "gelu_14336",
         "gelu_tanh_14336", "append_8x128", "append_mla")
CODES = ("e4m3_tensor", "e4m3_token", "e4m3_block", "e4m3_tile", "i8_token", "nvfp4", "mxfp4", "mx_e4m3", "from_e4m3_block", "from_nvfp4")
FUSED = {
    "rms_4096_e4m3_tensor": ("rms_4096", "e4m3_tensor"), "rms_4096_e4m3_token": ("rms_4096", "e4m3_token"),
    "rms_4096_nvfp4": ("rms_4096", "nvfp4"), "add_rms_4096_e4m3_token": ("add_rms_4096",), "silu_14336_e4m3_tensor": ("silu_14336",),
    "silu_14336_e4m3_block": ("silu_14336",), "silu_14336_nvfp4": ("silu_14336",), "rope_qk_norm_32x8x128": ("rope_32x8x128",),
    "rope_qk_norm_append_32x8x128": ("rope_append_32x8x128",),
}


def at_rows(names, *counts):
    return [f"{name}_r{count}" for name in names for count in counts]


OPERATOR_BARS = (
    ("part of the copy: 16,384 rows", at_rows(PLAIN + CODES, 16384), roofline, ">=", 0.95, PERCENT),
    ("over the fastest peer: 16,384 rows", at_rows(PLAIN + CODES, 16384), over_fastest_peer, ">=", 1.0, TIMES),
    ("over the fastest peer: 2,048 rows", at_rows(PLAIN + CODES, 2048), over_fastest_peer, ">=", 1.15, TIMES),
    ("over the fastest peer: 1 and 64 rows", at_rows(PLAIN, 1, 64), over_fastest_peer, None, None, TIMES),
    ("time: 1 and 64 rows", at_rows(PLAIN, 1, 64), microseconds, "<=", 4.5, "{:.1f} us"),
    *(("time over the longer part", at_rows([name], 2048, 16384), time_over_longer_part(*parts), "<=", 1.1, TIMES)
      for name, parts in FUSED.items()),
    ("host time", at_rows(PLAIN, 64), host_microseconds, "<=", 5, "{:.1f} us"),
)
OPERATORS = ("norm", "activation", "rope", "quant", "page")


LARGE, MIDDLE, ONE = "128x200000", "64x128256", "1x128256"
ODD_ROWS = ("uniform", "equal", "peak", "two-peaks", "heavy-tail", "mostly-inf")
SAMPLING_BARS = (
    *((name, [f"{name}-{LARGE}"], microseconds, "<=", limit, MICROSECONDS) for name, limit in (
        ("plain", 45), ("top-p", 55), ("top-k", 60), ("min-p", 50), ("top-k-top-p", 65), ("logits-top-k-top-p", 70), ("logits-top-p", 70),
        ("softmax", 55), ("top-p-renorm", 90), ("values-of-50", 50), ("values-of-2048", 65))),
    *((name, [f"{name}-{MIDDLE}"], microseconds, "<=", limit, MICROSECONDS) for name, limit in (("top-p", 25), ("top-k", 28))),
    *((name, [f"{name}-{ONE}"], microseconds, "<=", 11, MICROSECONDS) for name in (
        "plain", "top-p", "top-k", "min-p", "top-k-top-p", "logits-top-k-top-p", "logits-top-p", "softmax", "top-p-renorm", "values-of-50",
        "values-of-2048")),
    *((f"time over Gaussian rows: {name}", [f"{name}-{LARGE}-{kind}" for kind in ODD_ROWS], time_of_row_over(f"{name}-{LARGE}"), "<=", 1.3,
       TIMES) for name in ("top-p", "top-k", "values-of-2048")),
    ("over FlashInfer", [f"{name}-{size}" for size in (LARGE, MIDDLE, ONE) for name in (
        "plain", "top-p", "top-k", "min-p", "top-k-top-p", "softmax", "top-p-renorm", "values-of-50", "values-of-2048")],
     speedup_over_peer("flashinfer"), ">=", 1.0, TIMES),
    ("host time", [f"top-p-{LARGE}", f"top-p-{ONE}", f"values-of-50-{ONE}"], host_microseconds, "<=", 5, "{:.1f} us"),
)


def verdict(value, side, limit):
    if side is None:
        return "for comparison"
    return "ok" if (value >= limit if side == ">=" else value <= limit) else "MISS"


def report(rows):
    """One line per bar and case: of attention, or of the operators beside it where the rows are theirs."""
    by_name = {row["case"]: row for row in rows if row["op"] == "attention"}
    lines, missed, met, missing = [], 0, 0, 0
    bars = GPU_BARS if any(row["backend"] == "cuda" for row in by_name.values()) else BARS
    on_gpu = [row for row in rows if row["backend"] == "cuda"]
    if not by_name and any(row["op"] in OPERATORS for row in on_gpu):
        by_name, bars = {row["case"]: row for row in on_gpu if row["op"] in OPERATORS}, OPERATOR_BARS
    elif not by_name and any(row["op"] == "sampling" for row in on_gpu):
        by_name, bars = {row["case"]: row for row in on_gpu if row["op"] == "sampling"}, SAMPLING_BARS
    for what, cases, measured, side, limit, form in bars:
        for case in cases:
            asked = "" if side is None else f"{side} {form.format(limit)}"
            try:
                if case not in by_name:
                    raise Missing("no row")
                value = measured(by_name[case], by_name)
                said = verdict(value, side, limit)
                lines.append(f"{what:<50} {case:<34} {form.format(value):>9} {asked:>11}  {said}")
                missed += said == "MISS"
                met += said == "ok"
            except Missing as reason:
                missing += 1
                lines.append(f"{what:<50} {case:<34} {'-':>9} {asked:>11}  not measured: {reason}")
    return lines + ["", f"{met} met, {missed} missed, {missing} not measured"]
