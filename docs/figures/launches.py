# The other figures of docs/kernels.md: what attention kernels share, and the kernels beside attention.
from itertools import pairwise

from timeline import KEY, OTHER, PRODUCT, VALUE, WEIGHT, Timeline


def kernel_address():
    f = Timeline(236, "How a block finds its keys: unit, item, row of keys, page, address")
    chain = [
        (16, 128, "unit_begin[b]", "block b's unit"),
        (184, 128, "items", "rows, keys, KV head"),
        (352, 128, "kv_rows[kv_row]", "table_begin, kv_pos"),
        (520, 140, "kv_indices[...]", "page ids"),
        (700, 144, "K and V", "bytes"),
    ]
    for x, w, name, note in chain:
        f.box(x, 34, w, 44, "shared" if x < 500 else "c" if x < 690 else "a")
        f.text(x + w / 2, 53, name, size=12, anchor="middle", mono=True)
        f.note(x + w / 2, 69, note, size=11, anchor="middle")
    for (x, w, _, _), (to, _, _, _) in pairwise(chain):
        f.arrow(x + w + 4, 56, to - 4, 56)
    f.note(16, 22, "the plan's blob", size=11)
    f.note(520, 22, "the caller's page table", size=11)
    f.note(700, 22, "the store", size=11)
    f.code(16, 112, "entry   = table_begin + key / page_size")
    f.note(400, 112, "the division is a multiplication (FastDivider)", size=11)
    f.code(16, 132, "slot    = key % page_size")
    f.code(16, 152, "address = data + kv_indices[entry] * page_stride + slot * token_stride + head * head_stride")
    f.prose(
        16,
        180,
        "Ragged: no table; the page is 0 and the slot is table_begin + key. Page ids and slots are 64-bit before they meet a stride.",
    )
    f.prose(
        16,
        204,
        "In mma and wgmma prefetch_plan() asks for the first three links and the page table as the blocks start, each for its "
        "share. Then every family asks for page ids ahead of the copies that need them: a copy does not wait for two loads in a "
        "row.",
    )
    return f


def kernel_memory():
    f = Timeline(322, "What a block has in shared memory, sm_90, in KiB")
    unit = 2.85  # px a KiB
    rows = [
        ("mma decode", "8 or 16 rows; 2 blocks an SM", [(16, KEY, "K"), (16, VALUE, "V")] * 3 + [(16, PRODUCT, "sums"), (0.52, OTHER, "")]),
        ("mma prefill", "256 rows", [(16, KEY, "K"), (16, VALUE, "V")] * 4 + [(4.5, OTHER, ""), (64, PRODUCT, "Q"), (16, WEIGHT, "rows")]),
        (
            "wgmma prefill",
            "128 rows",
            [(44, KEY, "K"), (44, KEY, "K"), (44, VALUE, "V"), (44, VALUE, "V"), (32, PRODUCT, "Q"), (8, WEIGHT, "")],
        ),
        ("mma MLA", "16 rows", [(72, KEY, "K = V")] * 3 + [(4, WEIGHT, "")]),
        ("mma MLA", "64 rows", [(36, KEY, "K = V")] * 4 + [(72, PRODUCT, "Q"), (8, WEIGHT, "P")]),
        ("floor", "32 rows; 3 blocks an SM", [(17, PRODUCT, "Q"), (17, KEY, "K"), (16, VALUE, "V"), (4.5, WEIGHT, "P"), (8.9, OTHER, "")]),
    ]
    for kib in (0, 64, 128, 192, 227):
        x = 176 + kib * unit
        f.line(x, 12, x, 262, color="#c3c8d0", dash=True)
        f.note(x, 276, f"{kib}", anchor="middle", size=11)
    for i, (name, note, pieces) in enumerate(rows):
        y = 20 + 40 * i
        f.text(12, y + 12, name, size=12, bold=True)
        f.note(12, y + 25, note, size=10)
        x = 176
        for size, kind, text in pieces:
            f.box(x, y, size * unit, 26, kind, text, size=10)
            x += size * unit
    f.prose(12, 276, "KiB")
    f.prose(
        12,
        298,
        "bf16, d128, 32 query heads over 8 (MLA: 128 over one, 576 dims of K, the first 512 of which are V); causal. A block of "
        'sm_90 may have 227 KiB. "rows": what the mask asks of each query row. White: where keys lie, barriers; in floor also '
        "what is known of rows. floor holds f32.",
    )
    return f


def kernel_merge():
    f = Timeline(
        306, "Merge within the launch: a counter for each merge; who brings the last part merges all of them in part order", left=140
    )
    for b in range(3):
        f.lane(f"b{b}", 24 + 44 * b, f"block {(4, 7, 9)[b]}", f"part {b} of rows 0..7")
    f.lane("count", 170, "counters[i]", "zero between launches", h=22)
    ends = (150, 330, 230)
    for b, end in enumerate(ends):
        f.works(f"b{b}", (0, end, PRODUCT, "its keys"), (end, end + 76, OTHER, "o, (m, l) of part"), (end + 92, end + 120, KEY, "+ 1"))
        f.meets(end + 84, f"b{b}", f"b{b}")
        f.meets(end + 128, f"b{b}", f"b{b}")
    f.works("b0", (290, 460, PRODUCT, "its next item"))
    f.works("b2", (370, 428, PRODUCT, "next item"))
    f.works("b1", (466, 640, WEIGHT, "parts 0, 1, 2 in this order: O, LSE"), (656, 715, PRODUCT, "..."))
    f.meets(648, "b1", "b1")
    f.works("count", (0, 256, OTHER, "0"), (256, 336, OTHER, "1"), (336, 436, OTHER, "2"), (436, 456, OTHER, "3"), (456, 715, OTHER, "0"))
    f.signal(1, "b0", 256, "count", 256, at=0.86)
    f.signal(1, "b2", 336, "count", 336, at=0.5)
    f.signal(1, "b1", 436, "count", 436, at=0.7)
    f.signal(2, "count", 446, "b1", 458, free=True, at=0.55)
    f.legend(
        222,
        (
            1,
            False,
            "atom.add.acq_rel",
            "after a barrier of the block, so that the block's writes of the part come before it for whoever sees the new value",
        ),
        (2, True, "part_count - 1", "the old value: this part was the last. The block resets the counter for the next launch and merges"),
    )
    f.prose(
        34,
        270,
        "Nobody waits for another block: whoever is not the last goes on with its next item. Which block merges differs from run "
        "to run, the order of the parts does not: so the bits are the same. Thick lines: barriers of the block's computing "
        "threads.",
    )
    return f


def kernel_rows():
    f = Timeline(330, "Row operators: how a row lies in threads, and what they wait for", left=150)
    f.text(12, 22, "rows of 4,096 bf16", size=12, bold=True)
    f.prose(150, 22, "a block of 128 threads has one row: thread t the vectors t, t + 128, t + 256, t + 384, 8 elements each")
    for v in range(4):
        for t in range(4):
            f.box(150 + 170 * v + 42 * t, 32, 40, 22, ("a", "b", "off", "shared")[t], ["t = 0", "1", "...", "127"][t], size=10)
        f.note(150 + 170 * v + 84, 66, f"elements {1024 * v}..{1024 * v + 1023}", size=10, anchor="middle")
    f.text(12, 92, "heads of 128 bf16", size=12, bold=True)
    f.prose(150, 92, "16 threads have a head, and four heads of a row one after the other; a block of 128 threads has eight such fours")
    for h in range(4):
        for t in range(4):
            f.box(150 + 170 * h + 42 * t, 102, 40, 22, ("a", "b", "off", "shared")[t], ["t = 0", "1", "...", "15"][t], size=10)
        f.note(150 + 170 * h + 84, 137, f"head {h}", size=10, anchor="middle")
    f.lane("row", 168, "a row's threads", "RMSNorm")
    f.lane("mem", 214, "memory", "", h=20)
    f.works("row", (0, 70, KEY, "ask for x"), (70, 150, KEY, "ask for weights"))
    f.wait("row", 150, 260, "x")
    f.works("row", (260, 330, WEIGHT, "own squares"), (330, 400, WEIGHT, "shuffles"))
    f.meets(412, "row", "row", "sync_block")
    f.works("row", (424, 494, WEIGHT, "sum of warps"), (494, 580, WEIGHT, "x * factor * w"), (580, 650, VALUE, "store"))
    f.wait("mem", 20, 255, "the row, once")
    f.wait("mem", 600, 700, "the row, once")
    f.prose(
        12,
        262,
        "One such meeting for each number that needs the whole row: RMSNorm one, LayerNorm two, a scale a token one more. Two "
        "sets of numbers in shared memory take turns, so that one barrier is enough. Rows that share a warp need none. A block "
        "works once: others of the multiprocessor load while this one waits. On sm_90 and later the next kernel's blocks may "
        "start meanwhile (wait_for_previous_grid, start_next_grid).",
    )
    return f


def kernel_sampling():
    f = Timeline(360, "Sampling: blocks of a cluster share a row; a bracket from a sample makes one pass enough", left=150)
    f.lane("b0", 44, "block 0", "list, histogram, decides")
    f.lane("b1", 96, "blocks 1..7", "their tiles of the row")
    f.lane("l2", 148, "memory", h=20)
    f.works(
        "b0",
        (0, 60, KEY, "samples"),
        (76, 170, WEIGHT, "bracket"),
        (186, 330, PRODUCT, "pass: sums and list"),
        (374, 460, WEIGHT, "cut in the list"),
        (476, 560, WEIGHT, "masses by tile"),
        (564, 624, WEIGHT, "draw"),
    )
    f.works("b1", (0, 60, KEY, "samples"), (186, 330, PRODUCT, "pass: sums and list"), (330, 366, OTHER, "to 0"))
    f.wait("b1", 76, 170, "sync_row")
    f.wait("b1", 374, 460, "sync_row")
    f.wait("b1", 476, 640, "sync_row")
    f.wait("l2", 0, 55, "a sample")
    f.wait("l2", 62, 326, "the row: first asked for, then tiles by cp.async, 4 under way")
    for time in (68, 178, 468, 648):
        f.meets(time, "b0", "b1", "sync_row")
    f.meets(370, "b0", "b1", "all_sums, gather")
    f.signal(1, "b1", 40, "b0", 52, at=0.5)
    f.signal(2, "b1", 348, "b0", 364, at=0.5)
    f.signal(3, "b0", 440, "b1", 470, free=True, at=0.5)
    f.legend(
        200,
        (1, False, "list_key", "all blocks write their sampled keys into block 0's shared memory"),
        (
            2,
            False,
            "tile_mass, list",
            "a pass adds up what lies above the bracket, by tile, and lists what lies inside; parts go to block 0",
        ),
        (
            3,
            True,
            "bracket or cut",
            "block 0 has the cut, or a narrower bracket (with a histogram) and all pass again: eight times at most",
        ),
    )
    f.key(
        268,
        (KEY, "sampling the row"),
        (PRODUCT, "a pass over the row"),
        (WEIGHT, "in shared memory (draw: one tile again, unless few are left)"),
    )
    f.prose(
        12,
        292,
        "Within a pass nobody waits for another thread: each reads from shared memory only what it copied itself "
        "(cp_async_wait<3> of a ring of four tiles of 16 KiB). Tiles that all fit (six on sm_90) stay there for later passes; "
        "others pass forward and backward in turn, so that part is in L2. sync_row() is the cluster's barrier, or the block's "
        "where a row has one block. Sums are integers: no order of threads can be seen in a token. Drawn: top-k, or top-p of "
        "probabilities. Logits without top-k and greedy rows begin with a pass for the largest entry, since masses are relative "
        "to it.",
    )
    return f


LAUNCHES = [kernel_address, kernel_memory, kernel_merge, kernel_rows, kernel_sampling]
