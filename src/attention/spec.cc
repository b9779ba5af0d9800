// Spec validation and the capability table it reads. The table is data: a backend that learns something adds a row or a word here.
#include "attention/spec.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "xxhash.h"

namespace girih {

std::vector<AttentionCapability> attention_capabilities() {
  const std::vector<DType> plain = {DType::f32, DType::f16, DType::bf16};
  const std::vector<DType> written = {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};
  const std::vector<DType> stored = {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8, DType::nvfp4, DType::mxfp4};
  const std::vector<std::string> all = {"ragged",      "paged",       "strided_table", "per_head_table", "page_pos",        "cascade",
                                        "mla",         "two_part_qk", "rope",          "mask",           "logits",          "transforms",
                                        "sink",        "softmax_off", "lse",           "partial_state",  "batch_invariant", "token_group",
                                        "k_rope_dtype"};
  const auto row = [&](DeviceKind device, std::string family) {
    return AttentionCapability{.device = device,
                               .family = std::move(family),
                               .q_dtypes = plain,
                               .o_dtypes = written,
                               .kv_dtypes = stored,
                               .max_head_dim = 1024,
                               .features = all};
  };
  // The first row of a device is what its specs are checked against: the family that takes everything the device does.
  AttentionCapability floor = row(DeviceKind::cuda, "floor");
  floor.q_dtypes.push_back(DType::e4m3);
  AttentionCapability mma = row(DeviceKind::cuda, "mma");
  mma.q_dtypes = {DType::f16, DType::bf16, DType::e4m3};  // e4m3: K and V of 8 bits
  mma.kv_dtypes = {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8, DType::nvfp4, DType::mxfp4};
  mma.max_head_dim = 256;
  std::erase(mma.features, "rope");
  std::erase(mma.features, "transforms");
  std::erase(mma.features, "token_group");  // but for MLA's, as the next
  std::erase(mma.features, "k_rope_dtype");
  AttentionCapability wgmma = mma;
  wgmma.family = "wgmma";
  wgmma.kv_dtypes = {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8};  // 8 bits beside Q of 16, MLA's too: if asked for
  std::erase(wgmma.features, "two_part_qk");                                         // but for MLA's
  return {row(DeviceKind::cpu, "cpu"), std::move(floor), std::move(mma), std::move(wgmma)};
}

namespace attention {
namespace {

constexpr const char* kOp = "attention.schedule";

std::string list(const std::vector<DType>& types) {
  std::string text;
  for (DType t : types) text += (text.empty() ? "" : ", ") + std::string(name(t));
  return text;
}

void check_dtype(const char* field, DType value, const std::vector<DType>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    fail(Code::unsupported, kOp, "spec.{}={} is not supported here; choose one of {}", field, name(value), list(allowed));
  }
}

const char* granularity_name(ScaleGranularity g) {
  constexpr std::array<const char*, 6> names = {"none", "tensor", "head", "token_head", "block", "token_group"};
  const auto i = static_cast<std::size_t>(g);
  return i < names.size() ? names[i] : "?";
}

/// `dim`: of the plane.
void check_scale(const char* field, ScaleGranularity g, DType dtype, int dim) {
  const bool block_type = dtype == DType::nvfp4 || dtype == DType::mxfp4;
  if (!is_quantised(dtype)) {
    if (g != ScaleGranularity::none) {
      fail(Code::invalid_argument, kOp, "spec.{}={} but {} data has no scales; use none", field, granularity_name(g), name(dtype));
    }
  } else if (block_type ? g != ScaleGranularity::block
                        : g == ScaleGranularity::none || g == ScaleGranularity::block || g > ScaleGranularity::token_group) {
    fail(Code::invalid_argument, kOp, "spec.{}={} does not fit {} data; use {}", field, granularity_name(g), name(dtype),
         block_type ? "block" : "tensor, head, token_head or token_group");
  }
  if (g == ScaleGranularity::token_group && dim % kScaleGroup != 0) {
    fail(Code::invalid_argument, kOp, "spec.{}=token_group with a plane of {} dims; must be a multiple of the {} that share a scale", field,
         dim, kScaleGroup);
  }
}

/// K's second tensor: of K's type with scales like K's, or of a float type.
void check_rope_part(const AttentionSpec& spec) {
  if (spec.head_dim_rope == 0) {
    if (spec.k_rope_dtype)
      fail(Code::invalid_argument, kOp, "spec.k_rope_dtype={} but spec.head_dim_rope=0: K has no second tensor", name(*spec.k_rope_dtype));
    return;
  }
  const DType type = *spec.k_rope_dtype;
  if (type != spec.k_dtype && type != DType::f32 && type != DType::f16 && type != DType::bf16) {
    fail(Code::invalid_argument, kOp, "spec.k_rope_dtype={} beside k_dtype={}; must be the same, or f32, f16 or bf16", name(type),
         name(spec.k_dtype));
  }
  if (rope_scale(spec) != ScaleGranularity::none) check_scale("k_scale", spec.k_scale, type, spec.head_dim_rope);
}

void check_head_dim(const char* field, int value, int max) {
  if (value < 1 || value > max) fail(Code::invalid_argument, kOp, "spec.{}={} is outside 1..{}", field, value, max);
}

}  // namespace

DType rope_dtype(const AttentionSpec& spec) { return spec.k_rope_dtype.value_or(spec.k_dtype); }
ScaleGranularity rope_scale(const AttentionSpec& spec) { return is_quantised(rope_dtype(spec)) ? spec.k_scale : ScaleGranularity::none; }

bool is_quantised(DType t) { return t == DType::e4m3 || t == DType::e5m2 || t == DType::i8 || t == DType::nvfp4 || t == DType::mxfp4; }

AttentionSpec normalise(const AttentionSpec& given, const variant::Program& program, DeviceKind device) {
  const auto table = attention_capabilities();
  const auto row = std::find_if(table.begin(), table.end(), [&](const auto& r) { return r.device == device; });
  if (row == table.end()) fail(Code::unsupported, kOp, "context.device=cuda has no attention in this build; use a CPU context");

  AttentionSpec spec = given;
  if (spec.num_kv_heads < 1 || spec.num_kv_heads > 65535) {
    fail(Code::invalid_argument, kOp, "spec.num_kv_heads={} is outside 1..65535", spec.num_kv_heads);
  }
  if (spec.num_qo_heads < 1 || spec.num_qo_heads % spec.num_kv_heads != 0) {
    fail(Code::invalid_argument, kOp, "spec.num_qo_heads={} is not a positive multiple of spec.num_kv_heads={}", spec.num_qo_heads,
         spec.num_kv_heads);
  }
  check_head_dim("head_dim_qk", spec.head_dim_qk, row->max_head_dim);
  if (spec.head_dim_vo == 0) spec.head_dim_vo = spec.head_dim_qk;
  check_head_dim("head_dim_vo", spec.head_dim_vo, row->max_head_dim);
  if (spec.head_dim_rope < 0 || spec.head_dim_rope >= spec.head_dim_qk) {
    fail(Code::invalid_argument, kOp, "spec.head_dim_rope={} is outside 0..head_dim_qk-1={}", spec.head_dim_rope, spec.head_dim_qk - 1);
  }
  check_dtype("q_dtype", spec.q_dtype, row->q_dtypes);
  check_dtype("o_dtype", spec.o_dtype, row->o_dtypes);
  check_dtype("k_dtype", spec.k_dtype, row->kv_dtypes);
  if (spec.v_is_k) {
    if (spec.head_dim_vo > first_part_dim(spec)) {
      fail(Code::invalid_argument, kOp, "spec.head_dim_vo={} exceeds the {} dims of K that V is a view of (v_is_k)", spec.head_dim_vo,
           first_part_dim(spec));
    }
    spec.v_dtype = spec.k_dtype;
    spec.v_scale = spec.k_scale;
  }
  check_dtype("v_dtype", spec.v_dtype, row->kv_dtypes);
  check_scale("k_scale", spec.k_scale, spec.k_dtype, first_part_dim(spec));
  if (!spec.v_is_k) check_scale("v_scale", spec.v_scale, spec.v_dtype, spec.head_dim_vo);
  if (spec.head_dim_rope > 0) spec.k_rope_dtype = rope_dtype(spec);
  check_rope_part(spec);
  if (!std::isfinite(spec.sm_scale)) fail(Code::invalid_argument, kOp, "spec.sm_scale={} is not finite", spec.sm_scale);
  if (spec.sm_scale == 0) spec.sm_scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim_qk));

  if (!program.softmax && spec.lse != LseKind::none) {
    fail(Code::invalid_argument, kOp, "spec.lse is asked for, but attention without softmax (variant.softmax=false) has no LSE; use none");
  }
  if (spec.partial_state && (spec.lse == LseKind::none || !program.softmax)) {
    fail(Code::invalid_argument, kOp,
         "spec.partial_state=true needs spec.lse (natural or base2) and softmax, or the state cannot be merged");
  }
  if (spec.partial_state && bits(spec.o_dtype) == 8) {
    fail(Code::unsupported, kOp, "spec.o_dtype={} with partial_state: a state to be merged needs f32, f16 or bf16", name(spec.o_dtype));
  }
  if (!program.texts.empty() && device == DeviceKind::cpu) {
    fail(Code::unsupported, kOp,
         "spec.variant holds the CUDA text \"{}\" (cuda_code), which only a CUDA compiler understands; use a CUDA context, or write it as "
         "an "
         "expression",
         program.texts[0].name);
  }
  if (program.rope) {
    const Rope& rope = *program.rope;
    const int dim = rope.rotary_dim == 0 ? spec.head_dim_qk - rope.rotary_begin : rope.rotary_dim;
    if (rope.rotary_begin < 0 || dim < 2 || dim % 2 != 0 || rope.rotary_begin + dim > spec.head_dim_qk) {
      fail(Code::invalid_argument, kOp,
           "variant.rope: rotary_begin={} and rotary_dim={} do not give an even number of dims within head_dim_qk={}", rope.rotary_begin,
           rope.rotary_dim, spec.head_dim_qk);
    }
  }
  return spec;
}

std::string spec_key(const AttentionSpec& s, const variant::Program& program) {
  const auto scale_letter = [](ScaleGranularity g) {
    return std::array<const char*, 6>{"", "t", "h", "th", "b", "tg"}[static_cast<std::size_t>(g)];
  };
  std::string key = fmt::format("attention_{}x{}_d{}", s.num_qo_heads, s.num_kv_heads, s.head_dim_qk);
  if (s.head_dim_rope > 0) key += fmt::format("r{}", s.head_dim_rope);
  if (s.head_dim_rope > 0 && rope_dtype(s) != s.k_dtype) key += name(rope_dtype(s));
  if (s.head_dim_vo != s.head_dim_qk) key += fmt::format("_{}", s.head_dim_vo);
  key += fmt::format("_{}_k_{}{}", name(s.q_dtype), name(s.k_dtype), scale_letter(s.k_scale));
  key += s.v_is_k ? std::string("_vk") : fmt::format("_v_{}{}", name(s.v_dtype), scale_letter(s.v_scale));
  key += fmt::format("_o_{}", name(s.o_dtype));
  if (s.lse != LseKind::none) key += s.lse == LseKind::natural ? "_lse" : "_lse2";
  if (s.partial_state) key += "_partial";
  if (s.batch_invariant) key += "_invariant";
  return key + fmt::format("_{:08x}", static_cast<std::uint32_t>(XXH3_64bits(program.key_text.data(), program.key_text.size())));
}

}  // namespace attention
}  // namespace girih
