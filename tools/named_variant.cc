// See named_variant.h. visible_to_row() restates each mask as an interval of keys per row, so that benchmarks do not trust the planner's
// counts.
#include "tools/named_variant.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace girih::tools {
namespace {

constexpr std::int64_t kMaxDocumentPositions = std::int64_t{1} << 22;  // 16 MiB of ids

void add_plan_array(NamedVariant& named, std::string_view name) {
  ParamValue value{.name = name};
  value.array = TensorView(named.i32.data(), DType::i32, {std::ssize(named.i32)});
  named.plan_params.push_back(value);
}

void add_run_array(NamedVariant& named, std::string_view name, std::vector<float>& values) {
  ParamValue value{.name = name};
  value.array = TensorView(values.data(), DType::f32, {std::ssize(values)});
  named.run_params.push_back(value);
}

std::vector<std::int32_t> document_ids(const NamedCall& mask, std::string_view what, std::int64_t positions) {
  mask.check_args(what, {"size", "lens"});
  if (positions > kMaxDocumentPositions) {
    fail(Code::invalid_argument, what, "document takes at most {} positions, the batch has {}", kMaxDocumentPositions, positions);
  }
  std::vector<std::int32_t> ids(static_cast<std::size_t>(positions));
  if (mask.has("size") == mask.has("lens")) fail(Code::invalid_argument, what, "document needs either size or lens");
  if (mask.has("size")) {
    const std::int64_t size = mask.integer(what, "size", 1, kMaxLength);
    for (std::int64_t p = 0; p < positions; ++p) ids[static_cast<std::size_t>(p)] = static_cast<std::int32_t>(p / size);
    return ids;
  }
  std::int64_t p = 0;
  std::int32_t id = 0;
  for (std::int64_t len : mask.integers(what, "lens", 0, kMaxLength)) {
    const std::int64_t end = std::min(positions, p + len);
    for (; p < end; ++p) ids[static_cast<std::size_t>(p)] = id;
    ++id;
  }
  for (; p < positions; ++p) ids[static_cast<std::size_t>(p)] = id;
  return ids;
}

void set_mask(NamedVariant& named, const NamedCall& mask, const VariantShape& shape, std::string_view what) {
  Expr& expr = named.variant.mask;
  if (mask.name == "full" || mask.name == "causal") {
    mask.check_args(what, {});
    if (mask.name == "causal") expr = variants::causal();
  } else if (mask.name == "window") {
    mask.check_args(what, {"left", "right"});
    expr = variants::window(mask.integer(what, "left", -1, kMaxLength), mask.integer_or(what, "right", 0, -1, kMaxLength));
  } else if (mask.name == "sliding_window") {
    mask.check_args(what, {"size"});
    expr = variants::sliding_window(mask.integer(what, "size", 1, kMaxLength));
  } else if (mask.name == "chunked_local") {
    mask.check_args(what, {"size"});
    expr = variants::chunked_local(mask.integer(what, "size", 1, kMaxLength));
  } else if (mask.name == "streaming") {
    mask.check_args(what, {"first", "left"});
    expr =
        (variants::first_tokens(mask.integer(what, "first", 0, kMaxLength)) | variants::window(mask.integer(what, "left", 0, kMaxLength))) &
        variants::causal();
  } else if (mask.name == "prefix_lm") {
    mask.check_args(what, {"prefix_len"});
    const std::vector<std::int64_t> lens = mask.integers(what, "prefix_len", 0, kMaxLength);
    if (std::ssize(lens) != 1 && std::ssize(lens) != shape.num_requests) {
      fail(Code::invalid_argument, what, "prefix_len has {} values; must be 1 or {} (one per request)", lens.size(), shape.num_requests);
    }
    named.i32.assign(static_cast<std::size_t>(shape.num_requests), static_cast<std::int32_t>(lens.front()));
    if (lens.size() == named.i32.size())
      std::transform(lens.begin(), lens.end(), named.i32.begin(), [](std::int64_t n) { return static_cast<std::int32_t>(n); });
    expr = variants::prefix_lm();
    add_plan_array(named, "prefix_len");
  } else if (mask.name == "document") {
    named.i32 = document_ids(mask, what, shape.max_kv_len);
    expr = variants::document();
    add_plan_array(named, "document_id");
  } else {
    fail(Code::invalid_argument, what,
         "no mask '{}'; there are full, causal, window, sliding_window, chunked_local, streaming, prefix_lm, document", mask.name);
  }
}

void set_logits(NamedVariant& named, const NamedCall& logits, const VariantShape& shape, std::string_view what) {
  Expr& expr = named.variant.logits;
  if (logits.name == "none") {
    logits.check_args(what, {});
  } else if (logits.name == "soft_cap") {
    logits.check_args(what, {"cap"});
    const double cap = logits.number(what, "cap");
    if (!(cap > 0)) fail(Code::invalid_argument, what, "cap={} must be above 0", cap);
    expr = variants::soft_cap(static_cast<float>(cap));
  } else if (logits.name == "alibi") {
    logits.check_args(what, {});
    expr = variants::alibi();
    named.f32 = variants::alibi_slopes(shape.num_qo_heads);
    add_run_array(named, "alibi_slopes", named.f32);
  } else if (logits.name == "sigmoid") {
    logits.check_args(what, {"bias"});
    expr = variants::sigmoid_logits(static_cast<float>(logits.number(what, "bias")));
    named.variant.softmax = false;
  } else {
    fail(Code::invalid_argument, what, "no logits rule '{}'; there are none, soft_cap, alibi, sigmoid", logits.name);
  }
}

/// Keys that one row sees: [begin, end), and those of the first `first` that lie before.
struct VisibleKeys {
  std::int64_t begin = 0, end = 0, first = 0;
};

VisibleKeys visible_to_row(const NamedCall& mask, std::int64_t qo_len, std::int64_t kv_len, std::int64_t row) {
  constexpr std::string_view kWhat = "visible keys";
  const std::int64_t p = kv_len - qo_len + row;
  std::int64_t begin = 0;
  std::int64_t end = kv_len;
  std::int64_t first = 0;
  if (mask.name != "full" && mask.name != "document") end = p + 1;
  if (mask.name == "window") {
    const std::int64_t left = mask.integer(kWhat, "left", -1, kMaxLength);
    const std::int64_t right = mask.integer_or(kWhat, "right", 0, -1, kMaxLength);
    if (left >= 0) begin = p - left;
    end = right < 0 ? kv_len : p + right + 1;
  } else if (mask.name == "sliding_window") {
    begin = p - mask.integer(kWhat, "size", 1, kMaxLength) + 1;
  } else if (mask.name == "chunked_local") {
    const std::int64_t size = mask.integer(kWhat, "size", 1, kMaxLength);
    begin = p / size * size;
  } else if (mask.name == "streaming") {
    begin = p - mask.integer(kWhat, "left", 0, kMaxLength);
    first = mask.integer(kWhat, "first", 0, kMaxLength);
  } else if (mask.name == "document") {
    const std::int64_t size = mask.integer(kWhat, "size", 1, kMaxLength);
    begin = p / size * size;
    end = begin + size;
  } else if (mask.name != "full" && mask.name != "causal") {
    fail(Code::invalid_argument, kWhat, "no count for mask '{}'", mask.name);
  }
  begin = std::max<std::int64_t>(begin, 0);
  end = std::max(std::min(end, kv_len), begin);
  return {begin, end, first};
}

}  // namespace

NamedVariant make_variant(const NamedCall& mask, const NamedCall& logits, const VariantShape& shape, std::string_view mask_what,
                          std::string_view logits_what) {
  NamedVariant named;
  set_mask(named, mask, shape, mask_what);
  set_logits(named, logits, shape, logits_what);
  named.variant.name = logits.name == "none" ? mask.name : mask.name + "+" + logits.name;
  return named;
}

void add_sinks(NamedVariant& named, std::vector<float> sinks) {
  named.sinks = std::move(sinks);
  named.variant.sink = variants::sinks();
  named.variant.name += "+sinks";
  add_run_array(named, "sinks", named.sinks);
}

void pack_mask(NamedVariant& named, const NamedCall& mask, std::span<const std::int64_t> qo_lens, std::span<const std::int64_t> kv_lens) {
  std::int64_t size = 0;
  for (std::size_t r = 0; r < qo_lens.size(); ++r) {
    named.starts.push_back(size);
    size += qo_lens[r] * kv_lens[r];
  }
  named.bits.assign(static_cast<std::size_t>((size + 7) / 8), 0);
  for (std::size_t r = 0; r < qo_lens.size(); ++r) {
    for (std::int64_t i = 0; i < qo_lens[r]; ++i) {
      const VisibleKeys seen = visible_to_row(mask, qo_lens[r], kv_lens[r], i);
      for (std::int64_t key = 0; key < seen.end; ++key) {
        if (key >= seen.first && key < seen.begin) continue;
        const auto bit = static_cast<std::size_t>(named.starts[r] + i * kv_lens[r] + key);
        named.bits[bit / 8] = static_cast<std::uint8_t>(named.bits[bit / 8] | (1U << (bit % 8)));
      }
    }
  }
  named.variant.mask = variants::custom_mask();
  named.variant.name += "+packed";
  named.plan_params.clear();
  ParamValue bits{.name = "custom_mask"};
  bits.array = TensorView(named.bits.data(), DType::u8, {std::ssize(named.bits)});
  named.run_params.push_back(bits);
  ParamValue starts{.name = "custom_mask_start"};
  starts.array = TensorView(named.starts.data(), DType::i64, {std::ssize(named.starts)});
  named.run_params.push_back(starts);
}

double visible_pairs(const NamedCall& mask, std::int64_t qo_len, std::int64_t kv_len) {
  double pairs = 0;
  for (std::int64_t i = 0; i < qo_len; ++i) {
    const VisibleKeys seen = visible_to_row(mask, qo_len, kv_len, i);
    pairs += static_cast<double>(seen.end - seen.begin + std::min(seen.first, seen.begin));
  }
  return pairs;
}

double visible_keys(const NamedCall& mask, std::int64_t qo_len, std::int64_t kv_len) {
  double keys = 0;
  std::int64_t covered = 0;  // keys below it are counted or seen by no row: later rows' ranges neither begin nor end earlier
  for (std::int64_t i = 0; i < qo_len; ++i) {
    const VisibleKeys seen = visible_to_row(mask, qo_len, kv_len, i);
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, std::min(seen.first, seen.begin)}, {seen.begin, seen.end}}) {
      keys += static_cast<double>(std::max<std::int64_t>(end - std::max(begin, covered), 0));
      covered = std::max(covered, end);
    }
  }
  return keys;
}

}  // namespace girih::tools
