// The variant's mask and logits hook over a step of a large tile. Lanes are query rows, as in the score tile S^T [keys, rows], so both work
// on it as it lies. From the mask comes a step's reach: the rows and keys outside of which everything is hidden are left out of the
// products, and rows that see every key of it skip the select. A row's result does not depend on what else its tile reaches: what is left
// out has weight 0.
#if defined(GIRIH_ATTENTION_CPU_VISIBLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ATTENTION_CPU_VISIBLE_INL_H_
#undef GIRIH_ATTENTION_CPU_VISIBLE_INL_H_
#else
#define GIRIH_ATTENTION_CPU_VISIBLE_INL_H_
#endif

#include <cstring>

#include "attention/cpu_tile-inl.h"
#include "base/math.h"

HWY_BEFORE_NAMESPACE();
namespace girih::attention {
namespace HWY_NAMESPACE {

/// What a step works on: rows [row_begin, row_end), multiples of 16, and keys [key_begin, key_end) of its block; key_begin is even.
struct Reach {
  int row_begin = 0, row_end = 0;
  int key_begin = 0, key_end = 0;
  const std::uint8_t* visible = nullptr;  // [key_end - key_begin, ldr] from key_begin on; null: everything
  bool empty() const { return key_begin == key_end; }
};

/// Prepares the tile's mask. Rows of one token are one lane unless the mask reads the head.
HWY_INLINE void begin_mask(Tile& t) {
  const variant::Code& mask = t.schedule->program.mask;
  const RowVars* rows = t.rows;
  int count = t.num_rows;
  t.mask_by_token = t.schedule->group > 1 && !mask.uses(variant::Var::q_head);
  if (t.mask_by_token) {
    count = 0;
    for (int r = 0; r < t.num_rows; ++r) {
      if (r == 0 || t.rows[r].q_row != t.rows[r - 1].q_row) t.tokens[count++] = t.rows[r];
    }
    rows = t.tokens;
  }
  t.num_mask_rows = count;
  hv::begin_tile_hook(mask, t.run->params, rows, count, static_cast<int>(round_up(count, 16)), t.mask_tile);
  t.mask_begun = true;
}

/// One key's mask from tokens to rows. May write up to 7 bytes past ldr.
HWY_INLINE void spread_tokens(const Tile& t, const std::uint8_t* token, std::uint8_t* visible) {
  const int group = t.schedule->group;
  const int first_head = static_cast<int>(t.rows[0].q_head - static_cast<std::int64_t>(t.kv_head) * group);
  int r = min_int(group - first_head, t.ldr);
  std::memset(visible, token[0], static_cast<std::size_t>(r));
  for (int i = 1; i < t.num_mask_rows && r < t.ldr; ++i, r += group) {
    if (group <= 8) {
      const std::uint64_t bytes = token[i] * 0x0101010101010101U;
      std::memcpy(visible + r, &bytes, 8);
    } else {
      std::memset(visible + r, token[i], static_cast<std::size_t>(min_int(group, t.ldr - r)));
    }
  }
  if (r < t.ldr) std::memset(visible + r, token[t.num_mask_rows - 1], static_cast<std::size_t>(t.ldr - r));
}

inline constexpr int kReachRows = 16;  // a group of rows whose visibility is known together
using ReachTag = hn::CappedTag<std::uint8_t, kReachRows>;

HWY_INLINE bool any_byte(const std::uint8_t* p, int n) {
  std::uint64_t any = 0;
  for (int i = 0; i < n; i += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, p + i, 8);
    any |= eight;
  }
  return any != 0;
}

/// The reach of the bytes t.visible [n, ldr]; fills t.sees_all.
HWY_INLINE Reach find_reach(Tile& t, int n) {
  const std::int64_t ldr = t.ldr;
  Reach reach;
  reach.key_end = n;
  while (reach.key_begin < n && !any_byte(t.visible + reach.key_begin * ldr, t.ldr)) ++reach.key_begin;
  if (reach.empty()) return reach;
  while (!any_byte(t.visible + (reach.key_end - 1) * ldr, t.ldr)) --reach.key_end;
  reach.key_begin &= ~1;
  reach.visible = t.visible + reach.key_begin * ldr;
  constexpr ReachTag d8;
  bool found = false;
  for (int r = 0; r < t.ldr; r += kReachRows) {
    const std::uint8_t* p = t.visible + reach.key_begin * ldr + r;
    bool all = true;
    bool any = false;
    for (int at = 0; at < kReachRows; at += static_cast<int>(hn::MaxLanes(d8))) {
      auto every = hn::Set(d8, std::uint8_t{1});
      auto some = hn::Zero(d8);
      for (int i = 0; i < reach.key_end - reach.key_begin; ++i) {
        const auto seen = hn::LoadU(d8, p + i * ldr + at);
        every = hn::And(every, seen);
        some = hn::Or(some, seen);
      }
      all = all && hn::AllTrue(d8, hn::Ne(every, hn::Zero(d8)));
      any = any || !hn::AllTrue(d8, hn::Eq(some, hn::Zero(d8)));
    }
    t.sees_all[r / kReachRows] = all ? 1 : 0;
    if (!any) continue;
    if (!found) reach.row_begin = r;
    found = true;
    reach.row_end = r + kReachRows;
  }
  return reach;
}

/// What the rows see of the current block.
HWY_INLINE Reach masked_reach(Tile& t) {
  const int n = t.keys.n;
  if (!t.mask_begun) begin_mask(t);
  if (!t.mask_by_token) {
    hv::evaluate_tile_mask(t.mask_tile, t.keys.pos, n, t.visible);
  } else {
    const std::int64_t lanes = round_up(t.num_mask_rows, 16);
    hv::evaluate_tile_mask(t.mask_tile, t.keys.pos, n, t.token_visible);
    for (std::int64_t i = 0; i < n; ++i) spread_tokens(t, t.token_visible + i * lanes, t.visible + i * t.ldr);
  }
  return find_reach(t, n);
}

/// Applies the logits hook to the reached part of S^T [n, ldr].
HWY_INLINE void large_logits(Tile& t, const Reach& reach) {
  if (!t.logits_begun) {
    hv::begin_tile_hook(t.schedule->program.logits, t.run->params, t.rows, t.num_rows, t.ldr, t.logits_tile);
    t.logits_begun = true;
  }
  hv::evaluate_tile_logits(t.logits_tile, t.keys.pos, t.keys.n, reach.row_begin, reach.row_end - reach.row_begin, t.scores, t.ldr);
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::attention
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ATTENTION_CPU_VISIBLE_INL_H_
