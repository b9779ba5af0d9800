"""What the CPU backend is to reach, as data: bars over the rows of a result file. bench/table.py --bars prints them.

A bar is a list of cases, what is measured of a row, and a limit. Ratios of two cases come from runs in turns (a row's "twins"), those to
another library from the row's "peers".
"""

import fnmatch


class Missing(Exception):
    """The results lack what the bar is about."""


def roofline(row):
    return row["roofline_fraction"]


def peak(row):
    """Part of the peak of the widest instruction that the types allow."""
    return row["flops"] / row["seconds"] / row["peak_flops"]


def twin_of(row, name):
    for twin in row.get("twins", []):
        if fnmatch.fnmatchcase(twin["case"], name):
            return twin
    raise Missing(f"no twin {name}")


def speedup_over(twin):
    return lambda row: twin_of(row, twin)["ratio"]


def time_over(twin):
    return lambda row: 1 / twin_of(row, twin)["ratio"]


def fraction_over(twin):
    return lambda row: row["roofline_fraction"] / twin_of(row, twin)["roofline_fraction"]


def pair_cost_over(twin):
    """Time per visible (row, key) pair over the twin's."""
    def value(row):
        other = twin_of(row, twin)
        return other["flops"] / row["flops"] / other["ratio"]
    return value


def speedup_over_peer(*kinds):
    """Over the fastest of the peers whose name ends in one of these kinds."""
    def value(row):
        ratios = [peer["ratio"] for peer in row.get("peers", []) if peer["name"].split(" ", 2)[-1] in kinds]
        if not ratios:
            raise Missing("no peer")
        return min(ratios)
    return value


def speedup_over_one_worker(row):
    if "one_worker" not in row:
        raise Missing("not timed with one worker")
    return row["one_worker"]["ratio"]


TORCH = speedup_over_peer("SDPA", "FlexAttention")
TORCH_ANY = speedup_over_peer("SDPA", "FlexAttention", "SDPA heads as rows", "SDPA per request")
SIZES = ("b2-kv4096", "b16-kv2048")


def sizes(stem):
    return [f"{stem}-{size}" for size in SIZES]


# (what, cases, measured value, ">=" or "<=", limit, how to print)
PERCENT, TIMES = "{:.0%}", "{:.2f}x"
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


def verdict(value, side, limit):
    if side is None:
        return "for comparison"
    return "ok" if (value >= limit if side == ">=" else value <= limit) else "MISS"


def report(rows):
    """One line per bar and case."""
    by_name = {row["case"]: row for row in rows if row["op"] == "attention"}
    lines, missed, met, missing = [], 0, 0, 0
    for what, cases, measured, side, limit, form in BARS:
        for case in cases:
            asked = "" if side is None else f"{side} {form.format(limit)}"
            try:
                if case not in by_name:
                    raise Missing("no row")
                value = measured(by_name[case])
                said = verdict(value, side, limit)
                lines.append(f"{what:<50} {case:<34} {form.format(value):>9} {asked:>11}  {said}")
                missed += said == "MISS"
                met += said == "ok"
            except Missing as reason:
                missing += 1
                lines.append(f"{what:<50} {case:<34} {'-':>9} {asked:>11}  not measured: {reason}")
    return lines + ["", f"{met} met, {missed} missed, {missing} not measured"]
