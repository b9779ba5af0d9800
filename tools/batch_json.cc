// See batch_json.h. Text -> DOM (depth, size and repeated keys checked while parsing) -> fields, each taken once; what is left over is an
// unknown key. Every number is bounded before an array is sized by it.
#include "tools/batch_json.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/math.h"

namespace girih::tools {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxFileBytes = std::int64_t{64} << 20;
constexpr int kMaxDepth = 8;
constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMaxSegments = 64;
constexpr std::int64_t kMaxPageSize = std::int64_t{1} << 20;
constexpr std::int64_t kMaxInt = 1 << 20;  // head counts and dims; schedule() has the real rules

/// A value and where it is: `path` is its JSON pointer.
struct Field {
  std::string_view file;
  std::string path;
  const Json* value = nullptr;

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    throw Error(Code::io, fmt::format("{}: {}: {}", file, path.empty() ? "/" : path, fmt::format(text, std::forward<Args>(args)...)));
  }
  Field at(std::size_t i) const { return {file, path + "/" + std::to_string(i), &(*value)[i]}; }
};

std::int64_t to_integer(const Field& field, std::int64_t low, std::int64_t high) {
  const Json& value = *field.value;
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
                        : value.is_number_integer();
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    field.refuse("must be a whole number in [{}, {}]", low, high);
  }
  return value.get<std::int64_t>();
}

bool to_boolean(const Field& field) {
  if (!field.value->is_boolean()) field.refuse("must be true or false");
  return field.value->get<bool>();
}

const std::string& to_text(const Field& field) {
  if (!field.value->is_string()) field.refuse("must be a text");
  return field.value->get_ref<const std::string&>();
}

/// An object whose keys are taken one by one.
class Object {
 public:
  explicit Object(Field field) : field_(std::move(field)) {
    if (!field_.value->is_object()) field_.refuse("must be an object");
    for (auto it = field_.value->begin(); it != field_.value->end(); ++it) left_.insert(it.key());
  }
  const Field& field() const { return field_; }
  bool has(const char* key) const { return field_.value->contains(key); }
  Field take(const char* key) {
    if (!has(key)) field_.refuse("'{}' is missing", key);
    left_.erase(key);
    return {field_.file, field_.path + "/" + key, &(*field_.value)[key]};
  }
  /// Calls f(field) where the key is given.
  template <typename F>
  void optional(const char* key, F&& f) {
    if (has(key)) f(take(key));
  }
  void finish() const {
    if (!left_.empty()) field_.refuse("unknown key '{}'", *left_.begin());
  }

 private:
  Field field_;
  std::set<std::string> left_;
};

/// Runs f; an invalid_argument it throws is the file's fault.
template <typename F>
auto blame(const Field& field, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    if (error.code() != Code::invalid_argument) throw;
    field.refuse("{}", error.what());
  }
}

std::vector<std::int64_t> to_lengths(const Field& field) {
  if (field.value->is_string()) {
    return blame(field, [&] { return parse_lengths(to_text(field), "lengths"); });
  }
  if (!field.value->is_array()) field.refuse("must be an array of whole numbers or a text");
  if (field.value->size() > static_cast<std::size_t>(kMaxLengths)) field.refuse("has more than {} entries", kMaxLengths);
  std::vector<std::int64_t> lengths;
  lengths.reserve(field.value->size());
  for (std::size_t i = 0; i < field.value->size(); ++i) lengths.push_back(to_integer(field.at(i), 0, kMaxLength));
  return lengths;
}

NamedCall to_call(const Field& field) {
  if (field.value->is_string()) {
    return blame(field, [&] { return parse_call(to_text(field), "name"); });
  }
  Object object(field);
  NamedCall call;
  call.name = to_text(object.take("name"));
  for (auto it = field.value->begin(); it != field.value->end(); ++it) {
    if (it.key() == "name") continue;
    const Field arg{field.file, field.path + "/" + it.key(), &it.value()};
    std::vector<double>& values = call.args[it.key()];
    if (it.value().is_number()) {
      values.push_back(it.value().get<double>());
    } else if (it.value().is_array() && !it.value().empty() && it.value().size() <= static_cast<std::size_t>(kMaxLengths)) {
      for (std::size_t i = 0; i < it.value().size(); ++i) {
        if (!it.value()[i].is_number()) arg.at(i).refuse("must be a number");
        values.push_back(it.value()[i].get<double>());
      }
    } else {
      arg.refuse("must be a number or an array of 1 to {} numbers", kMaxLengths);
    }
  }
  return call;
}

template <typename T, std::size_t N>
T to_choice(const Field& field, const std::pair<const char*, T> (&choices)[N]) {
  const std::string& text = to_text(field);
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  field.refuse("'{}' is none of {}", text, names);
}

void read_spec(const Field& field, AttentionSpec& spec) {
  static constexpr std::pair<const char*, ScaleGranularity> kScales[] = {
      {"none", ScaleGranularity::none},   {"tensor", ScaleGranularity::tensor},
      {"head", ScaleGranularity::head},   {"token_head", ScaleGranularity::token_head},
      {"block", ScaleGranularity::block}, {"token_group", ScaleGranularity::token_group}};
  static constexpr std::pair<const char*, LseKind> kLse[] = {
      {"none", LseKind::none}, {"natural", LseKind::natural}, {"base2", LseKind::base2}};
  Object object(field);
  const auto integer = [&](const char* key, int& target) {
    object.optional(key, [&](const Field& f) { target = static_cast<int>(to_integer(f, 0, kMaxInt)); });
  };
  const auto boolean = [&](const char* key, bool& target) { object.optional(key, [&](const Field& f) { target = to_boolean(f); }); };
  const auto dtype = [&](const char* key, auto& target) {
    object.optional(key, [&](const Field& f) { target = blame(f, [&] { return dtype_from_name(to_text(f)); }); });
  };
  integer("num_qo_heads", spec.num_qo_heads);
  integer("num_kv_heads", spec.num_kv_heads);
  integer("head_dim_qk", spec.head_dim_qk);
  integer("head_dim_vo", spec.head_dim_vo);
  integer("head_dim_rope", spec.head_dim_rope);
  dtype("q_dtype", spec.q_dtype);
  dtype("k_dtype", spec.k_dtype);
  dtype("v_dtype", spec.v_dtype);
  dtype("o_dtype", spec.o_dtype);
  dtype("k_rope_dtype", spec.k_rope_dtype);
  object.optional("k_scale", [&](const Field& f) { spec.k_scale = to_choice(f, kScales); });
  object.optional("v_scale", [&](const Field& f) { spec.v_scale = to_choice(f, kScales); });
  boolean("v_is_k", spec.v_is_k);
  object.optional("sm_scale", [&](const Field& f) {
    if (!f.value->is_number()) f.refuse("must be a number");
    spec.sm_scale = f.value->get<double>();
  });
  object.optional("lse", [&](const Field& f) { spec.lse = to_choice(f, kLse); });
  boolean("partial_state", spec.partial_state);
  boolean("batch_invariant", spec.batch_invariant);
  object.finish();
}

std::int64_t to_page_size(const Field& field) {
  if (field.value->is_string() && to_text(field) == "endless") return kEndlessPage;
  return to_integer(field, 0, kMaxPageSize);
}

std::vector<std::int64_t> to_indptr(const Field& field, std::int64_t max_total, const char* unit) {
  std::vector<std::int64_t> indptr = indptr_of(to_lengths(field));
  if (indptr.back() > max_total) field.refuse("the sum {} exceeds {} {}", indptr.back(), max_total, unit);
  return indptr;
}

OwnedSegment read_segment(const Field& field, std::int64_t num_tokens, std::int64_t num_requests) {
  Object object(field);
  OwnedSegment segment;
  std::int64_t page_size = segment.page_size;
  object.optional("page_size", [&](const Field& f) { page_size = to_page_size(f); });
  const Field kv_lens = object.take("kv_lens");
  segment = make_segment(to_lengths(kv_lens), page_size);
  std::int64_t num_groups = num_requests;
  object.optional("qo_lens", [&](const Field& f) {
    segment.qo_indptr = to_indptr(f, num_tokens, "tokens of the batch");
    num_groups = std::ssize(segment.qo_indptr) - 1;
  });
  if (std::ssize(segment.kv_len) != num_groups)
    kv_lens.refuse("has {} entries; must be {}, one per group", segment.kv_len.size(), num_groups);
  object.optional("kv_pos", [&](const Field& f) {
    segment.kv_pos = to_lengths(f);
    if (std::ssize(segment.kv_pos) != num_groups) f.refuse("has {} entries; must be {}, one per group", segment.kv_pos.size(), num_groups);
  });
  object.optional("masked", [&](const Field& f) { segment.masked = to_boolean(f); });
  object.finish();
  return segment;
}

void read_batch(const Field& field, OwnedBatch& batch) {
  Object object(field);
  batch.qo_indptr = to_indptr(object.take("qo_lens"), kMaxTokens, "tokens");
  object.optional("q_pos", [&](const Field& f) {
    batch.q_pos = to_lengths(f);
    if (std::ssize(batch.q_pos) != batch.num_requests())
      f.refuse("has {} entries; must be {}, one per request", batch.q_pos.size(), batch.num_requests());
  });
  if (object.has("segments")) {
    const Field list = object.take("segments");
    if (!list.value->is_array() || list.value->size() > static_cast<std::size_t>(kMaxSegments)) {
      list.refuse("must be an array of at most {} objects", kMaxSegments);
    }
    std::int64_t num_groups = 0;
    for (std::size_t i = 0; i < list.value->size(); ++i) {
      if (!batch.segments.empty()) num_groups += std::ssize(batch.segments.back().kv_len);
      if (num_groups > kMaxLengths) list.refuse("more than {} groups over the segments", kMaxLengths);
      batch.segments.push_back(read_segment(list.at(i), batch.num_tokens(), batch.num_requests()));
    }
  } else {
    const Field kv_lens = object.take("kv_lens");
    std::int64_t page_size = 16;
    object.optional("page_size", [&](const Field& f) { page_size = to_page_size(f); });
    batch.segments.push_back(make_segment(to_lengths(kv_lens), page_size));
    const std::size_t given = batch.segments.back().kv_len.size();
    if (static_cast<std::int64_t>(given) != batch.num_requests()) {
      kv_lens.refuse("has {} entries; must be {}, one per request", given, batch.num_requests());
    }
  }
  object.finish();
}

/// Refuses deep nesting and repeated keys while the DOM is built.
class ParseGuard {
 public:
  explicit ParseGuard(std::string_view file) : file_(file) {}
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (depth >= kMaxDepth) throw Error(Code::io, fmt::format("{}: nested deeper than {} levels", file_, kMaxDepth));
      keys_.resize(static_cast<std::size_t>(depth) + 1);
      keys_.back().clear();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_[static_cast<std::size_t>(depth) - 1].insert(key).second)
        throw Error(Code::io, fmt::format("{}: key '{}' is given twice", file_, key));
    }
    return true;
  }

 private:
  std::string_view file_;
  std::vector<std::set<std::string>> keys_;
};

Json parse_document(std::string_view text, std::string_view file) {
  try {
    ParseGuard guard(file);
    return Json::parse(text.begin(), text.end(),
                       [&guard](int depth, Json::parse_event_t event, Json& parsed) { return guard(depth, event, parsed); });
  } catch (const Json::parse_error& error) {
    const std::size_t end = std::min(text.size(), error.byte > 0 ? error.byte - 1 : 0);
    const std::string_view before = text.substr(0, end);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = end - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
    // The parser's text: "[json.exception.parse_error.101] parse error at line 1, column 2: reason".
    std::string_view reason = error.what();
    const std::size_t colon = reason.find(": ");
    if (colon != std::string_view::npos) reason.remove_prefix(colon + 2);
    throw Error(Code::io, fmt::format("{}:{}:{}: {}", file, line, column, reason));
  } catch (const Json::exception& error) {  // e.g. a number that no type holds
    throw Error(Code::io, fmt::format("{}: {}", file, error.what()));
  }
}

}  // namespace

std::vector<std::int64_t> indptr_of(const std::vector<std::int64_t>& lens) {
  std::vector<std::int64_t> indptr(lens.size() + 1);
  for (std::size_t i = 0; i < lens.size(); ++i) indptr[i + 1] = indptr[i] + lens[i];
  return indptr;
}

OwnedSegment make_segment(const std::vector<std::int64_t>& kv_lens, std::int64_t page_size) {
  OwnedSegment segment;
  segment.page_size = page_size;
  segment.kv_len = kv_lens;
  std::vector<std::int64_t> entries = kv_lens;
  if (page_size != kEndlessPage) {
    for (std::int64_t& n : entries) n = ceil_div(n, page_size);
  }
  segment.kv_indptr = indptr_of(entries);
  return segment;
}

BatchView OwnedBatch::view() const {
  BatchView view;
  for (const OwnedSegment& segment : segments) {
    KvSegment s;
    if (!segment.qo_indptr.empty()) s.qo_indptr = segment.qo_indptr;
    s.page_size = segment.page_size;
    s.kv_indptr = segment.kv_indptr;
    s.kv_len = segment.kv_len;
    if (!segment.kv_pos.empty()) s.kv_pos = segment.kv_pos;
    s.masked = segment.masked;
    view.segments.push_back(s);
  }
  view.batch.qo_indptr = qo_indptr;
  view.batch.segments = view.segments;
  if (!q_pos.empty()) view.batch.q_pos = q_pos;
  view.batch.params = variant.plan_params;
  return view;
}

AttentionLimits OwnedBatch::limits() const {
  AttentionLimits limits;
  limits.max_tokens = num_tokens();
  limits.max_requests = num_requests();
  limits.max_segments = std::max<std::int64_t>(1, std::ssize(segments));
  for (std::size_t r = 0; r + 1 < qo_indptr.size(); ++r) limits.max_qo_len = std::max(limits.max_qo_len, qo_indptr[r + 1] - qo_indptr[r]);
  for (const OwnedSegment& segment : segments) {
    limits.max_groups += std::ssize(segment.kv_len);
    for (std::size_t g = 0; g + 1 < segment.qo_indptr.size(); ++g)
      limits.max_qo_len = std::max(limits.max_qo_len, segment.qo_indptr[g + 1] - segment.qo_indptr[g]);
    for (std::int64_t n : segment.kv_len) limits.max_kv_len = std::max(limits.max_kv_len, n);
  }
  for (const ParamValue& param : variant.plan_params)
    limits.max_param_bytes += param.array.rank == 0 ? 8 : bytes(param.array.dtype, param.array.numel());
  return limits;
}

OwnedBatch make_batch(const AttentionSpec& spec, std::vector<std::int64_t> qo_lens, const std::vector<std::int64_t>& kv_lens,
                      std::int64_t page_size, const NamedCall& mask, const NamedCall& logits) {
  if (qo_lens.size() == 1) qo_lens.resize(kv_lens.size(), qo_lens.front());
  if (qo_lens.size() != kv_lens.size()) {
    fail(Code::invalid_argument, "--qo-lens", "has {} lengths, --kv-lens {}; must be as many, or one for all", qo_lens.size(),
         kv_lens.size());
  }
  OwnedBatch batch;
  batch.spec = spec;
  batch.mask = mask;
  batch.qo_indptr = indptr_of(qo_lens);
  if (batch.num_tokens() > kMaxTokens) fail(Code::invalid_argument, "--qo-lens", "the sum {} exceeds {}", batch.num_tokens(), kMaxTokens);
  batch.segments.push_back(make_segment(kv_lens, page_size));
  const std::int64_t longest = kv_lens.empty() ? 0 : *std::max_element(kv_lens.begin(), kv_lens.end());
  batch.variant = make_variant(mask, logits, {spec.num_qo_heads, batch.num_requests(), longest});
  batch.spec.variant = batch.variant.variant;
  return batch;
}

OwnedBatch parse_batch_json(std::string_view text, std::string_view file) {
  if (std::ssize(text) > kMaxFileBytes)
    throw Error(Code::io, fmt::format("{}: {} bytes; at most {} are read", file, text.size(), kMaxFileBytes));
  const Json document = parse_document(text, file);
  Object object({file, "", &document});
  OwnedBatch batch;
  object.optional("spec", [&](const Field& f) { read_spec(f, batch.spec); });
  read_batch(object.take("batch"), batch);
  // Positions go on from segment to segment, so parameter arrays by position cover the sum of the longest groups.
  std::int64_t positions = 0;
  for (const OwnedSegment& segment : batch.segments) {
    if (!segment.kv_len.empty()) positions += *std::max_element(segment.kv_len.begin(), segment.kv_len.end());
  }
  const VariantShape shape{batch.spec.num_qo_heads, batch.num_requests(), positions};
  NamedCall logits{"none", {}};
  const auto take_variant = [&](const Field& f) {
    batch.variant = blame(f, [&] { return make_variant(batch.mask, logits, shape, "mask", "logits"); });
  };
  take_variant(object.field());
  object.optional("mask", [&](const Field& f) {
    batch.mask = to_call(f);
    take_variant(f);
  });
  object.optional("logits", [&](const Field& f) {
    logits = to_call(f);
    take_variant(f);
  });
  batch.spec.variant = batch.variant.variant;
  object.finish();
  return batch;
}

OwnedBatch read_batch_json(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw Error(Code::io, fmt::format("{}: cannot be opened", file));
  std::string text;
  char chunk[1 << 16];
  while (stream.read(chunk, sizeof(chunk)) || stream.gcount() > 0) {
    text.append(chunk, static_cast<std::size_t>(stream.gcount()));
    if (std::ssize(text) > kMaxFileBytes) break;  // parse_batch_json says so
  }
  if (stream.bad()) throw Error(Code::io, fmt::format("{}: cannot be read", file));
  return parse_batch_json(text, file);
}

}  // namespace girih::tools
