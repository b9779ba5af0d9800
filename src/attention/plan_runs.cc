// Which keys a tile sees. The mask is proven over the hull of the tile's rows and runs of key positions come back; here they become runs
// of key indices. The one idea: a mask of q_pos - kv_pos alone looks the same from every tile of one height, so it is solved once
// around position 0 and shifted, which makes the causal prefill of a long prompt cost a few nanoseconds a tile.
#include <algorithm>

#include "attention/planner.h"

namespace girih::attention {

using variant::Box;
using variant::MaskProver;
using variant::Tri;

bool is_shift_invariant(const variant::Code& mask) {
  using variant::Op;
  enum class Move : std::uint8_t { stays, shifts, unknown };  // what a value does when q_pos and kv_pos both move by one
  std::vector<Move> moves;
  for (const variant::Instruction& in : mask.instructions) {
    const auto arg = [&](int i) { return moves[static_cast<std::size_t>(in.args[i])]; };
    bool stay = true;
    bool shift = true;
    for (int i = 0; i < variant::kMaxArgs && in.args[static_cast<std::size_t>(i)] >= 0; ++i) {
      stay = stay && arg(i) == Move::stays;
      shift = shift && arg(i) == Move::shifts;
    }
    Move move = stay ? Move::stays : Move::unknown;
    switch (in.op) {
      case Op::var: move = in.var == variant::Var::q_pos || in.var == variant::Var::kv_pos ? Move::shifts : Move::unknown; break;
      case Op::add:
        if ((arg(0) == Move::shifts && arg(1) == Move::stays) || (arg(0) == Move::stays && arg(1) == Move::shifts)) move = Move::shifts;
        break;
      case Op::sub:
        if (arg(0) == Move::shifts && arg(1) == Move::stays) move = Move::shifts;
        if (shift) move = Move::stays;
        break;
      case Op::min:
      case Op::max:
        if (shift) move = Move::shifts;
        break;
      case Op::lt:
      case Op::le:
      case Op::eq:
      case Op::ne:
        if (shift) move = Move::stays;
        break;
      default: break;
    }
    // f32 rounds differently at other positions; integers only.
    if (in.type == ExprType::number && move == Move::shifts) move = Move::unknown;
    moves.push_back(move);
  }
  return !moves.empty() && moves.back() == Move::stays;
}

TileMask::TileMask(const variant::Program& program) : prover_(program) {
  const variant::Code& mask = program.mask;
  differs_by_head_ = !mask.empty() && (prover_.uses_q_head() || mask.uses(variant::Var::kv_head));
  shift_invariant_ = is_shift_invariant(mask);
}

void TileMask::bind(const variant::ParamTable& params) {
  prover_.bind(params);
  for (Relative& r : relative_) r.height = -1;
}

void TileMask::find_shifted(const variant::Range& q_pos, std::int64_t key, std::int64_t pos, std::int64_t len, std::int64_t grain,
                            std::vector<KeyRun>& runs) {
  const std::int64_t height = q_pos.hi - q_pos.lo;
  const std::int64_t begin = pos - q_pos.lo;
  const std::int64_t end = begin + len;
  Relative& r = relative_[static_cast<std::size_t>(height) % kHeights];
  if (r.height != height || r.begin > begin || r.end < end) {
    // Twice as wide as asked, so that tiles further along find it done.
    r.begin = (r.height == height ? std::min(r.begin, begin) : begin) - len;
    r.end = (r.height == height ? std::max(r.end, end) : end) + len;
    r.height = height;
    r.runs.clear();
    Box at_zero{};
    at_zero.q_pos = {0, height};
    prover_.find_runs(at_zero, r.begin, r.end, grain, r.runs);
    const bool any = !r.runs.empty() && r.runs.front().always;
    r.all_begin = any ? r.runs.front().begin : 0;
    r.all_end = any ? r.runs.front().end : 0;
  }
  auto run = r.runs.begin();
  if (r.runs.size() > 8)
    run = std::lower_bound(run, r.runs.end(), begin, [](const MaskProver::Run& a, std::int64_t b) { return a.end <= b; });
  const std::int64_t shift = key - begin;
  for (; run != r.runs.end() && run->begin < end; ++run) {
    if (run->end <= begin) continue;
    runs.push_back({std::max(run->begin, begin) + shift, std::min(run->end, end) + shift, run->always});
  }
}

void TileMask::find_stretch(const Box& box, std::int64_t key, std::int64_t pos, std::int64_t len, std::int64_t grain,
                            std::vector<KeyRun>& runs) {
  if (shift_invariant_) return find_shifted(box.q_pos, key, pos, len, grain, runs);
  found_.clear();
  prover_.find_runs(box, pos, pos + len, grain, found_);
  for (const MaskProver::Run& run : found_) runs.push_back({run.begin - pos + key, run.end - pos + key, run.always});
}

void TileMask::find(const Box& box, std::span<const Stretch> stretches, std::int64_t kv_block, std::vector<KeyRun>& runs) {
  if (stretches.size() == 1) {
    const Stretch& all = stretches.front();
    return find_stretch(box, all.key_begin, all.pos, all.key_end - all.key_begin, kv_block, runs);
  }
  // Whole KV blocks inside one stretch are proven together; a block that several stretches share by the hull of its positions.
  std::size_t s = 0;
  const std::int64_t end = stretches.empty() ? 0 : stretches.back().key_end;
  for (std::int64_t key = 0; key < end;) {
    while (stretches[s].key_end <= key) ++s;
    const Stretch& here = stretches[s];
    const bool to_end = here.key_end == end;
    const std::int64_t len = to_end ? end - key : (here.key_end - key) / kv_block * kv_block;
    if (len > 0) {
      find_stretch(box, key, here.pos + key - here.key_begin, len, kv_block, runs);
      key += len;
      continue;
    }
    const std::int64_t block_end = std::min(key + kv_block, end);
    variant::Range hull{here.pos + key - here.key_begin, here.pos + here.key_end - 1 - here.key_begin};
    for (std::size_t t = s + 1; t < stretches.size() && stretches[t].key_begin < block_end; ++t) {
      const std::int64_t last = std::min(stretches[t].key_end, block_end) - stretches[t].key_begin - 1;
      hull.lo = std::min(hull.lo, stretches[t].pos);
      hull.hi = std::max(hull.hi, stretches[t].pos + last);
    }
    const Tri seen = prover_.classify(box, hull);
    if (seen != Tri::never) runs.push_back({key, block_end, seen == Tri::always});
    key = block_end;
  }
}

}  // namespace girih::attention
