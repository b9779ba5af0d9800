// See check.h.
#include "sampling/check.h"

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/numeric.h"

namespace girih::sampling {
namespace {

bool on_cpu(const Context& context) { return context.device().kind == DeviceKind::cpu; }

std::string shape_text(const TensorView& t) {
  std::string text = "[";
  for (int i = 0; i < t.rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(t.shape[static_cast<std::size_t>(i)]);
  return text + "]";
}

bool given(const TensorView& t) { return t.rank != 0 || t.data != nullptr; }

/// Rank, extents (-1: any), device, memory.
void check_tensor(std::string_view op, std::string_view what, const TensorView& t, Device device, const std::vector<std::int64_t>& shape,
                  std::string_view shape_rule) {
  bool fits = t.rank == static_cast<int>(shape.size());
  for (std::size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] < 0 || t.shape[i] == shape[i];
  if (!fits) fail(Code::invalid_argument, op, "{} has shape {}; must be {}", what, shape_text(t), shape_rule);
  if (t.device != device) fail(Code::invalid_argument, op, "{}.device={}; the context is for {}", what, name(t.device), name(device));
  if (t.numel() > 0 && t.data == nullptr) fail(Code::invalid_argument, op, "{}.data is null; must hold {} entries", what, t.numel());
}

void check_type(std::string_view op, std::string_view what, const TensorView& t, std::initializer_list<DType> types) {
  std::string names;
  for (const DType type : types) {
    if (t.dtype == type) return;
    names += (names.empty() ? "" : " or ") + std::string(name(type));
  }
  fail(Code::invalid_argument, op, "{} is {}; must be {}", what, name(t.dtype), names);
}

/// Bytes that a view may touch.
struct Range {
  const char* low;
  const char* high;
};
Range range_of(const TensorView& t) {
  const std::int64_t item = bits(t.dtype) / 8;
  Range r{static_cast<const char*>(t.data), static_cast<const char*>(t.data) + item};
  for (int i = 0; i < t.rank; ++i) {
    const std::int64_t reach = (t.shape[static_cast<std::size_t>(i)] - 1) * t.strides[static_cast<std::size_t>(i)] * item;
    (reach < 0 ? r.low : r.high) += reach;
  }
  return r;
}
bool overlap(const TensorView& a, const TensorView& b) {
  if (!given(a) || !given(b) || a.numel() == 0 || b.numel() == 0) return false;
  const Range x = range_of(a), y = range_of(b);
  return x.low < y.high && y.low < x.high;
}

std::int64_t stride_of(const TensorView& t, int axis) {
  const auto i = static_cast<std::size_t>(axis);
  return t.rank > axis && t.shape[i] != 1 ? t.strides[i] : 0;
}

/// Two entries of an output in one place would be a race.
void check_output(std::string_view op, std::string_view what, const TensorView& t) {
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[static_cast<std::size_t>(i)] > 1 && t.strides[static_cast<std::size_t>(i)] == 0)
      fail(Code::invalid_argument, op, "{}.strides[{}]=0; entries of an output may not share memory", what, i);
  }
}

void check_data(std::string_view op, std::string_view what, const TensorView& t) {
  check_type(op, what, t, {DType::f32, DType::f16, DType::bf16});
}

void check_vocab(std::string_view op, std::string_view what, std::int64_t vocab) {
  if (vocab < 1 || vocab > abi::kMaxVocab)
    fail(Code::invalid_argument, op, "{} has rows of {} entries; must be 1 to {}", what, vocab, abi::kMaxVocab);
}

void check_row_count(std::string_view op, std::string_view what, std::int64_t rows) {
  if (rows > INT32_MAX) fail(Code::invalid_argument, op, "{} has {} rows; must be at most {}", what, rows, INT32_MAX);
}

abi::RowsIn rows_in(const TensorView& t, int last) {
  const std::int64_t item = bits(t.dtype) / 8;
  return {.data = static_cast<const unsigned char*>(t.data),
          .row_stride = stride_of(t, 0) * item,
          .stride = t.shape[static_cast<std::size_t>(last)] == 1 ? item : t.strides[static_cast<std::size_t>(last)] * item,
          .num_rows = t.shape[0]};
}
abi::RowsOut rows_out(const TensorView& t) {
  const std::int64_t item = bits(t.dtype) / 8;
  return {.data = static_cast<unsigned char*>(t.data),
          .row_stride = stride_of(t, 0) * item,
          .stride = t.shape[1] == 1 ? item : t.strides[1] * item};
}

void check_float(std::string_view op, const std::string& what, float x, FloatRule rule) {
  const bool finite = std::isfinite(x);
  switch (rule) {
    case FloatRule::positive:
      if (!finite || !(x > 0)) fail(Code::invalid_argument, op, "{}={}; must be finite and > 0", what, x);
      return;
    case FloatRule::finite:
      if (!finite) fail(Code::invalid_argument, op, "{}={}; must be finite", what, x);
      return;
    case FloatRule::temperature:
      if (!finite || x < 0) fail(Code::invalid_argument, op, "{}={}; must be finite and >= 0 (0: argmax)", what, x);
      return;
    case FloatRule::prob_temperature:
      if (!finite || x < 0) fail(Code::invalid_argument, op, "{}={}; must be 1, or 0 for argmax", what, x);
      if (x > abi::kArgmaxTemperature && x != 1)
        fail(Code::unsupported, op, "{}={}; probabilities take 1, or 0 for argmax: give logits instead", what, x);
      return;
    case FloatRule::top_p:
      if (std::isnan(x) || x < 0) fail(Code::invalid_argument, op, "{}={}; must be >= 0 (1: off)", what, x);
      return;
    case FloatRule::min_p:
      if (std::isnan(x) || x > 1) fail(Code::invalid_argument, op, "{}={}; must be at most 1 (0: off)", what, x);
      return;
  }
}

/// A vector of row numbers or the like: [rows] of i32 or i64.
abi::RowIntArg int_vector(std::string_view op, std::string_view what, const TensorView& t, Device device, std::int64_t n,
                          std::string_view shape_rule) {
  check_type(op, what, t, {DType::i32, DType::i64});
  check_tensor(op, what, t, device, {n}, shape_rule);
  return {.rows = t.data, .stride = stride_of(t, 0), .value = 0, .is_64 = t.dtype == DType::i64 ? 1 : 0};
}

struct I32Vector {
  const std::int32_t* data = nullptr;
  std::int64_t stride = 0;
};
I32Vector i32_vector(std::string_view op, std::string_view what, const TensorView& t, Device device, std::int64_t n,
                     std::string_view shape_rule) {
  if (!given(t)) return {};
  check_type(op, what, t, {DType::i32});
  check_tensor(op, what, t, device, {n}, shape_rule);
  return {static_cast<const std::int32_t*>(t.data), stride_of(t, 0)};
}

abi::RandomArg random_arg(std::string_view op, const Context& context, const Random& random, std::int64_t rows) {
  abi::RandomArg arg{};
  const auto take = [&](std::string_view what, const RowInt& value, bool& per_row) {
    per_row = false;
    if (!given(value.rows)) return abi::RowIntArg{.rows = nullptr, .stride = 0, .value = value.value, .is_64 = 1};
    check_type(op, what, value.rows, {DType::i64});
    if (value.rows.rank == 1 && value.rows.shape[0] == 1 && rows != 1) {
      check_tensor(op, what, value.rows, context.device(), {1}, "[1] or [rows]");
      return abi::RowIntArg{.rows = value.rows.data, .stride = 0, .value = 0, .is_64 = 1};
    }
    per_row = true;
    return int_vector(op, what, value.rows, context.device(), rows, "[1] or [rows]");
  };
  bool seeds = false, offsets = false;
  arg.seed = take("random.seed", random.seed, seeds);
  arg.offset = take("random.offset", random.offset, offsets);
  arg.seed_per_row = seeds ? 1 : 0;
  return arg;
}

abi::ListArg list_arg(std::string_view op, std::string_view what, std::string_view values_what, const Context& context,
                      const TokenLists& lists, const TensorView& values, DType values_type, bool values_needed, std::int64_t rows,
                      std::int64_t vocab) {
  const std::string base(what);
  abi::ListArg arg{};
  if (!given(lists.indptr)) {
    if (given(lists.tokens) || given(values)) fail(Code::invalid_argument, op, "{}.indptr is not given, but tokens or values are", what);
    return arg;
  }
  arg.indptr = int_vector(op, base + ".indptr", lists.indptr, context.device(), rows + 1, "[rows + 1]");
  check_type(op, base + ".tokens", lists.tokens, {DType::i32});
  check_tensor(op, base + ".tokens", lists.tokens, context.device(), {-1}, "[n]");
  arg.n = lists.tokens.shape[0];
  if (arg.n > 1 && lists.tokens.strides[0] != 1)
    fail(Code::invalid_argument, op, "{}.tokens.strides[0]={}; must be 1", what, lists.tokens.strides[0]);
  arg.tokens = static_cast<const std::int32_t*>(lists.tokens.data);
  if (given(values)) {
    check_type(op, values_what, values, {values_type});
    check_tensor(op, values_what, values, context.device(), {arg.n}, "[n], as tokens");
    if (arg.n > 1 && values.strides[0] != 1)
      fail(Code::invalid_argument, op, "{}.strides[0]={}; must be 1", values_what, values.strides[0]);
    arg.values = values.data;
  } else if (values_needed) {
    fail(Code::invalid_argument, op, "{} is not given; needs one value beside each of {} tokens", values_what, arg.n);
  }
  if (!on_cpu(context)) return arg;
  std::vector<bool> seen(static_cast<std::size_t>(vocab));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t begin = arg.indptr.at(r), end = arg.indptr.at(r + 1);
    if (begin < 0 || end < begin || end > arg.n)
      fail(Code::invalid_argument, op, "{}.indptr[{}..{}]={}, {}; must be non-decreasing within [0, {}]", what, r, r + 1, begin, end,
           arg.n);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t token = arg.tokens[i];
      if (token < 0 || token >= vocab)
        fail(Code::invalid_argument, op, "{}.tokens[{}]={}; must be in [0, vocab={})", what, i, token, vocab);
      if (seen[static_cast<std::size_t>(token)])
        fail(Code::invalid_argument, op, "{}.tokens[{}]={} is in row {} twice; tokens of a row must be distinct", what, i, token, r);
      seen[static_cast<std::size_t>(token)] = true;
      if (values_type == DType::f32) {
        const float bias = static_cast<const float*>(arg.values)[i];
        if (std::isnan(bias) || bias > 3.4e38F)
          fail(Code::invalid_argument, op, "{}[{}]={}; must be finite, or -inf to forbid a token", values_what, i, bias);
      } else if (arg.values != nullptr && static_cast<const std::int32_t*>(arg.values)[i] < 0) {
        fail(Code::invalid_argument, op, "{}[{}]={}; must be >= 0", values_what, i, static_cast<const std::int32_t*>(arg.values)[i]);
      }
    }
    for (std::int64_t i = begin; i < end; ++i) seen[static_cast<std::size_t>(arg.tokens[i])] = false;
  }
  return arg;
}

abi::TokenOut token_out(std::string_view op, std::string_view what, const TensorView& t, const Context& context,
                        const std::vector<std::int64_t>& shape, std::string_view shape_rule) {
  check_tensor(op, what, t, context.device(), shape, shape_rule);
  check_type(op, what, t, {DType::i32, DType::i64});
  check_output(op, what, t);
  return {.data = t.data, .row_stride = stride_of(t, 0), .stride = stride_of(t, 1), .is_64 = t.dtype == DType::i64 ? 1 : 0};
}
abi::FloatOut float_out(std::string_view op, std::string_view what, const TensorView& t, const Context& context,
                        const std::vector<std::int64_t>& shape, std::string_view shape_rule) {
  check_type(op, what, t, {DType::f32});
  check_tensor(op, what, t, context.device(), shape, shape_rule);
  check_output(op, what, t);
  return {.data = static_cast<float*>(t.data), .row_stride = stride_of(t, 0), .stride = stride_of(t, 1)};
}

void check_stream(std::string_view op, const Context& context, const void* stream) {
  if (stream != nullptr && on_cpu(context)) fail(Code::invalid_argument, op, "stream is given; the context is for the CPU");
}

struct NamedView {
  std::string_view what;
  const TensorView* view;
};
void check_apart(std::string_view op, const std::vector<NamedView>& outputs, const std::vector<NamedView>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = i + 1; j < outputs.size(); ++j) {
      if (overlap(*outputs[i].view, *outputs[j].view))
        fail(Code::invalid_argument, op, "{} overlaps {}; results must lie apart", outputs[j].what, outputs[i].what);
    }
    for (const NamedView& input : inputs) {
      if (overlap(*outputs[i].view, *input.view))
        fail(Code::invalid_argument, op, "{} overlaps {}; a result may not share memory with an argument", outputs[i].what, input.what);
    }
  }
}

}  // namespace

abi::RowFloatArg row_float(std::string_view op, std::string_view what, const Context& context, const RowFloat& value, std::int64_t rows,
                           FloatRule rule) {
  if (!given(value.rows)) {
    check_float(op, std::string(what), value.value, rule);
    return {.rows = nullptr, .stride = 0, .value = value.value};
  }
  check_type(op, what, value.rows, {DType::f32});
  check_tensor(op, what, value.rows, context.device(), {rows}, "[rows]");
  const abi::RowFloatArg arg{.rows = static_cast<const float*>(value.rows.data), .stride = stride_of(value.rows, 0), .value = 0};
  if (on_cpu(context)) {
    for (std::int64_t r = 0; r < rows; ++r) check_float(op, fmt::format("{}[{}]", what, r), arg.at(r), rule);
  }
  return arg;
}

abi::RowIntArg row_int(std::string_view op, std::string_view what, const Context& context, const RowInt& value, std::int64_t rows) {
  if (!given(value.rows)) return {.rows = nullptr, .stride = 0, .value = value.value, .is_64 = 1};
  return int_vector(op, what, value.rows, context.device(), rows, "[rows]");
}

abi::SampleParams check_sample(const Context& context, const SampleArgs& args) {
  constexpr std::string_view kOp = "sample";
  const Device device = context.device();
  check_stream(kOp, context, args.stream);
  check_data(kOp, "input", args.input);
  check_tensor(kOp, "input", args.input, device, {-1, -1}, "[n, vocab]");
  abi::SampleParams p{};
  const std::int64_t vocab = args.input.shape[1];
  check_vocab(kOp, "input", vocab);
  p.vocab = static_cast<std::int32_t>(vocab);
  p.probs = args.kind == SampleInput::probs ? 1 : 0;
  p.input = rows_in(args.input, 1);
  if (given(args.indices)) {
    if (args.indices.rank != 1) fail(Code::invalid_argument, kOp, "indices has shape {}; must be [rows]", shape_text(args.indices));
    p.rows = args.indices.shape[0];
    p.indices = int_vector(kOp, "indices", args.indices, device, p.rows, "[rows]");
    for (std::int64_t r = 0; r < p.rows && on_cpu(context); ++r) {
      const std::int64_t at = p.indices.at(r);
      if (at < 0 || at >= p.input.num_rows)
        fail(Code::invalid_argument, kOp, "indices[{}]={}; must be in [0, input.shape[0]={})", r, at, p.input.num_rows);
    }
  } else {
    p.rows = args.input.shape[0];
  }
  check_row_count(kOp, "the batch", p.rows);
  p.bias = list_arg(kOp, "bias_tokens", "bias", context, args.bias_tokens, args.bias, DType::f32, true, p.rows, vocab);
  p.history = list_arg(kOp, "history", "history_counts", context, args.history, args.history_counts, DType::i32, false, p.rows, vocab);
  p.repetition = row_float(kOp, "repetition_penalty", context, args.repetition_penalty, p.rows, FloatRule::positive);
  p.frequency = row_float(kOp, "frequency_penalty", context, args.frequency_penalty, p.rows, FloatRule::finite);
  p.presence = row_float(kOp, "presence_penalty", context, args.presence_penalty, p.rows, FloatRule::finite);
  if (p.probs != 0 && (p.bias.indptr.rows != nullptr || p.history.indptr.rows != nullptr))
    fail(Code::unsupported, kOp, "{} is given for probabilities; bias and penalties change logits: give those",
         p.bias.indptr.rows != nullptr ? "bias_tokens" : "history");
  if (given(args.allowed)) {
    check_type(kOp, "allowed", args.allowed, {DType::i32});
    check_tensor(kOp, "allowed", args.allowed, device, {p.rows, (vocab + 31) / 32}, "[rows, ceil(vocab / 32)]");
    if (args.allowed.shape[1] > 1 && args.allowed.strides[1] != 1)
      fail(Code::invalid_argument, kOp, "allowed.strides[1]={}; must be 1", args.allowed.strides[1]);
    p.allowed = static_cast<const std::uint32_t*>(args.allowed.data);
    p.allowed_stride = stride_of(args.allowed, 0);
  }
  p.temperature =
      row_float(kOp, "temperature", context, args.temperature, p.rows, p.probs != 0 ? FloatRule::prob_temperature : FloatRule::temperature);
  p.top_k = row_int(kOp, "top_k", context, args.top_k, p.rows);
  p.top_p = row_float(kOp, "top_p", context, args.top_p, p.rows, FloatRule::top_p);
  p.min_p = row_float(kOp, "min_p", context, args.min_p, p.rows, FloatRule::min_p);
  p.joint = args.order == FilterOrder::joint ? 1 : 0;
  p.random = random_arg(kOp, context, args.random, p.rows);

  p.tokens = token_out(kOp, "tokens", args.tokens, context, {p.rows}, "[rows]");
  if (given(args.valid)) {
    check_type(kOp, "valid", args.valid, {DType::u8});
    check_tensor(kOp, "valid", args.valid, device, {p.rows}, "[rows]");
    check_output(kOp, "valid", args.valid);
    p.valid = static_cast<unsigned char*>(args.valid.data);
    p.valid_stride = stride_of(args.valid, 0);
  }
  if (given(args.logprobs)) p.logprobs = float_out(kOp, "logprobs", args.logprobs, context, {p.rows}, "[rows]");
  if (given(args.top_tokens) != given(args.top_logprobs))
    fail(Code::invalid_argument, kOp, "{} is given without {}; give both or none", given(args.top_tokens) ? "top_tokens" : "top_logprobs",
         given(args.top_tokens) ? "top_logprobs" : "top_tokens");
  if (given(args.top_tokens)) {
    if (args.top_tokens.rank != 2 || args.top_tokens.shape[1] < 1 || args.top_tokens.shape[1] > abi::kMaxTopLogprobs)
      fail(Code::invalid_argument, kOp, "top_tokens has shape {}; must be [rows, n], n 1 to {}", shape_text(args.top_tokens),
           abi::kMaxTopLogprobs);
    const std::int64_t n = args.top_tokens.shape[1];
    p.num_top = static_cast<std::int32_t>(n);
    p.top_tokens = token_out(kOp, "top_tokens", args.top_tokens, context, {p.rows, n}, "[rows, n]");
    p.top_logprobs = float_out(kOp, "top_logprobs", args.top_logprobs, context, {p.rows, n}, "[rows, n], as top_tokens");
  }
  p.filtered_logprobs = args.logprob_kind == LogprobKind::filtered ? 1 : 0;
  check_apart(kOp,
              {{"tokens", &args.tokens},
               {"valid", &args.valid},
               {"logprobs", &args.logprobs},
               {"top_tokens", &args.top_tokens},
               {"top_logprobs", &args.top_logprobs}},
              {{"input", &args.input},
               {"indices", &args.indices},
               {"bias_tokens.indptr", &args.bias_tokens.indptr},
               {"bias_tokens.tokens", &args.bias_tokens.tokens},
               {"bias", &args.bias},
               {"history.indptr", &args.history.indptr},
               {"history.tokens", &args.history.tokens},
               {"history_counts", &args.history_counts},
               {"repetition_penalty", &args.repetition_penalty.rows},
               {"frequency_penalty", &args.frequency_penalty.rows},
               {"presence_penalty", &args.presence_penalty.rows},
               {"allowed", &args.allowed},
               {"temperature", &args.temperature.rows},
               {"top_k", &args.top_k.rows},
               {"top_p", &args.top_p.rows},
               {"min_p", &args.min_p.rows},
               {"random.seed", &args.random.seed.rows},
               {"random.offset", &args.random.offset.rows}});
  return p;
}

abi::SampleParams check_rows(const Context& context, const RowsArgs& args) {
  check_stream(args.op, context, args.stream);
  check_data(args.op, args.input_name, args.input);
  check_tensor(args.op, args.input_name, args.input, context.device(), {-1, -1}, "[rows, vocab]");
  check_vocab(args.op, args.input_name, args.input.shape[1]);
  check_row_count(args.op, args.input_name, args.input.shape[0]);
  check_type(args.op, "out", args.out, {args.same_type ? args.input.dtype : DType::f32});
  check_tensor(args.op, "out", args.out, context.device(), {args.input.shape[0], args.input.shape[1]}, "[rows, vocab], as the input");
  check_output(args.op, "out", args.out);
  if (overlap(args.out, args.input)) {
    bool same = args.out.data == args.input.data && args.out.dtype == args.input.dtype;
    for (int i = 0; i < 2; ++i) same = same && stride_of(args.out, i) == stride_of(args.input, i);
    if (!same)
      fail(Code::invalid_argument, args.op, "out overlaps {} without being it; must be the same view or lie apart", args.input_name);
  }
  abi::SampleParams p{};
  p.vocab = static_cast<std::int32_t>(args.input.shape[1]);
  p.rows = args.input.shape[0];
  p.probs = args.probs ? 1 : 0;
  p.input = rows_in(args.input, 1);
  p.out = rows_out(args.out);
  p.repetition.value = 1;
  p.temperature.value = 1;
  p.top_p.value = 1;
  return p;
}

abi::TopKParams check_top_k(const Context& context, const TopKArgs& args) {
  constexpr std::string_view kOp = "top_k";
  const Device device = context.device();
  check_stream(kOp, context, args.stream);
  check_data(kOp, "input", args.input);
  check_tensor(kOp, "input", args.input, device, {-1, -1}, "[rows, vocab]");
  const std::int64_t rows = args.input.shape[0], vocab = args.input.shape[1];
  check_vocab(kOp, "input", vocab);
  check_row_count(kOp, "input", rows);
  if (args.k < 1 || args.k > abi::kMaxTopK) fail(Code::invalid_argument, kOp, "k={}; must be 1 to {}", args.k, abi::kMaxTopK);
  abi::TopKParams p{};
  p.input = rows_in(args.input, 1);
  p.rows = rows;
  p.vocab = static_cast<std::int32_t>(vocab);
  p.k = static_cast<std::int32_t>(args.k);
  p.sorted = args.sorted ? 1 : 0;
  const auto take = [&](std::string_view what, const TensorView& t, const std::int32_t*& data, std::int64_t& stride) {
    const I32Vector v = i32_vector(kOp, what, t, device, rows, "[rows]");
    data = v.data;
    stride = v.stride;
  };
  take("row_starts", args.row_starts, p.starts, p.starts_stride);
  take("row_lengths", args.row_lengths, p.lengths, p.lengths_stride);
  take("index_offsets", args.index_offsets, p.offsets, p.offsets_stride);
  take("pages.row_requests", args.pages.row_requests, p.row_requests, p.row_requests_stride);
  for (std::int64_t r = 0; r < rows && on_cpu(context); ++r) {
    const std::int64_t start = p.starts == nullptr ? 0 : p.starts[r * p.starts_stride];
    const std::int64_t length = p.lengths == nullptr ? vocab - start : p.lengths[r * p.lengths_stride];
    if (start < 0 || start > vocab) fail(Code::invalid_argument, kOp, "row_starts[{}]={}; must be in [0, vocab={}]", r, start, vocab);
    if (length < 0 || length > vocab - start)
      fail(Code::invalid_argument, kOp, "row_lengths[{}]={}; must be in [0, {}], what is left of the row", r, length, vocab - start);
  }
  p.page_size = args.pages.page_size;
  p.table_rows = rows;
  if (given(args.pages.table)) {
    if (p.offsets != nullptr) fail(Code::unsupported, kOp, "index_offsets and pages are given; one transform at a time");
    check_type(kOp, "pages.table", args.pages.table, {DType::i32});
    check_tensor(kOp, "pages.table", args.pages.table, device, {-1, -1}, "[requests, pages]");
    if (p.page_size < 1) fail(Code::invalid_argument, kOp, "pages.page_size={}; must be >= 1", p.page_size);
    p.table = static_cast<const std::int32_t*>(args.pages.table.data);
    p.table_row_stride = stride_of(args.pages.table, 0);
    p.table_stride = stride_of(args.pages.table, 1);
    p.table_rows = args.pages.table.shape[0];
    p.table_pages = args.pages.table.shape[1];
    for (std::int64_t r = 0; r < rows && on_cpu(context); ++r) {
      const std::int64_t request = p.row_requests == nullptr ? r : p.row_requests[r * p.row_requests_stride];
      const std::int64_t start = p.starts == nullptr ? 0 : p.starts[r * p.starts_stride];
      const std::int64_t length = p.lengths == nullptr ? vocab - start : p.lengths[r * p.lengths_stride];
      if (request < 0 || request >= p.table_rows)
        fail(Code::invalid_argument, kOp, "row {} is of request {}; pages.table has rows [0, {})", r, request, p.table_rows);
      if ((length + p.page_size - 1) / p.page_size > p.table_pages)
        fail(Code::invalid_argument, kOp, "row {} has {} entries; pages.table.shape[1]={} pages of {} hold fewer", r, length, p.table_pages,
             p.page_size);
    }
  } else if (given(args.pages.row_requests)) {
    fail(Code::invalid_argument, kOp, "pages.row_requests is given without pages.table");
  }
  if (given(args.values)) {
    check_type(kOp, "values", args.values, {args.input.dtype});
    check_tensor(kOp, "values", args.values, device, {rows, args.k}, "[rows, k]");
    check_output(kOp, "values", args.values);
    p.values = rows_out(args.values);
  }
  p.indices = token_out(kOp, "indices", args.indices, context, {rows, args.k}, "[rows, k]");
  check_apart(kOp, {{"values", &args.values}, {"indices", &args.indices}},
              {{"input", &args.input},
               {"row_starts", &args.row_starts},
               {"row_lengths", &args.row_lengths},
               {"pages.table", &args.pages.table},
               {"pages.row_requests", &args.pages.row_requests},
               {"index_offsets", &args.index_offsets}});
  return p;
}

abi::SpeculativeParams check_speculative(const Context& context, const SpeculativeArgs& args) {
  constexpr std::string_view kOp = "chain_speculative_sample";
  const Device device = context.device();
  check_stream(kOp, context, args.stream);
  check_data(kOp, "target_probs", args.target_probs);
  check_tensor(kOp, "target_probs", args.target_probs, device, {-1, -1, -1}, "[batch, n + 1, vocab]");
  const std::int64_t batch = args.target_probs.shape[0], n = args.target_probs.shape[1] - 1, vocab = args.target_probs.shape[2];
  if (n < 0 || n > 1024) fail(Code::invalid_argument, kOp, "target_probs.shape[1]={}; must be n + 1 for 0 to 1024 drafts", n + 1);
  check_vocab(kOp, "target_probs", vocab);
  check_row_count(kOp, "target_probs", batch);
  abi::SpeculativeParams p{};
  p.target = rows_in(args.target_probs, 2);
  p.target_place_stride = stride_of(args.target_probs, 1) * (bits(args.target_probs.dtype) / 8);
  p.batch = batch;
  p.n = static_cast<std::int32_t>(n);
  p.vocab = static_cast<std::int32_t>(vocab);
  p.greedy = args.greedy ? 1 : 0;
  if (given(args.draft_probs)) {
    if (args.greedy) fail(Code::unsupported, kOp, "draft_probs is given with greedy=true, which does not look at it; leave one out");
    check_type(kOp, "draft_probs", args.draft_probs, {args.target_probs.dtype});
    check_tensor(kOp, "draft_probs", args.draft_probs, device, {batch, n, vocab}, "[batch, n, vocab]");
    p.draft = rows_in(args.draft_probs, 2);
    p.draft_place_stride = stride_of(args.draft_probs, 1) * (bits(args.draft_probs.dtype) / 8);
  }
  check_type(kOp, "draft_tokens", args.draft_tokens, {DType::i32});
  check_tensor(kOp, "draft_tokens", args.draft_tokens, device, {batch, n}, "[batch, n]");
  p.draft_tokens = static_cast<const std::int32_t*>(args.draft_tokens.data);
  p.draft_tokens_row_stride = stride_of(args.draft_tokens, 0);
  p.draft_tokens_stride = stride_of(args.draft_tokens, 1);
  p.lengths = {.rows = nullptr, .stride = 0, .value = n, .is_64 = 0};
  if (given(args.draft_lengths)) {
    const I32Vector v = i32_vector(kOp, "draft_lengths", args.draft_lengths, device, batch, "[batch]");
    p.lengths.rows = v.data;
    p.lengths.stride = v.stride;
  }
  for (std::int64_t b = 0; b < batch && on_cpu(context); ++b) {
    const std::int64_t length = p.lengths.at(b);
    if (length < 0 || length > n) fail(Code::invalid_argument, kOp, "draft_lengths[{}]={}; must be in [0, n={}]", b, length, n);
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int32_t token = p.draft_tokens[b * p.draft_tokens_row_stride + i * p.draft_tokens_stride];
      if (token < 0 || token >= vocab)
        fail(Code::invalid_argument, kOp, "draft_tokens[{}, {}]={}; must be in [0, vocab={})", b, i, token, vocab);
    }
  }
  p.random = random_arg(kOp, context, args.random, batch);
  p.tokens = token_out(kOp, "tokens", args.tokens, context, {batch, n + 1}, "[batch, n + 1]");
  if (given(args.accepted)) {
    p.accepted = token_out(kOp, "accepted", args.accepted, context, {batch}, "[batch]");
  }
  check_apart(kOp, {{"tokens", &args.tokens}, {"accepted", &args.accepted}},
              {{"draft_probs", &args.draft_probs},
               {"draft_tokens", &args.draft_tokens},
               {"target_probs", &args.target_probs},
               {"draft_lengths", &args.draft_lengths},
               {"random.seed", &args.random.seed.rows},
               {"random.offset", &args.random.offset.rows}});
  return p;
}

}  // namespace girih::sampling
