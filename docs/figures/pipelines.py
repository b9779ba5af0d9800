# The time lines of attention kernels in docs/kernels.md. Sizes are those that `girih source --model llama3-8b` (for MLA deepseek-v3) prints
# for sm_90; names and numbers of arrivals are the kernels'.
from figure import SOFT
from timeline import EMPTY, FULL, KEY, OTHER, PRODUCT, VALUE, WEIGHT, Timeline


def kernel_decode():
    f = Timeline(560, "mma decode: every warp streams its own keys; nobody waits for another warp before the tile's end", left=126)
    f.note(126, 18, "warp 0's rows of the ring: 6 slots of 16 keys each, three steps of K and V", size=11)
    names = ["K", "V"]
    for slot in range(6):
        f.lane(f"slot{slot}", 28 + 24 * slot, f"slot {slot}", h=18)
    f.lane("w0", 186, "warp 0", "keys 0..15 of 64", h=34)
    for w in (1, 2, 3):
        f.lane(f"w{w}", 208 + 34 * w, f"warp {w}", f"keys {16 * w}..{16 * w + 15}", h=24)
    period = 150

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
            f.wait(
                f"slot{slot}",
                begin,
                min(landed(step, value), 800),
                f"{names[value]}{step} comes" if landed(step, value) - begin > 58 else "",
            )
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
        f.works(
            f"e{w}",
            (0, 150, OTHER, "own (m, l) and sums of O"),
            (170, 330, WEIGHT, f"rows {w} and {w + 4} of all four warps"),
            (334, 440, OTHER, "O, or a part"),
            (460, 556, OTHER, "a part: count it"),
            (560, 640, PRODUCT, "next tile"),
        )
    f.meets(160, "e0", "e3")
    f.meets(450, "e0", "e3")
    f.prose(126, 366, "eight rows at a time; copies of the next tile's keys are under way all the while")
    f.legend(
        488,
        (
            1,
            False,
            "cp_async_wait<5>",
            "of this warp's groups (one a slot) at most the 5 latest are under way: the oldest slot has landed; then sync_warp",
        ),
        (
            2,
            True,
            "(none)",
            "the warp is through with its rows of a slot and asks at once for those of three steps later: nobody else reads them",
        ),
    )
    f.key(530, (PRODUCT, "products"), (WEIGHT, "hooks, mask, softmax"), (KEY, "asks for K"), (VALUE, "asks for V"))
    f.prose(
        34,
        550,
        "Dashed in a slot: on its way. Thick lines: sync_block(). S = K Q^T, O += V^T P^T: keys (dims) are an operand's rows, "
        "query rows its columns.",
    )
    return f


def kernel_prefill():
    f = Timeline(
        506, "mma prefill: warps take turns at bringing a step's keys and are held together by two barriers for each step of the ring"
    )
    f.note(130, 18, "the ring: 4 steps of 64 keys, K and V", size=11)
    for slot in range(4):
        f.lane(f"r{slot}", 28 + 22 * slot, f"ring step {slot}", h=16)
    for w in range(8):
        f.lane(f"w{w}", 128 + 30 * w, f"warp {w}", h=20)
    starts = [70, 200, 330, 460, 590]
    # Brought: step -> (warp, begin, end of the copies' code, landed).
    brought = {
        0: (0, 0, 26, 66),
        1: (1, 0, 26, 90),
        2: (2, 0, 26, 114),
        3: (3, 196, 222, 270),
        4: (4, 328, 354, 410),
        5: (5, 460, 486, 540),
        6: (6, 590, 616, 680),
    }
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
            f.works(
                f"w{w}",
                (begin, begin + half, PRODUCT, "0..31" if w in (0, 7) else ""),
                (begin + half, begin + 2 * half, PRODUCT, "32..63" if w in (0, 7) else ""),
            )
    f.signal(1, "w0", 24, "r0", 62, at=0.3)
    f.signal(2, "r0", 72, "w0", 74, at=0.62)
    f.signal(3, "w7", 196, "w4", 326, free=True, at=0.45)
    f.signal(1, "w4", 350, "r0", 408, at=0.3)
    f.legend(
        392,
        (
            1,
            False,
            "full[step]",
            "33 arrivals: one a lane when its own copies have landed (asynchronously), and one for what was copied by hand",
        ),
        (2, False, "full[step]", "every warp waits there before it takes the step"),
        (
            3,
            True,
            "empty[step]",
            "8 arrivals, one a warp that is through with the step; only the warp that brings the next keys there waits",
        ),
    )
    f.key(456, (KEY, "brings a step's keys (number: step)"), (PRODUCT, "32 keys: S, mask, softmax, O += P V"))
    f.prose(
        34,
        478,
        "Step s + 2 is brought by warp (s + 2) % 8 before it takes step s itself. Each warp has 32 rows of the tile; tiles of up "
        "to 128 (64) rows give the same rows to two (four) warps, which deal out the parts of 32 keys and join their states where "
        "the tile ends (join_sharers, sync_block).",
    )
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
        f.wait(slot, begin, t, f"{step} comes" if t - begin > 55 else "")
        if step < 4:
            f.work(slot, t, t + 170, KEY, f"step {step}: K, then V")
            f.works("score", (t, t + 60, PRODUCT, "S"), (t + 60, t + 72, OTHER, ""), (t + 72, t + 110, WEIGHT, "P"))
            f.wait("score", t + 110, t + period)
            f.work(f"p{step % 2}", t + 90, t + 170, WEIGHT, f"P{step}")
            f.work("value", t + 110, t + 170, PRODUCT, "O += P V")
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
    f.legend(
        318,
        (1, False, "landed[slot]", "132 arrivals: each lane of the 4 value warps when its copies have landed, and one a warp"),
        (2, False, "full[turn % 2]", "4 arrivals, the score warps: weights, maxima and corrections of the turn are in shared memory"),
        (3, True, "done[turn % 2]", "4 arrivals, the value warps: waited for two turns later, before the weights' place is written again"),
        (4, True, "barrier 2", "the value warps have all left a slot (score warps have, since full): it is filled again, two steps ahead"),
        (5, False, "barrier 1", "the score warps meet within a step: the rows' maxima over all 64 keys"),
    )
    f.key(418, (KEY, "asks for a step's keys (number: step)"), (PRODUCT, "products"), (OTHER, "maxima meet"), (WEIGHT, "softmax, weights"))
    f.prose(
        34,
        440,
        "A turn is a step or a tile's end, whose states go the same way: so score warps begin the next tile while value warps "
        "write this one's rows. Keys are read from memory once and from shared memory twice: by 16 keys as K, by 128 dims as V.",
    )
    return f


def kernel_mla_large():
    f = Timeline(
        404, "mma MLA with up to 64 rows: two score warps share 32 rows; a step's values are summed behind the next step's scores", left=140
    )
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
        f.work("ring", t, t + period, KEY, f"step {step} (as V: step {step - 1})" if step else "step 0")
        f.work("score", t, t + 72, PRODUCT, f"S{step}")
        if step == 3:
            f.works("score", (t + 72, t + 80, OTHER, ""), (t + 80, t + 120, WEIGHT, "P3"))
        else:
            f.works("score", (t + 72, t + 88, OTHER, ""), (t + 88, t + 130, WEIGHT, f"P{step}"), (t + 130, t + 146, KEY, str(step + 2)))
            f.wait("score", t + 146, t + period)
        if step < 3:
            f.work(f"p{step % 2}", t + 110, t + period + 158, WEIGHT, f"P{step}")
        if step > 0:
            f.work("value", t + 74, t + 158, PRODUCT, f"O += P{step - 1} V{step - 1}")
        if 0 < step < 3:
            f.wait("value", t + 158, t + period + 74)
    f.signal(1, "ring", 46, "score", 48, at=0.5)
    f.signal(2, "score", 289, "value", 291, at=0.7)
    f.signal(3, "value", 374, "score", 458, free=True, at=0.4)
    f.number(4, 140 + 126, 60, FULL)
    f.legend(
        248,
        (1, False, "cp_async_wait<1>", "each score warp for its own copies, then all four: barrier 1 (128 threads)"),
        (
            2,
            False,
            "full[turn % 2]",
            "4 arrivals, only once the next step's scores are through, so that products of both kinds do not meet",
        ),
        (3, True, "done[turn % 2]", "8 arrivals, the value warps: the weights' place, and the slot of that turn, are free"),
        (
            4,
            False,
            "barriers 3, 4",
            "two warps of the same 32 rows have each half of the dims: they exchange products through the slot filled next",
        ),
    )
    f.key(334, (KEY, "asks for a step's keys"), (PRODUCT, "products"), (WEIGHT, "softmax, weights"), (OTHER, "exchange"))
    f.prose(
        34,
        358,
        "A score warp has the products of 32 rows by 32 keys over 288 of the 576 dims, the first six of its 18 steps of Q in "
        "registers, the others in shared memory; after the exchange it has 16 rows to itself. Two steps are under way before the "
        "first is worked on; there are 4 slots, because one step is still read as V while the next is scored and two more come.",
    )
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
    tensor = [
        (65, 115, "S0"),
        (115, 165, "S0"),
        (225, 275, "S1"),
        (275, 335, "O+=P0 V0"),
        (335, 385, "S1"),
        (385, 445, "O+=P0 V0"),
        (445, 495, "S2"),
        (495, 555, "O+=P1 V1"),
        (555, 605, "S2"),
        (605, 665, "O+=P1 V1"),
    ]
    owners = [0, 1, 0, 0, 1, 1, 0, 0, 1, 1]
    for (begin, end, text), owner in zip(tensor, owners):
        f.work(f"t{owner}", begin, end, PRODUCT, text)
    f.wait("g0", 0, 55)
    f.works(
        "g0",
        (55, 65, OTHER),
        (115, 215, WEIGHT, "P0"),
        (215, 230, OTHER),
        (275, 375, WEIGHT, "P1"),
        (385, 400, OTHER),
        (495, 595, WEIGHT, "P2"),
        (605, 620, OTHER),
    )
    f.wait("g1", 0, 65)
    f.works(
        "g1",
        (65, 75, OTHER),
        (165, 265, WEIGHT, "P0"),
        (265, 280, OTHER),
        (385, 485, WEIGHT, "P1"),
        (495, 510, OTHER),
        (605, 705, WEIGHT, "P2"),
    )
    for group, begin, end in (("g0", 65, 115), ("g0", 230, 275), ("g0", 400, 495), ("g1", 75, 165), ("g1", 280, 385), ("g1", 510, 605)):
        f.wait(group, begin, end, "S")
    f.signal(1, "q", 40, "g0", 46, at=0.4)
    f.signal(2, "k", 50, "g0", 56, at=0.5)
    f.signal(3, "v", 60, "g0", 218, at=0.78)
    f.signal(4, "g0", 62, "g1", 66, at=0.72)
    f.signal(5, "g1", 166, "k", 166, free=True, at=0.84)
    f.signal(6, "g1", 486, "v", 486, free=True, at=0.6)
    f.legend(
        334,
        (1, False, "query_full", "2 arrivals: the two warps' rows of Q have landed (query_empty: 8, the consuming warps need Q no more)"),
        (
            2,
            False,
            "key_full[s]",
            "33 arrivals and the bytes of the boxes: lane 0 counts for all; without boxes each lane arrives as its copies land",
        ),
        (3, False, "value_full[s]", "the same for V; needed a step later than K, when P of the step is ready"),
        (
            4,
            False,
            "kTurnBarrier + g",
            "named barriers 1 and 2, 256 threads: a group that has issued its products passes the turn to the other",
        ),
        (5, True, "key_empty[s]", "8 arrivals, one a consuming warp, as soon as S is done"),
        (6, True, "value_empty[s]", "8 arrivals, when O += P V of the step has been waited for, behind the next step's softmax"),
    )
    f.key(450, (OTHER, "issues S = Q K^T of this step, O += P V of the last"), (WEIGHT, "P: softmax"), (PRODUCT, "products under way"))
    f.prose(
        34,
        472,
        "A step is 176 keys: 11 boxes of 16 tokens by 64 dims for each half of K's dims, one lane a box; stages 0 and 1 in turn. "
        "P stays in registers as the left operand of the next step's O += P V. Only a tile's first scores and last sums run "
        "alone.",
    )
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
    f.prose(
        12,
        200,
        "Thick lines: sync_block(). With transforms or RoPE on keys one more phase and barrier lies between staging and scores; "
        "where V has no room of its own (stages = 1) it is staged over K during the softmax. Loads of one block of keys and "
        "arithmetic of another overlap only across the three blocks of a multiprocessor: there is no ring.",
    )
    return f


PIPELINES = [kernel_decode, kernel_prefill, kernel_mla_small, kernel_mla_large, kernel_wgmma, kernel_floor]
