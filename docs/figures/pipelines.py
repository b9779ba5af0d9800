# The figures of docs/kernels.md: pipelines of kernels as time lines. A lane is a warp, a group of warps or a place in shared memory; boxes
# are work, dashed boxes are waits, numbered arrows lead from who arrives at a barrier to who waits there. Time runs to the right, not to
# scale; sizes are those that `girih source --model llama3-8b` (for MLA deepseek-v3) prints for sm_90.
from figure import FILLS, INK, LINE, SOFT, Figure

KEY, VALUE, PRODUCT, WEIGHT, OTHER = "a", "b", "shared", "c", "none"
FULL, EMPTY = "#1d4f91", "#a3380f"  # arrows: something is there, something is free
MARKERS = "<defs>" + "".join(
    f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" '
    f'fill="{color}"/></marker>' for name, color in (("full", FULL), ("empty", EMPTY))) + "</defs>"


class Timeline(Figure):
    """Lanes from `left` on; x of works, waits and arrows is time."""

    def __init__(self, height, title, left=130, width=860):
        super().__init__(width, height, title)
        self.left = left
        self.lanes = {}
        self.parts.append(MARKERS)

    def lane(self, key, y, name, note="", h=24):
        self.lanes[key] = (y, h)
        self.text(12, y + (h / 2 + 4 if not note else h / 2 - 1), name, size=12, bold=True)
        if note:
            self.note(12, y + h / 2 + 12, note, size=10)
        self.line(self.left - 6, y + h + 3, self.width - 12, y + h + 3, color="#eceef1")

    def work(self, key, begin, end, kind, text="", size=10):
        y, h = self.lanes[key]
        end = min(end, self.width - 14 - self.left)
        self.box(self.left + begin, y, end - begin, h, kind, text, size=size)

    def works(self, key, *pieces):
        """(begin, end, kind, text)..."""
        for piece in pieces:
            self.work(key, *piece)

    def wait(self, key, begin, end, text=""):
        y, h = self.lanes[key]
        end = min(end, self.width - 14 - self.left)
        self.parts.append(f'<rect x="{self.left + begin:g}" y="{y + 4:g}" width="{end - begin:g}" height="{h - 8:g}" fill="#ffffff" '
                          f'stroke="{LINE}" stroke-dasharray="2 3"/>')
        if text:
            self.text(self.left + (begin + end) / 2, y + h / 2 + 3.5, text, size=10, anchor="middle", color=SOFT)

    def edge(self, key, other, from_side):
        """y of the side of lane `key` that faces lane `other`."""
        y, h = self.lanes[key]
        below = self.lanes[other][0] > y
        return y + h if below == from_side else y

    def signal(self, number, source, begin, target, end, free=False, at=0.5):
        """An arrow from lane `source` to lane `target`; `free`: it says that something may be used again."""
        color, marker = (EMPTY, "empty") if free else (FULL, "full")
        x1, x2 = self.left + begin, self.left + end
        y1 = self.edge(source, target, True)
        y, h = self.lanes[target]
        y2 = y if y > y1 else y + h
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="1.3" '
                          f'marker-end="url(#{marker})"/>')
        self.number(number, x1 + (x2 - x1) * at, y1 + (y2 - y1) * at, color)

    def number(self, number, x, y, color=FULL):
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="7" fill="#ffffff" stroke="{color}"/>')
        self.text(x, y + 3.5, str(number), size=10, anchor="middle", color=color, bold=True)

    def meets(self, time, first, last, text=""):
        """A barrier that all lanes from `first` to `last` reach."""
        x = self.left + time
        y1 = self.lanes[first][0] - 6
        y, h = self.lanes[last]
        self.parts.append(f'<line x1="{x:g}" y1="{y1:g}" x2="{x:g}" y2="{y + h + 6:g}" stroke="{INK}" stroke-width="2"/>')
        if text:
            self.text(x, y1 - 4, text, size=10, anchor="middle", color=INK)

    def legend(self, y, *rows):
        """(number, free, barrier, text)... from `y` down."""
        for i, (number, free, name, text) in enumerate(rows):
            self.number(number, 20, y + 18 * i - 4, EMPTY if free else FULL)
            self.code(34, y + 18 * i, name, size=11)
            self.note(178, y + 18 * i, text, size=11)

    def key(self, y, *kinds):
        """What the colours stand for."""
        x = 34
        for kind, text in kinds:
            self.box(x, y - 10, 14, 12, kind)
            self.note(x + 20, y, text, size=11)
            x += 34 + 6.1 * len(text)
        self.parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="14" height="12" fill="#ffffff" stroke="{LINE}" stroke-dasharray="2 3"/>')
        self.note(x + 20, y, "waits", size=11)


def kernel_address():
    f = Figure(860, 236, "How a block finds its keys: unit, item, row of keys, page, address")
    chain = [(16, 128, "unit_begin[b]", "block b's unit"), (184, 128, "items", "rows, keys, KV head"),
             (352, 128, "kv_rows[kv_row]", "table_begin, kv_pos"), (520, 140, "kv_indices[...]", "page ids"),
             (700, 144, "K and V", "bytes")]
    for x, w, name, note in chain:
        f.box(x, 34, w, 44, "shared" if x < 500 else "c" if x < 690 else "a")
        f.text(x + w / 2, 53, name, size=12, anchor="middle", mono=True)
        f.note(x + w / 2, 69, note, size=11, anchor="middle")
    for (x, w, _, _), (to, _, _, _) in zip(chain, chain[1:]):
        f.arrow(x + w + 4, 56, to - 4, 56)
    f.note(16, 22, "the plan's blob", size=11)
    f.note(520, 22, "the caller's page table", size=11)
    f.note(700, 22, "the store", size=11)
    f.code(16, 112, "entry   = table_begin + key / page_size")
    f.note(400, 112, "the division is a multiplication (FastDivider)", size=11)
    f.code(16, 132, "slot    = key % page_size")
    f.code(16, 152, "address = data + kv_indices[entry] * page_stride + slot * token_stride + head * head_stride")
    f.note(16, 180, "Ragged: no table; the page is 0 and the slot is table_begin + key. Page ids and slots are 64-bit before they meet a stride.",
           size=11)
    f.note(16, 204, "In mma and wgmma prefetch_plan() asks for the first three links and the page table as the blocks start, each for its share. Then every", size=11)
    f.note(16, 220, "family asks for page ids ahead of the copies that need them: a copy does not wait for two loads in a row.", size=11)
    return f


def kernel_memory():
    f = Figure(860, 322, "What a block has in shared memory, sm_90, in KiB")
    unit = 2.85  # px a KiB
    rows = [
        ("mma decode", "8 or 16 rows; 2 blocks an SM", [(16, KEY, "K"), (16, VALUE, "V")] * 3 + [(16, PRODUCT, "sums"), (0.52, OTHER, "")]),
        ("mma prefill", "256 rows", [(16, KEY, "K"), (16, VALUE, "V")] * 4 + [(4.5, OTHER, ""), (64, PRODUCT, "Q"), (16, WEIGHT, "rows")]),
        ("wgmma prefill", "128 rows", [(44, KEY, "K"), (44, KEY, "K"), (44, VALUE, "V"), (44, VALUE, "V"), (32, PRODUCT, "Q"), (8, WEIGHT, "")]),
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
    f.note(12, 276, "KiB", size=11)
    f.note(12, 298, "bf16, d128, 32 query heads over 8 (MLA: 128 over one, 576 dims of K, the first 512 of which are V); causal. "
           "A block of sm_90 may have 227 KiB.", size=11)
    f.note(12, 314, "\"rows\": what the mask asks of each query row. White: where keys lie, barriers; in floor also what is known of rows. floor holds f32.", size=11)
    return f


def kernel_decode():
    f = Timeline(560, "mma decode: every warp streams its own keys; nobody waits for another warp before the tile's end", left=126)
    f.note(126, 18, "warp 0's rows of the ring: 6 slots of 16 keys each, three steps of K and V", size=11)
    names = ["K", "V"]
    for slot in range(6):
        f.lane(f"slot{slot}", 28 + 24 * slot, f"slot {slot}", h=18)
    f.lane("w0", 186, "warp 0", "keys 0..15 of 64", h=34)
    for w in (1, 2, 3):
        f.lane(f"w{w}", 208 + 34 * w, f"warp {w}", f"keys {16 * w}..{16 * w + 15}", h=24)
    end, period = 560, 150

    def landed(step, value):
        return 60 + period * step + 70 * value

    for step in range(6):
        for value in (0, 1):
            slot = (2 * step + value) % 6
            kind = VALUE if value else KEY
            before = step - 3
            begin = 0 if before < 0 else 86 + period * before + 76 * value
            if begin >= 715:
                continue
            use, done = 60 + period * step + 78 * value, 84 + period * step + 80 * value
            f.wait(f"slot{slot}", begin, min(landed(step, value), 800), f"{names[value]}{step} comes" if landed(step, value) - begin > 58 else "")
            if use < 700 and step < 4 and not (step == 3 and value):
                f.work(f"slot{slot}", use, done, kind, f"{names[value]}{step}")
    for step in range(4):
        t = period * step
        f.wait("w0", t + (0 if step == 0 else 26), t + 60)
        f.work("w0", t + 60, t + 84, PRODUCT, "S")
        if step == 3:
            break
        f.works("w0", (t + 84, t + 96, KEY, ""), (t + 96, t + 122, WEIGHT, "P"))
        f.wait("w0", t + 122, t + 138)
        f.works("w0", (t + 138, t + 162, PRODUCT, "O"), (t + 162, t + 174, VALUE, ""))
    for w, shift in ((1, 22), (2, -14), (3, 40)):
        for step in range(4):
            t = period * step + shift
            f.wait(f"w{w}", max(0, t + (0 if step == 0 else 26)), t + 60)
            f.work(f"w{w}", t + 60, t + 84, PRODUCT)
            if step == 3:
                break
            f.works(f"w{w}", (t + 84, t + 96, KEY), (t + 96, t + 122, WEIGHT))
            f.wait(f"w{w}", t + 122, t + 138)
            f.works(f"w{w}", (t + 138, t + 162, PRODUCT), (t + 162, t + 174, VALUE))
    f.signal(1, "slot0", 60, "w0", 62, at=0.42)
    f.signal(2, "w0", 90, "slot0", 90, free=True, at=0.3)
    f.signal(1, "slot1", 130, "w0", 139, at=0.42)
    f.signal(2, "w0", 168, "slot1", 168, free=True, at=0.3)
    for w in range(4):
        f.text(126 + 690, f.lanes[f"w{w}"][0] + f.lanes[f"w{w}"][1] / 2 + 4, "...", size=13, color=SOFT)
    f.text(12, 366, "a tile's end", size=12, bold=True)
    for w in range(4):
        f.lane(f"e{w}", 376 + 22 * w, f"warp {w}", h=16)
        f.works(f"e{w}", (0, 150, OTHER, "own (m, l) and sums of O"), (170, 330, WEIGHT, f"rows {w} and {w + 4} of all four warps"),
                (334, 440, OTHER, "O, or a part"), (460, 556, OTHER, "a part: count it"), (560, 640, PRODUCT, "next tile"))
    f.meets(160, "e0", "e3")
    f.meets(450, "e0", "e3")
    f.note(126, 366, "eight rows at a time; copies of the next tile's keys are under way all the while", size=11)
    f.legend(488, (1, False, "cp_async_wait<5>", "of this warp's groups (one a slot) at most the 5 latest are under way: the oldest slot has landed; then sync_warp"),
             (2, True, "(none)", "the warp is through with its rows of a slot and asks at once for those of three steps later: nobody else reads them"))
    f.key(530, (PRODUCT, "products"), (WEIGHT, "hooks, mask, softmax"), (KEY, "asks for K"), (VALUE, "asks for V"))
    f.note(34, 550, "Dashed in a slot: on its way. Thick lines: sync_block(). S = K Q^T, O += V^T P^T: keys (dims) are an operand's rows, query rows its columns.", size=11)
    return f


def kernel_prefill():
    f = Timeline(506, "mma prefill: warps take turns at bringing a step's keys and are held together by two barriers for each step of the ring")
    f.note(130, 18, "the ring: 4 steps of 64 keys, K and V", size=11)
    for slot in range(4):
        f.lane(f"r{slot}", 28 + 22 * slot, f"ring step {slot}", h=16)
    for w in range(8):
        f.lane(f"w{w}", 128 + 30 * w, f"warp {w}", h=20)
    starts = [70, 200, 330, 460, 590]
    # Brought: step -> (warp, begin, end of the copies' code, landed).
    brought = {0: (0, 0, 26, 66), 1: (1, 0, 26, 90), 2: (2, 0, 26, 114), 3: (3, 196, 222, 270), 4: (4, 328, 354, 410), 5: (5, 460, 486, 540),
               6: (6, 590, 616, 680)}
    used_until = [196, 328, 458, 588, 800]
    for step, (warp, begin, end, landed) in brought.items():
        f.wait(f"r{step % 4}", begin + 13, landed, f"{step} comes" if landed - begin > 70 else "")
        f.work(f"r{step % 4}", landed, used_until[step] if step < 5 else 800, KEY, f"step {step}")
        f.work(f"w{warp}", begin, end, KEY, str(step))
    for w in range(8):
        for step, start in enumerate(starts):
            begin = start + (w * 37 % 23) // 3
            if brought.get(step + 2, (None,))[0] == w and step > 0:
                begin = brought[step + 2][2]
            half = 58 if begin - start < 15 else 50
            if step == 0:
                f.wait(f"w{w}", 26 if w < 3 else 0, begin)
            f.works(f"w{w}", (begin, begin + half, PRODUCT, "0..31" if w in (0, 7) else ""),
                    (begin + half, begin + 2 * half, PRODUCT, "32..63" if w in (0, 7) else ""))
    f.signal(1, "w0", 24, "r0", 62, at=0.3)
    f.signal(2, "r0", 72, "w0", 74, at=0.62)
    f.signal(3, "w7", 196, "w4", 326, free=True, at=0.45)
    f.signal(1, "w4", 350, "r0", 408, at=0.3)
    f.legend(392, (1, False, "full[step]", "33 arrivals: one a lane when its own copies have landed (asynchronously), and one for what was copied by hand"),
             (2, False, "full[step]", "every warp waits there before it takes the step"),
             (3, True, "empty[step]", "8 arrivals, one a warp that is through with the step; only the warp that brings the next keys there waits"))
    f.key(456, (KEY, "brings a step's keys (number: step)"), (PRODUCT, "32 keys: S, mask, softmax, O += P V"))
    f.note(34, 478, "Step s + 2 is brought by warp (s + 2) % 8 before it takes step s itself. Each warp has 32 rows of the tile; tiles of up to 128 (64) rows give the", size=11)
    f.note(34, 494, "same rows to two (four) warps, which deal out the parts of 32 keys and join their states where the tile ends (join_sharers, sync_block).", size=11)
    return f


def kernel_wgmma():
    f = Timeline(504, "wgmma prefill: one warp brings K, one V, two Q; two warpgroups compute and take turns at the tensor cores", left=140)
    f.lane("q", 24, "warps 10, 11", "Q, next tile's rows")
    f.lane("v", 66, "warp 9", "V, two stages")
    f.lane("k", 108, "warp 8", "K, two stages")
    f.lane("g0", 166, "warps 0..3", "rows 0..63")
    f.lane("t0", 208, "tensor cores:", "for warps 0..3", h=20)
    f.lane("t1", 240, "", "for warps 4..7", h=20)
    f.lane("g1", 278, "warps 4..7", "rows 64..127")
    f.works("q", (0, 40, PRODUCT, "Q"))
    f.wait("q", 40, 690, "query_empty: until the tile's last scores are through")
    f.works("k", (0, 50, KEY, "K0"), (50, 100, KEY, "K1"), (165, 215, KEY, "K2"), (385, 435, KEY, "K3"), (605, 655, KEY, "K4"))
    for begin, end in ((100, 165), (215, 385), (435, 605)):
        f.wait("k", begin, end, "key_empty" if end - begin > 70 else "empty")
    f.works("v", (0, 60, VALUE, "V0"), (60, 120, VALUE, "V1"), (485, 545, VALUE, "V2"))
    f.wait("v", 120, 485, "value_empty")
    f.wait("v", 545, 700, "value_empty")
    tensor = [(65, 115, "S0"), (115, 165, "S0"), (225, 275, "S1"), (275, 335, "O+=P0 V0"), (335, 385, "S1"), (385, 445, "O+=P0 V0"),
              (445, 495, "S2"), (495, 555, "O+=P1 V1"), (555, 605, "S2"), (605, 665, "O+=P1 V1")]
    owners = [0, 1, 0, 0, 1, 1, 0, 0, 1, 1]
    for (begin, end, text), owner in zip(tensor, owners):
        f.work(f"t{owner}", begin, end, PRODUCT, text)
    for group, shift in (("g0", 0), ("g1", 0)):
        if group == "g0":
            f.wait(group, 0, 55)
            f.works(group, (55, 65, OTHER, ""), (115, 215, WEIGHT, "P0"), (215, 230, OTHER, ""), (275, 375, WEIGHT, "P1"),
                    (385, 400, OTHER, ""), (495, 595, WEIGHT, "P2"), (605, 620, OTHER, ""))
            for begin, end in ((65, 115), (230, 275), (400, 495)):
                f.wait(group, begin, end, "S" if end - begin > 40 else "")
        else:
            f.wait(group, 0, 65)
            f.works(group, (65, 75, OTHER, ""), (165, 265, WEIGHT, "P0"), (265, 280, OTHER, ""), (385, 485, WEIGHT, "P1"), (495, 510, OTHER, ""),
                    (605, 705, WEIGHT, "P2"))
            for begin, end in ((75, 165), (280, 385), (510, 605)):
                f.wait(group, begin, end, "S")
    f.signal(1, "q", 40, "g0", 46, at=0.4)
    f.signal(2, "k", 50, "g0", 56, at=0.5)
    f.signal(3, "v", 60, "g0", 218, at=0.78)
    f.signal(4, "g0", 62, "g1", 66, at=0.72)
    f.signal(5, "g1", 166, "k", 166, free=True, at=0.84)
    f.signal(6, "g1", 486, "v", 486, free=True, at=0.6)
    f.legend(334, (1, False, "query_full", "2 arrivals: the two warps' rows of Q have landed (query_empty: 8, the consuming warps need Q no more)"),
             (2, False, "key_full[s]", "33 arrivals and the bytes of the boxes: lane 0 counts for all; without boxes each lane arrives as its copies land"),
             (3, False, "value_full[s]", "the same for V; needed a step later than K, when P of the step is ready"),
             (4, False, "kTurnBarrier + g", "named barriers 1 and 2, 256 threads: a group that has issued its products passes the turn to the other"),
             (5, True, "key_empty[s]", "8 arrivals, one a consuming warp, as soon as S is done"),
             (6, True, "value_empty[s]", "8 arrivals, when O += P V of the step has been waited for, behind the next step's softmax"))
    f.key(450, (OTHER, "issues S = Q K^T of this step, O += P V of the last"), (WEIGHT, "P: softmax"), (PRODUCT, "products under way"))
    f.note(34, 472, "A step is 176 keys: 11 boxes of 16 tokens by 64 dims for each half of K's dims, one lane a box; stages 0 and 1 in turn.", size=11)
    f.note(34, 490, "P stays in registers as the left operand of the next step's O += P V. Only a tile's first scores and last sums run alone.", size=11)
    return f


def kernel_mla_small():
    f = Timeline(476, "mma MLA with up to 16 rows: score warps hold Q, value warps sum P V and bring the keys", left=140)
    f.lane("s0", 24, "slot 0", "64 keys, K = V", h=20)
    f.lane("s1", 54, "slot 1", h=20)
    f.lane("s2", 84, "slot 2", h=20)
    f.lane("score", 128, "warps 0..3", "scores, 16 keys each")
    f.lane("p0", 176, "weights 0", "in shared memory", h=18)
    f.lane("p1", 204, "weights 1", h=18)
    f.lane("value", 250, "warps 4..7", "128 dims of V each")
    period = 150
    f.works("value", (0, 20, KEY, "0"), (20, 40, KEY, "1"), (46, 66, KEY, "2"))
    f.wait("value", 66, 150)
    f.wait("score", 0, 40)
    for step in range(5):
        t = 40 + period * step
        slot = f"s{step % 3}"
        begin = 10 + 20 * step if step < 2 else 56 if step == 2 else 226 + period * (step - 3)
        f.wait(slot, begin, min(t, 700), f"{step} comes" if min(t, 700) - begin > 55 else "")
        if step < 4:
            f.work(slot, t, t + 170, KEY, f"step {step}: K, then V")
            f.works("score", (t, t + 60, PRODUCT, "S"), (t + 60, t + 72, OTHER, ""), (t + 72, t + 110, WEIGHT, "P"))
            f.wait("score", t + 110, min(t + period, 700))
            f.work(f"p{step % 2}", t + 90, t + 170, WEIGHT, f"P{step}")
            f.work("value", t + 110, t + 170, PRODUCT, f"O += P V")
            if step < 3:
                f.work("value", t + 176, t + 196, KEY, str(step + 3))
                f.wait("value", t + 196, t + 260)
        else:
            f.works("score", (t, t + 60, PRODUCT, "S"))
    f.signal(1, "s0", 40, "score", 44, at=0.62)
    f.signal(2, "score", 148, "value", 152, at=0.82)
    f.signal(3, "value", 208, "score", 404, free=True, at=0.45)
    f.meets(214, "value", "value")
    f.number(4, 140 + 214, 288, EMPTY)
    f.number(5, 140 + 106, 118, FULL)
    f.legend(318, (1, False, "landed[slot]", "132 arrivals: each lane of the 4 value warps when its copies have landed, and one a warp"),
             (2, False, "full[turn % 2]", "4 arrivals, the score warps: weights, maxima and corrections of the turn are in shared memory"),
             (3, True, "done[turn % 2]", "4 arrivals, the value warps: waited for two turns later, before the weights' place is written again"),
             (4, True, "barrier 2", "the value warps have all left a slot (score warps have, since full): it is filled again, two steps ahead"),
             (5, False, "barrier 1", "the score warps meet within a step: the rows' maxima over all 64 keys"))
    f.key(418, (KEY, "asks for a step's keys (number: step)"), (PRODUCT, "products"), (OTHER, "maxima meet"), (WEIGHT, "softmax, weights"))
    f.note(34, 440, "A turn is a step or a tile's end, whose states go the same way: so score warps begin the next tile while value warps write this one's rows.", size=11)
    f.note(34, 458, "Keys are read from memory once and from shared memory twice: by 16 keys as K, by 128 dims as V.", size=11)
    return f


def kernel_mla_large():
    f = Timeline(404, "mma MLA with up to 64 rows: two score warps share 32 rows; a step's values are summed behind the next step's scores", left=140)
    f.lane("ring", 24, "ring", "4 slots of 32 keys", h=22)
    f.lane("score", 70, "warps 0..3", "scores; bring keys")
    f.lane("p0", 118, "weights 0", h=18)
    f.lane("p1", 146, "weights 1", h=18)
    f.lane("value", 190, "warps 4..11", "64 dims of V each")
    period = 170
    f.works("score", (0, 14, KEY, "0"), (14, 28, KEY, "1"))
    f.wait("score", 28, 46)
    f.wait("value", 0, 290)
    for step in range(4):
        t = 46 + period * step
        f.work("ring", t, min(t + period, 800), KEY, f"step {step} (as V: step {step - 1})" if step else "step 0")
        f.work("score", t, min(t + 72, 800), PRODUCT, f"S{step}")
        if step == 3:
            f.works("score", (t + 72, t + 80, OTHER, ""), (t + 80, t + 120, WEIGHT, "P3"))
        else:
            f.works("score", (t + 72, t + 88, OTHER, ""), (t + 88, t + 130, WEIGHT, f"P{step}"), (t + 130, t + 146, KEY, str(step + 2)))
            f.wait("score", t + 146, t + period)
        if step < 3:
            end = min(t + period + 158, 800)
            f.work(f"p{step % 2}", t + 110, end, WEIGHT, f"P{step}")
        if 0 < step < 4:
            f.work("value", t + 74, min(t + 158, 800), PRODUCT, f"O += P{step - 1} V{step - 1}")
        if 0 < step < 3:
            f.wait("value", t + 158, t + period + 74)
    f.signal(1, "ring", 46, "score", 48, at=0.5)
    f.signal(2, "score", 289, "value", 291, at=0.7)
    f.signal(3, "value", 374, "score", 458, free=True, at=0.4)
    f.number(4, 140 + 126, 60, FULL)
    f.legend(248, (1, False, "cp_async_wait<1>", "each score warp for its own copies, then all four: barrier 1 (128 threads)"),
             (2, False, "full[turn % 2]", "4 arrivals, only once the next step's scores are through, so that products of both kinds do not meet"),
             (3, True, "done[turn % 2]", "8 arrivals, the value warps: the weights' place, and the slot of that turn, are free"),
             (4, False, "barriers 3, 4", "two warps of the same 32 rows have each half of the dims: they exchange products through the slot filled next"))
    f.key(334, (KEY, "asks for a step's keys"), (PRODUCT, "products"), (WEIGHT, "softmax, weights"), (OTHER, "exchange"))
    f.note(34, 358, "A score warp has the products of 32 rows by 32 keys over 288 of the 576 dims, the first six of its 18 steps of Q in registers, the others in", size=11)
    f.note(34, 374, "shared memory; after the exchange it has 16 rows to itself. Two steps are under way before the first is worked on; 4 slots, because that", size=11)
    f.note(34, 390, "of step s - 1 is still read as V while s is scored and s + 1 and s + 2 come.", size=11)
    return f


def kernel_floor():
    f = Timeline(256, "floor: phases of a block of 32 keys, with a barrier of the whole block after each", left=140)
    f.lane("ahead", 40, "threads 0..31", "a key each")
    f.lane("all", 92, "all 128", "")
    f.lane("warp", 144, "a warp a row", "a lane a key")
    for base, number in ((0, 0), (470, 1)):
        f.work("ahead", base, base + 70, OTHER, "places")
        f.meets(base + 78, "ahead", "warp")
        f.work("ahead", base + 86, base + 156, KEY, "next page ids")
        f.work("all", base + 86, base + 200, KEY, "K and V to f32")
        f.meets(base + 208, "ahead", "warp")
        if number == 1:
            continue
        f.work("all", 216, 290, PRODUCT, "S = Q K^T")
        f.meets(298, "ahead", "warp")
        f.work("warp", 306, 372, WEIGHT, "P = softmax")
        f.meets(380, "ahead", "warp")
        f.work("all", 388, 462, PRODUCT, "O += P V")
    f.note(140, 22, "keys 0..31", size=11)
    f.note(610, 22, "keys 32..63", size=11)
    f.note(12, 200, "Thick lines: sync_block(). With transforms or RoPE on keys one more phase and barrier lies between staging and scores; where V has no room of its", size=11)
    f.note(12, 216, "own (stages = 1) it is staged over K during the softmax. Loads of one block of keys and arithmetic of another overlap only across the three", size=11)
    f.note(12, 232, "blocks of a multiprocessor: there is no ring.", size=11)
    return f


def kernel_merge():
    f = Timeline(306, "Merge within the launch: a counter for each merge; who brings the last part merges all of them in part order", left=140)
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
    f.legend(222, (1, False, "atom.add.acq_rel", "after a barrier of the block, so that the block's writes of the part come before it for whoever sees the new value"),
             (2, True, "part_count - 1", "the old value: this part was the last. The block resets the counter for the next launch and merges"))
    f.note(34, 270, "Nobody waits for another block: whoever is not the last goes on with its next item. Which block merges differs from run to run, the order of the", size=11)
    f.note(34, 286, "parts does not: so the bits are the same. Thick lines: barriers of the block's computing threads.", size=11)
    return f


def kernel_rows():
    f = Timeline(330, "Row operators: how a row lies in threads, and what they wait for", left=150)
    f.text(12, 22, "rows of 4,096 bf16", size=12, bold=True)
    f.note(150, 22, "a block of 128 threads has one row: thread t the vectors t, t + 128, t + 256, t + 384, 8 elements each", size=11)
    for v in range(4):
        for t in range(4):
            f.box(150 + 170 * v + 42 * t, 32, 40, 22, ("a", "b", "off", "shared")[t], ["t = 0", "1", "...", "127"][t], size=10)
        f.note(150 + 170 * v + 84, 66, f"elements {1024 * v}..{1024 * v + 1023}", size=10, anchor="middle")
    f.text(12, 92, "heads of 128 bf16", size=12, bold=True)
    f.note(150, 92, "16 threads have a head, and four heads of a row one after the other; a block of 128 threads has eight such fours", size=11)
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
    f.note(12, 262, "One such meeting for each number that needs the whole row: RMSNorm one, LayerNorm two, a scale a token one more. Two sets of numbers in", size=11)
    f.note(12, 278, "shared memory take turns, so that one barrier is enough. Rows that share a warp need none. A block works once: others of the multiprocessor", size=11)
    f.note(12, 294, "load while this one waits. On sm_90 and later the next kernel's blocks may start meanwhile (wait_for_previous_grid, start_next_grid).", size=11)
    return f


def kernel_sampling():
    f = Timeline(360, "Sampling: blocks of a cluster share a row; a bracket from a sample makes one pass enough", left=150)
    f.lane("b0", 44, "block 0", "list, histogram, decides")
    f.lane("b1", 96, "blocks 1..7", "their tiles of the row")
    f.lane("l2", 148, "memory", h=20)
    f.works("b0", (0, 60, KEY, "samples"), (76, 170, WEIGHT, "bracket"), (186, 330, PRODUCT, "pass: sums and list"), (374, 460, WEIGHT, "cut in the list"),
            (476, 560, WEIGHT, "masses by tile"), (564, 624, WEIGHT, "draw"))
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
    f.legend(200, (1, False, "list_key", "all blocks write their sampled keys into block 0's shared memory"),
             (2, False, "tile_mass, list", "a pass adds up what lies above the bracket, by tile, and lists what lies inside; parts go to block 0"),
             (3, True, "bracket or cut", "block 0 has the cut, or a narrower bracket (with a histogram) and all pass again: eight times at most"))
    f.key(268, (KEY, "sampling the row"), (PRODUCT, "a pass over the row"), (WEIGHT, "in shared memory (draw: one tile again, unless few are left)"))
    f.note(12, 292, "Within a pass nobody waits for another thread: each reads from shared memory only what it copied itself (cp_async_wait<3> of a ring of four", size=11)
    f.note(12, 308, "tiles of 16 KiB). Tiles that all fit (six on sm_90) stay there for later passes; others pass forward and backward in turn, so that part is in L2.", size=11)
    f.note(12, 324, "sync_row() is the cluster's barrier, or the block's where a row has one block. Sums are integers: no order of threads can be seen in a token.", size=11)
    f.note(12, 340, "Drawn: top-k, or top-p of probabilities. Logits without top-k and greedy rows begin with a pass for the largest entry, since masses are relative to it.", size=11)
    return f


PIPELINES = [kernel_address, kernel_memory, kernel_decode, kernel_prefill, kernel_wgmma, kernel_mla_small, kernel_mla_large, kernel_floor,
             kernel_merge, kernel_rows, kernel_sampling]
