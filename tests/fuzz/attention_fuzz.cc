// Bytes become a small spec and batch; schedule, plan and run must match the reference. With the first byte odd, the batch's arrays are
// damaged after they are built: then only an Error may come out, or a run that writes nothing outside the outputs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "cases/attention.h"

namespace girih::cases {
namespace {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  /// A number in [0, n), 0 when the bytes have run out.
  std::int64_t below(std::int64_t n) { return take() % n; }
  std::int64_t take() {
    if (at_ >= size_) return 0;
    return data_[at_++];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

void choose_types(Bytes& b, AttentionSpec& spec) {
  using G = ScaleGranularity;
  constexpr std::array kFloats{DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};  // the last two are written only
  constexpr std::array kKv{DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8, DType::nvfp4, DType::mxfp4};
  spec.q_dtype = kFloats[static_cast<std::size_t>(b.below(3))];
  spec.o_dtype = kFloats[static_cast<std::size_t>(b.below(5))];
  const auto scale_of = [&](DType t) {
    if (bits(t) > 8) return G::none;
    if (bits(t) == 4) return G::block;
    return std::array{G::tensor, G::head, G::token_head}[static_cast<std::size_t>(b.below(3))];
  };
  spec.k_dtype = kKv[static_cast<std::size_t>(b.below(8))];
  spec.k_scale = scale_of(spec.k_dtype);
  spec.v_dtype = kKv[static_cast<std::size_t>(b.below(8))];
  spec.v_scale = scale_of(spec.v_dtype);
}

void choose_variant(Bytes& b, AttentionCase& c) {
  Variant& v = c.spec.variant;
  const std::int64_t n = 1 + b.below(20);
  const std::array masks{Expr(),
                         variants::causal(),
                         variants::sliding_window(n),
                         variants::window(n, b.below(6)),
                         variants::chunked_local(n),
                         variants::causal() & (variants::first_tokens(b.below(4)) | variants::window(n)),
                         (kv_pos() + q_head()) % 3 != 0,
                         variants::document(ParamTime::plan),
                         variants::document(ParamTime::run),
                         q_pos() * 2 < kv_pos() * n,
                         (kv_pos() / n == q_pos() / n) | (abs(q_idx() - request()) < kv_pos() % 5)};
  v.mask = masks[static_cast<std::size_t>(b.below(static_cast<std::int64_t>(masks.size())))];
  std::vector<std::int32_t> ids;
  for (std::int64_t p = 0; p < 40; ++p) ids.push_back(static_cast<std::int32_t>(p / n));
  for (int which = 7; which <= 8; ++which) {
    if (v.mask.node() == masks[static_cast<std::size_t>(which)].node()) {
      c.params.push_back({"document_id", which == 7 ? ParamTime::plan : ParamTime::run, ids});
    }
  }
  const std::int64_t hooks = b.take();
  if (hooks & 1) v.logits = variants::soft_cap(3);
  if (hooks & 2) {
    v.sink = variants::sinks();
    c.params.push_back({"sinks", ParamTime::run, std::vector<float>(static_cast<std::size_t>(c.spec.num_qo_heads), 0.25F)});
  }
  if ((hooks & 4) && c.spec.head_dim_qk >= 2)
    v.rope = Rope{.theta = 10000,
                  .scale = 1,
                  .rotary_dim = c.spec.head_dim_qk / 2 * 2,
                  .rotary_begin = 0,
                  .interleave = (hooks & 8) != 0,
                  .llama31 = {}};
  if (hooks & 16) v.value = x() * 0.5 + Expr(0.125) * kv_head();
  c.spec.lse = std::array{LseKind::natural, LseKind::none, LseKind::base2}[static_cast<std::size_t>(b.below(3))];
  if (hooks & 32) c.spec.batch_invariant = true;
  if ((hooks & 64) && c.spec.lse != LseKind::none) c.spec.partial_state = true;
}

AttentionCase choose_case(Bytes& b) {
  AttentionCase c;
  c.name = "fuzz";
  AttentionSpec& spec = c.spec;
  spec.num_kv_heads = static_cast<int>(1 + b.below(3));
  spec.num_qo_heads = spec.num_kv_heads * static_cast<int>(1 + b.below(5));
  spec.head_dim_qk = static_cast<int>(1 + b.below(40));
  spec.head_dim_vo = static_cast<int>(1 + b.below(40));
  choose_types(b, spec);
  if (b.below(4) == 0) spec.head_dim_rope = static_cast<int>(b.below(spec.head_dim_qk));
  if (b.below(4) == 0) {
    spec.v_is_k = true;
    spec.head_dim_vo = std::min(spec.head_dim_vo, spec.head_dim_qk - spec.head_dim_rope);
  }
  choose_variant(b, c);
  const std::int64_t requests = b.below(5);
  std::int64_t tokens = 0;
  for (std::int64_t r = 0; r < requests; ++r) {
    c.q_len.push_back(b.below(7));
    tokens += c.q_len.back();
  }
  const std::int64_t num_segments = 1 + b.below(2);
  for (std::int64_t s = 0; s < num_segments; ++s) {
    SegmentCase& sc = c.segments.emplace_back();
    sc.layout = kLayouts[static_cast<std::size_t>(b.below(static_cast<std::int64_t>(kLayouts.size())))];
    if (sc.layout == Layout::token_contiguous_v && bits(spec.v_dtype) == 4) sc.layout = Layout::hnd;
    sc.page_size = 1 + b.below(9);
    sc.strided_table = b.below(2) == 1;
    sc.masked = b.below(8) != 0;
    if (b.below(3) == 0 && tokens > 0) sc.qo_indptr = {0, b.below(tokens + 1), tokens};
    if (b.below(4) == 0 && num_segments == 1 && c.q_len.size() > 0) sc.num_table_heads = spec.num_kv_heads;
    const std::int64_t groups = sc.qo_indptr.empty() ? requests : 2;
    for (std::int64_t i = 0; i < groups * sc.num_table_heads; ++i) sc.kv_len.push_back(b.below(60));
    if (!is_ragged(sc.layout) && b.below(4) == 0) {
      for (std::int64_t len : sc.kv_len) {
        for (std::int64_t p = 0; p < (len + sc.page_size - 1) / sc.page_size; ++p) sc.page_pos.push_back(b.below(200));
      }
    } else if (b.below(4) == 0) {
      for (std::int64_t g = 0; g < groups; ++g) sc.kv_pos.push_back(b.below(100));
    }
  }
  // Where a request lies under several groups, or its length is not the sum of its keys, it is stated.
  for (std::int64_t r = 0; r < requests; ++r) c.kv_len.push_back(b.below(200));
  return c;
}

/// Overwrites one to four entries of the index arrays, in place: the batch refers to them.
void damage(Bytes& b, Problem& p) {
  constexpr std::array<std::int64_t, 10> kValues{0, 1, -1, 2, 7, 63, INT32_MAX, INT64_MAX, INT64_MIN, 1000};
  const auto hit = [&](std::vector<std::int64_t>& a) {
    if (!a.empty())
      a[static_cast<std::size_t>(b.below(static_cast<std::int64_t>(a.size())))] = kValues[static_cast<std::size_t>(b.below(10))];
  };
  for (std::int64_t left = 1 + b.below(4); left > 0; --left) {
    const auto s = static_cast<std::size_t>(b.below(static_cast<std::int64_t>(p.memory.size())));
    SegmentMemory& m = p.memory[s];
    switch (b.below(9)) {
      case 0: hit(p.qo_indptr); break;
      case 1: hit(p.c.segments[s].kv_len); break;
      case 2: hit(m.kv_indptr); break;
      case 3: hit(p.c.segments[s].kv_pos); break;
      case 4: hit(m.page_pos); break;
      case 5: hit(p.c.segments[s].qo_indptr); break;
      case 6: hit(p.c.kv_len); break;
      case 7: p.segments[s].table_stride = kValues[static_cast<std::size_t>(b.below(10))]; break;
      default:
        if (!m.kv_indices.empty()) {
          m.kv_indices[static_cast<std::size_t>(b.below(static_cast<std::int64_t>(m.kv_indices.size())))] =
              static_cast<std::int32_t>(kValues[static_cast<std::size_t>(b.below(10))]);
        }
    }
  }
}

[[noreturn]] void broken(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::abort();
}

void compare(const Problem& p, const Outputs& out) {
  const auto expected = reference(p);
  for (std::int64_t t = 0; t < p.num_tokens(); ++t) {
    for (std::int64_t h = 0; h < p.spec.num_qo_heads; ++h) {
      const ref::RowResult& row = expected[static_cast<std::size_t>(t * p.spec.num_qo_heads + h)];
      ref::Tolerance tol = ref::tolerance(p.spec.o_dtype, p.spec.head_dim_qk, row.num_visible, out.bf16_weights);
      tol.o_tiny *= out.unit();
      for (std::int64_t d = 0; d < p.spec.head_dim_vo; ++d) {
        const double want = std::clamp(row.o[static_cast<std::size_t>(d)], -out.largest(), out.largest());
        const double error = std::fabs(out.o_at(t, h, d) - want);
        if (!(error <= ref::o_tolerance(tol, row, static_cast<std::size_t>(d))))
          broken(fmt::format("o[{}, {}, {}] is off by {}", t, h, d, error));
      }
      if (p.spec.lse == LseKind::none) continue;
      const double unit = p.spec.lse == LseKind::base2 ? 1 / std::log(2.0) : 1;
      const double got = out.lse_at(t, h);
      const double want = row.lse * unit;
      if (std::isfinite(want) ? !(std::fabs(got - want) <= ref::lse_tolerance(tol, row) * unit) : got != want) {
        broken(fmt::format("lse[{}, {}] = {}, want {}", t, h, got, want));
      }
    }
  }
}

}  // namespace
}  // namespace girih::cases

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace girih;
  using namespace girih::cases;
  Bytes b(data, size);
  const bool damaged = b.take() % 2 == 1;
  static const std::vector<CpuTarget> kTargets = available_cpu_targets();
  const Context context(
      {.device = {}, .num_workers = 1, .target = kTargets[static_cast<std::size_t>(b.take()) % kTargets.size()], .log = {}});
  const int units = static_cast<int>(1 + b.below(5));
  Problem p(choose_case(b));
  Outputs out(p);
  const std::int64_t workspace_limit = 1 << 28;
  try {
    const Schedule schedule = girih::schedule(context, p.c.spec, p.limits, {.num_units = units});
    if (damaged) damage(b, p);
    Plan plan(schedule);
    const std::int64_t needed = plan.update(p.batch).workspace_bytes;
    if (needed > schedule.workspace_bytes() || needed > workspace_limit) broken("a plan outgrows its schedule");
    Workspace workspace(needed, kNanPattern);
    AttentionArgs args = make_args(p, out, workspace.span());
    run(context, schedule, plan, args);
    out.bf16_weights = schedule.state().bf16_dot;
  } catch (const Error& e) {
    if (e.code() == Code::internal) broken(e.what());
    if (!out.untouched()) broken(std::string("outputs written before: ") + e.what());
    // An undamaged batch may only be refused for a stated limit of what is supported.
    if (!damaged && e.code() != Code::unsupported && !p.c.spec.batch_invariant)
      broken(std::string("a good batch was refused: ") + e.what());
    return 0;
  }
  if (!out.canaries_intact()) broken("memory outside the outputs was written");
  if (!damaged) compare(p, out);
  return 0;
}
