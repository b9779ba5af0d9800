#!/usr/bin/env python3
"""Draws the figures of the documents: python3 docs/figures/make.py writes the SVG files beside itself.

Only the standard library. Each figure is a function. Here are those of docs/layouts.md; those of docs/kernels.md are in
pipelines.py and launches.py.
"""
import os
import sys

from figure import SOFT, Figure
from launches import LAUNCHES
from pipelines import PIPELINES


def form():
    f = Figure(760, 236, "A batch is a list of segments over one query tensor; the results of a row's segments are merged")
    f.text(20, 28, "query tensor", bold=True)
    for i, (kind, name) in enumerate([("a", "A"), ("a", "A"), ("a", "A"), ("b", "B"), ("c", "C")]):
        f.box(20, 44 + 26 * i, 90, 24, kind, f"row {i}  ({name})")
    f.code(20, 196, "qo_indptr 0 3 4 5")
    f.text(200, 28, "segment 0", bold=True)
    f.note(200, 46, "one group, rows 0..4")
    f.box(160, 44, 8, 128, "shared")
    f.page(200, 96, 4, 4, "shared", "page 7")
    f.page(262, 96, 4, 4, "shared", "page 2")
    f.arrow(112, 108, 156, 108)
    f.arrow(170, 108, 196, 108)
    f.text(420, 22, "segment 1", bold=True)
    f.note(492, 22, "a group per request")
    for y, kind, pages in [(58, "a", [("page 5", 4), ("page 0", 2)]),
                           (110, "b", [("page 9", 1)]),
                           (160, "c", [("page 3", 4), ("page 8", 1)])]:
        for j, (label, used) in enumerate(pages):
            f.page(420 + 62 * j, y, used, 4, kind, label)
        f.arrow(396, y + 11, 416, y + 11)
    f.text(600, 70, "merge", bold=True)
    f.code(600, 100, "(o, lse)")
    f.code(600, 118, "  + (o', lse')")
    f.note(600, 142, "identity: (0, -inf)")
    f.arrow(552, 108, 588, 108)
    f.note(200, 222, "Each row attends to the union of its groups' keys. The keys of one row's segments are disjoint.")
    return f


def single():
    f = Figure(760, 226, "Decode, append and prefill differ only in qo_len")
    for x, name, qo in [(60, "decode: qo_len = 1", 1), (290, "append: qo_len = 3", 3), (520, "prefill: qo_len = kv_len", 8)]:
        f.text(x, 26, name, bold=True)
        f.grid(x, 50, qo, 8, lambda r, c, qo=qo: "a" if c <= 8 - qo + r else "off", 18)
        f.note(x, 44, "keys 0..7", size=11)
    f.note(52, 64, "q", anchor="end")
    f.note(60, 214, "Blue: visible under the causal mask. Query row i has position kv_len - qo_len + i (bottom-right alignment).")
    return f


def ragged():
    f = Figure(760, 210, "Ragged batch: tokens of all requests end to end, cut by two indptr arrays")
    f.text(20, 28, "q, o", bold=True)
    f.cells(140, 12, ["A", "A", "B", "C", "C", "C"], list("aabccc"), w=32)
    for x, v in [(140, 0), (204, 2), (236, 3), (332, 6)]:
        f.line(x, 38, x, 46)
        f.code(x, 60, str(v), anchor="middle")
    f.code(20, 60, "qo_indptr")
    f.text(20, 112, "k, v", bold=True)
    f.cells(140, 96, ["A"] * 6 + ["B"] * 8 + ["C"] * 3, ["a"] * 6 + ["b"] * 8 + ["c"] * 3, w=32)
    for x, v in [(140, 0), (332, 6), (588, 14), (684, 17)]:
        f.line(x, 122, x, 130)
        f.code(x, 144, str(v), anchor="middle")
    f.code(20, 144, "kv_indptr")
    f.note(20, 186, "page_size = kEndlessPage: one page without end per request, kv_indptr counts tokens, there is no kv_indices.")
    return f


def paged_csr():
    f = Figure(760, 262, "Paged KV with CSR page lists")
    f.code(20, 30, "kv_indptr")
    f.cells(130, 14, [0, 3, 4, 6], "none")
    f.code(20, 76, "kv_indices")
    f.cells(130, 60, [4, 0, 6, 2, 1, 5], list("aaabcc"))
    f.code(20, 122, "kv_len")
    f.cells(130, 106, [10, 3, 8], list("abc"))
    f.note(240, 122, "or from last_page_len 2 3 4: kv_len_from_last_page()")
    f.line(130, 54, 130, 60)
    f.line(214, 54, 214, 60)
    f.line(242, 54, 242, 60)
    f.line(298, 54, 298, 60)
    f.text(20, 186, "pool", bold=True)
    pages = [("0", 4, "a"), ("1", 4, "c"), ("2", 3, "b"), ("3", 0, "off"), ("4", 4, "a"), ("5", 4, "c"), ("6", 2, "a")]
    for i, (name, used, kind) in enumerate(pages):
        f.page(130 + 86 * i, 170, used, 4, kind, "page " + name, w=18)
    f.note(20, 228, "Request A reads page 4, then 0, then two slots of 6. Grey slots are never read, whatever they hold;")
    f.note(20, 246, "table entries past ceil(kv_len / page_size) are never read either.")
    return f


def block_table():
    f = Figure(760, 220, "Strided block table")
    f.text(20, 28, "block_tables", bold=True)
    f.note(126, 28, "one row per request")
    rows = [("A", "a", [4, 0, 6], "10"), ("B", "b", [2], "3"), ("C", "c", [1, 5], "8")]
    for r, (name, kind, ids, length) in enumerate(rows):
        f.text(30, 65 + 30 * r, name)
        used = len(ids)
        f.cells(60, 48 + 30 * r, ids + ["?"] * (5 - used), [kind] * used + ["off"] * (5 - used), w=40)
        f.cells(310, 48 + 30 * r, [length], kind, w=40)
    f.code(310, 28, "seq_lens", size=12)
    f.span(60, 260, 148, "table_stride = 5")
    f.note(390, 66, "The same segment as CSR, with table_stride")
    f.note(390, 84, "in place of kv_indptr. Entries marked ? lie past")
    f.note(390, 102, "ceil(kv_len / page_size): they may hold anything.")
    f.note(20, 200, "seq_lens is the segment's kv_len; the table goes to run() flat, as kv_indices.")
    return f


def strides():
    f = Figure(760, 330, "Memory orders of a paged pool, all of them strides")
    legend = [("K, head 0", "a"), ("K, head 1", "b"), ("V, head 0", "c"), ("V, head 1", "shared")]
    for i, (name, kind) in enumerate(legend):
        f.box(190 + 120 * i, 10, 14, 14, kind)
        f.note(210 + 120 * i, 22, name)
    f.text(20, 22, "order in memory", bold=True)
    k0, k1, v0, v1, off = "a", "b", "c", "shared", "off"

    def row(y, name, sub, blocks):
        f.text(20, y + 12, name, bold=True)
        f.code(20, y + 30, sub, size=11, color=SOFT)
        x = 190
        for label, cells in blocks:
            f.cells(x, y, [""] * len(cells), cells, w=16, h=22)
            f.note(x + 8 * len(cells), y + 37, label, anchor="middle", size=11)
            x += 16 * len(cells) + 14

    row(50, "NHD", "page, token, head", [("k: page 0", [k0, k1] * 4), ("page 1", [k0, k1] * 4), ("v: page 0", [v0, v1] * 4)])
    row(112, "HND", "page, head, token",
        [("k: page 0", [k0] * 4 + [k1] * 4), ("page 1", [k0] * 4 + [k1] * 4), ("v: page 0", [v0] * 4 + [v1] * 4)])
    row(174, "one tensor", "page, k/v, token, head", [("page 0", [k0, k1] * 4 + [v0, v1] * 4), ("page 1", [k0, k1] * 4 + [v0, v1] * 4)])
    row(236, "layers in a page", "page, layer, k/v, ...",
        [("page 0: layer 0", [off] * 8), ("layer 1 (this)", [k0, k1] * 2 + [v0, v1] * 2), ("page 1: layer 0", [off] * 8)])
    f.note(20, 312, "A KvPlane holds a pointer and the byte strides of page, token and head; run() sees no other difference.")
    return f


def cascade():
    f = Figure(760, 330, "Cascade with three levels")
    f.text(20, 28, "level 0", bold=True)
    f.note(20, 46, "system prompt")
    f.page(170, 30, 16, 16, "shared", "read once for all rows", w=32, h=26)
    f.text(20, 104, "level 1", bold=True)
    f.note(20, 122, "conversation")
    f.page(170, 106, 7, 7, "a", "", w=32, h=26)
    f.page(458, 106, 7, 7, "b", "", w=32, h=26)
    f.text(20, 180, "level 2", bold=True)
    f.note(20, 198, "each sample's own")
    xs = [170, 278, 458, 548, 638]
    ns = [3, 2, 2, 1, 2]
    for x, n, kind in zip(xs, ns, "aabbb"):
        f.page(x, 182, n, n, kind, "", w=28, h=26)
    f.line(282, 56, 282, 104)
    f.line(570, 56, 570, 104)
    for x, n, px in zip(xs, ns, [282, 282, 570, 570, 570]):
        f.line(px, 132, x + 14 * n, 180)
    f.text(20, 252, "query rows", bold=True)
    for i, (x, n, kind) in enumerate(zip(xs, ns, "aabbb")):
        f.box(x + 14 * n - 15, 236, 30, 24, kind, str(i), mono=True)
        f.line(x + 14 * n, 208, x + 14 * n, 235)
    f.code(20, 286, "segments[0].qo_indptr = 0 5     segments[1].qo_indptr = 0 2 5     segments[2]: the requests", size=12)
    f.note(20, 312, "Levels are segments with larger query groups on top. A shared page is read once for all rows of its group.")
    return f


def mixed():
    f = Figure(760, 226, "A mixed batch: one plan with tiles of both classes")
    f.text(20, 28, "query tensor", bold=True)
    f.box(130, 12, 400, 24, "a", "A: prefill chunk, 512 rows")
    for i, (n, kind) in enumerate([("B", "b"), ("C", "c"), ("D", "shared")]):
        f.box(530 + 32 * i, 12, 32, 24, kind, n)
    f.code(20, 60, "qo_indptr")
    for x, v in [(130, "0"), (530, "512"), (626, "515")]:
        f.line(x, 38, x, 46)
        f.code(x, 60, v, anchor="middle")
    f.text(20, 104, "work list", bold=True)
    f.note(130, 104, "tiles of the large class (prefill) and of the small class (decode), cut and balanced over the units")
    units = [[("a", 300), ("b", 90)], [("a", 250), ("c", 140)], [("a", 190), ("shared", 110), ("b", 90)]]
    for u, items in enumerate(units):
        f.code(64, 137 + 30 * u, f"unit {u}")
        x = 130
        for kind, w in items:
            f.box(x, 122 + 30 * u, w, 22, kind)
            x += w
    return f


def block_sparse():
    f = Figure(760, 280, "Block sparse attention: query blocks are groups, key blocks are pages")
    pattern = {(0, 0), (0, 3), (1, 1), (2, 0), (2, 2), (2, 4)}
    f.text(40, 28, "blocks of 4 x 4 keys", bold=True)
    kinds = "abc"
    f.grid(40, 44, 12, 20, lambda r, c: kinds[r // 4] if (r // 4, c // 4) in pattern else "off", 14)
    for c in range(5):
        f.code(40 + 56 * c + 28, 228, str(c), anchor="middle", size=11)
    f.note(40, 248, "key blocks 0..4 = pages of 4 tokens")
    f.text(380, 28, "the segment", bold=True)
    f.code(380, 62, "qo_indptr")
    f.cells(490, 46, [0, 4, 8, 12], "none")
    f.code(380, 102, "kv_indptr")
    f.cells(490, 86, [0, 2, 3, 6], "none")
    f.code(380, 142, "kv_indices")
    f.cells(490, 126, [0, 3, 1, 0, 2, 4], list("aabccc"))
    f.code(380, 182, "page_pos")
    f.cells(490, 166, [0, 12, 4, 0, 8, 16], list("aabccc"))
    f.note(380, 222, "page_pos keeps each block's logical position,")
    f.note(380, 240, "so that a causal mask still means what it says.")
    return f


def page_selection():
    f = Figure(760, 262, "Page selection per KV head with page_pos")
    f.text(20, 28, "cache", bold=True)
    for i in range(8):
        f.page(110 + 76 * i, 30, 4 if i < 7 else 2, 4, "none", f"page {i}", w=16)
        f.code(110 + 76 * i, 68, str(4 * i), size=11, color=SOFT)
    f.note(20, 68, "position")
    for y, name, kind, chosen in [(84, "head 0", "a", [0, 3, 7]), (120, "head 1", "b", [2, 3, 6, 7])]:
        f.text(20, y + 17, name, bold=True)
        for i in range(8):
            f.page(110 + 76 * i, y, (4 if i < 7 else 2) if i in chosen else 0, 4, kind, "", w=16)
    f.code(20, 186, "kv_indices")
    f.cells(130, 170, [0, 3, 7], "a")
    f.cells(230, 170, [2, 3, 6, 7], "b")
    f.code(20, 220, "page_pos")
    f.cells(130, 204, [0, 12, 28], "a")
    f.cells(230, 204, [8, 12, 24, 28], "b")
    f.code(380, 186, "num_table_heads = 2")
    f.code(380, 206, "kv_indptr = 0 3 | 3 7    kv_len = 10 14")
    f.code(380, 226, "batch.kv_len = 30")
    f.note(20, 250, "batch.kv_len states the whole length: the query's position does not shrink with the selection.")
    return f


def sink_window():
    f = Figure(760, 232, "First tokens kept with a sliding window")
    f.text(20, 28, "positions", bold=True)
    for i in range(8):
        live = i in (0, 5, 6, 7)
        for j in range(4):
            p = 4 * i + j
            kind = "off" if p >= 30 else "b" if p < 2 else "a" if p >= 22 else "off"
            f.box(110 + 76 * i + 16 * j, 30, 16, 22, kind if live else "none", dash=not live)
        f.code(110 + 76 * i, 68, str(4 * i), size=11, color=SOFT)
        f.note(110 + 76 * i + 32, 24, f"page {[9, '', '', '', '', 4, 1, 6][i]}" if live else "freed", anchor="middle", size=11)
    f.code(20, 112, "kv_indices")
    f.cells(130, 96, [9, 4, 1, 6], ["b", "a", "a", "a"])
    f.code(20, 146, "page_pos")
    f.cells(130, 130, [0, 20, 24, 28], ["b", "a", "a", "a"])
    f.code(290, 112, "kv_len = 14    batch.kv_len = 30")
    f.code(290, 146, "(first_tokens(2) | window(7)) & causal()")
    f.note(20, 190, "Orange: the first 2 tokens. Blue: the window of the last row (position 29), 7 keys before self and self.")
    f.note(20, 208, "Pages between them are gone from the table; the mask hides the grey slots of pages that stay.")
    return f


def token_list():
    f = Figure(760, 236, "A list of tokens for each query row")
    f.text(20, 28, "latent cache", bold=True)
    chosen = {0: {1, 4, 9}, 1: {4, 5, 10, 15}, 2: {0, 9, 16}}
    f.cells(150, 12, range(18), "none", w=30)
    for r, (y, kind) in enumerate([(56, "a"), (88, "b"), (120, "c")]):
        f.text(20, y + 16, f"query row {r}", bold=True)
        for t in range(18):
            f.box(150 + 30 * t, y, 30, 22, kind if t in chosen[r] else "off")
    f.code(20, 180, "kv_indices")
    f.cells(150, 164, [1, 4, 9], "a", w=30)
    f.cells(240, 164, [4, 5, 10, 15], "b", w=30)
    f.cells(360, 164, [0, 9, 16], "c", w=30)
    f.code(480, 180, "kv_indptr = 0 3 7 10", size=12)
    f.note(20, 220, "page_size = 1: a page is a token. qo_indptr = 0 1 2 3 makes each row a group of its own.")
    return f


def mla():
    f = Figure(760, 282, "MLA in absorbed form: V is a view of K")
    f.text(20, 28, "one tensor", bold=True)
    f.note(20, 46, "head_dim_rope = 0")
    f.box(170, 24, 400, 30, "a", "latent, 512")
    f.box(570, 24, 100, 30, "b", "RoPE part, 64")
    f.span(170, 670, 72, "k: head_dim_qk = 576")
    f.span(170, 570, 104, "v (v_is_k): head_dim_vo = 512")
    f.text(20, 164, "two tensors", bold=True)
    f.note(20, 182, "head_dim_rope = 64")
    f.box(170, 156, 400, 30, "a", "store.k, 512")
    f.box(600, 156, 100, 30, "b", "store.k_rope, 64")
    f.box(170, 204, 400, 24, "c", "args.q, 512")
    f.box(600, 204, 100, 24, "c", "args.q_rope, 64")
    f.note(20, 262, "One KV head serves all query heads. The latent row is loaded once and used both as key and as value.")
    return f


def mla_tokens():
    f = Figure(760, 176, "A token of 656 bytes")
    f.text(20, 46, "one token", bold=True)
    for group in range(4):
        f.box(120 + 96 * group, 28, 96, 30, "a", f"{128 * group} .. {128 * group + 127}")
    f.box(504, 28, 76, 30, "c", "4 scales")
    f.box(580, 28, 120, 30, "b", "RoPE part, 64")
    f.span(120, 504, 76, "store.k: e4m3, 512 bytes")
    f.span(504, 580, 76, "f32, 16")
    f.span(580, 700, 76, "store.k_rope: bf16, 128")
    f.note(20, 132, "Scale i is that of the codes 128 i .. 128 i + 127 (k.scales, token_group).")
    f.note(20, 156, "All planes have the token's stride: token_byte_stride = 656, page_byte_stride = 64 x 656.")
    return f


def qk_vo():
    f = Figure(760, 158, "Different head dimensions for K and V")
    f.text(20, 40, "q, k", bold=True)
    f.box(120, 22, 288, 28, "a", "128 without position")
    f.box(408, 22, 144, 28, "b", "64 with RoPE")
    f.span(120, 552, 66, "head_dim_qk = 192")
    f.text(20, 112, "v, o", bold=True)
    f.box(120, 94, 288, 28, "c", "128")
    f.code(430, 112, "head_dim_vo = 128")
    f.note(20, 146, "Prefill of DeepSeek-style models before absorption; any pair of dims in 1..1024 works the same way.")
    return f


def context_parallel():
    f = Figure(760, 290, "Context parallelism: partial states of each rank, merged")
    f.text(20, 28, "keys", bold=True)
    f.cells(110, 12, [str(i) for i in range(16)], ["a"] * 8 + ["b"] * 8, w=26)
    f.note(540, 28, "contiguous: kv_pos = 0 | 8")
    f.cells(110, 48, [str(i) for i in range(16)], ["a", "a", "b", "b"] * 4, w=26)
    f.note(540, 64, "interleaved pages: page_pos")
    for y, kind, name in [(104, "a", "rank 0"), (164, "b", "rank 1")]:
        f.box(110, y, 200, 40, kind, name + ": run, partial_state")
        f.arrow(312, y + 20, 372, y + 20)
        f.code(380, y + 24, "o, lse")
        f.arrow(432, y + 20, 490, 154 if kind == "a" else 160)
    f.box(494, 136, 140, 42, "shared", "merge_states")
    f.arrow(636, 157, 676, 157)
    f.code(684, 161, "o, lse")
    f.note(110, 236, "Every rank has all query rows and states the full batch.kv_len, so that positions agree.")
    f.note(110, 254, "A rank without keys for a row contributes (0, -inf). Sink and output transform are left out of")
    f.note(110, 272, "partial states; they belong to whoever finishes the row.")
    return f


FIGURES = [form, single, ragged, paged_csr, block_table, strides, cascade, mixed, block_sparse, page_selection, sink_window, token_list,
           mla, mla_tokens, qk_vo, context_parallel, *PIPELINES, *LAUNCHES]


def main():
    """With --check: fails if a committed figure differs from what would be written."""
    folder = os.path.dirname(os.path.abspath(__file__))
    stale = []
    for figure in FIGURES:
        path = os.path.join(folder, figure.__name__ + ".svg")
        svg = figure().svg()
        if sys.argv[1:] == ["--check"]:
            if not os.path.exists(path) or open(path, encoding="utf-8").read() != svg:
                stale.append(path)
        else:
            with open(path, "w", encoding="utf-8") as out:
                out.write(svg)
    if stale:
        sys.exit("differ from docs/figures/make.py, run it: " + ", ".join(stale))


if __name__ == "__main__":
    main()
