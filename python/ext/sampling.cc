// The sampling functions for Python; girih/sampling.py documents them. Arguments come by place: on this path every microsecond counts.
#include "girih/sampling.h"

#include <fmt/format.h>

#include <algorithm>

#include "call.h"

namespace girih::python {
namespace {

constexpr Name kNames[] = {{"random.", ""},
                           {"bias_tokens.indptr", "bias_tokens[0]"},
                           {"bias_tokens.tokens", "bias_tokens[1]"},
                           {"history.indptr", "history[0]"},
                           {"history.tokens", "history[1]"},
                           {"pages.table", "page_table"},
                           {"pages.row_requests", "row_requests"},
                           {"pages.page_size", "page_size"},
                           {"index_offsets and pages are", "index_offsets and page_table are"}};

/// A pair (indptr, tokens), or None.
TokenLists lists(Call& call, nb::handle object, std::string_view name) {
  if (object.is_none()) return {};
  if (PyTuple_Check(object.ptr()) == 0 && PyList_Check(object.ptr()) == 0)
    throw nb::type_error(fmt::format("{}: must be a pair (indptr, tokens)", name).c_str());
  if (PySequence_Size(object.ptr()) != 2)
    bad_value(name, fmt::format("has {} entries; must be a pair (indptr, tokens)", PySequence_Size(object.ptr())));
  return {call.in(nb::object(object[0]), fmt::format("{}[0]", name)), call.in(nb::object(object[1]), fmt::format("{}[1]", name))};
}

/// One of two names, as a flag that the second was given.
bool second_of(nb::handle text, std::string_view name, const char* first, const char* second) {
  if (PyUnicode_Check(text.ptr()) != 0) {
    if (PyUnicode_CompareWithASCIIString(text.ptr(), first) == 0) return false;
    if (PyUnicode_CompareWithASCIIString(text.ptr(), second) == 0) return true;
  }
  throw nb::value_error(fmt::format("{}: {} is unknown; known are \"{}\", \"{}\"", name, nb::repr(text).c_str(), first, second).c_str());
}

/// i32 unless told; tokens and indices may be i64.
DType index_dtype(nb::handle object, std::string_view name) {
  if (object.is_none()) return DType::i32;
  const DType type = dtype(object, name);
  if (type != DType::i32 && type != DType::i64) bad_value(name, fmt::format("is {}; must be i32 or i64", girih::name(type)));
  return type;
}

std::int64_t rows_of(const TensorView& t) { return t.rank > 0 ? t.shape[0] : 0; }

Five sample_(ArrayLike input, nb::handle kind, nb::object indices, nb::object bias_tokens, nb::object bias, nb::object history,
             nb::object history_counts, nb::object repetition_penalty, nb::object frequency_penalty, nb::object presence_penalty,
             nb::object allowed, nb::object temperature, nb::object top_k, nb::object top_p, nb::object min_p, nb::handle order,
             nb::object seed, nb::object offset, nb::object tokens, nb::object token_dtype, nb::object valid, nb::object logprobs,
             std::int64_t num_top, nb::object top_tokens, nb::object top_logprobs, nb::handle logprob_kind, const Context* context,
             nb::object stream) {
  Call call(input, "input", context, stream);
  SampleArgs args{.kind = second_of(kind, "kind", "logits", "probs") ? SampleInput::probs : SampleInput::logits,
                  .input = call.first(),
                  .indices = call.in(indices, "indices")};
  const std::int64_t rows = rows_of(indices.is_none() ? args.input : args.indices);
  args.bias_tokens = lists(call, bias_tokens, "bias_tokens");
  args.bias = call.in(bias, "bias");
  args.history = lists(call, history, "history");
  args.history_counts = call.in(history_counts, "history_counts");
  args.repetition_penalty = call.row_float(repetition_penalty, "repetition_penalty", rows);
  args.frequency_penalty = call.row_float(frequency_penalty, "frequency_penalty", rows);
  args.presence_penalty = call.row_float(presence_penalty, "presence_penalty", rows);
  args.allowed = call.in(allowed, "allowed");
  args.temperature = call.row_float(temperature, "temperature", rows);
  args.top_k = call.row_int(top_k, "top_k", rows);
  args.top_p = call.row_float(top_p, "top_p", rows);
  args.min_p = call.row_float(min_p, "min_p", rows);
  args.order = second_of(order, "order", "top_k_first", "joint") ? FilterOrder::joint : FilterOrder::top_k_first;
  args.random = call.random(seed, offset);
  args.logprob_kind = second_of(logprob_kind, "logprob_kind", "processed", "filtered") ? LogprobKind::filtered : LogprobKind::processed;
  if (num_top < 0 || num_top > 128) bad_value("num_top", fmt::format("is {}; must be 0 to 128", num_top));
  const DType type = index_dtype(token_dtype, "token_dtype");
  const Output chosen = call.out(tokens, "tokens", type, {rows});
  check_type(chosen, tokens, "tokens", token_dtype, "token_dtype");
  const Output is_valid = call.flags(valid, "valid", rows);
  const Output chosen_logprobs = call.wanted(logprobs, "logprobs", DType::f32, {rows});
  Output first_tokens, first_logprobs;
  if (num_top > 0 || !top_tokens.is_none() || !top_logprobs.is_none()) {
    std::int64_t n = num_top;
    if (n == 0) {
      const TensorView given = call.in(top_tokens.is_none() ? top_logprobs : top_tokens, "top_tokens");
      n = given.rank == 2 ? given.shape[1] : 0;
    }
    first_tokens = call.out(top_tokens, "top_tokens", chosen.view.dtype, {rows, n});
    first_logprobs = call.out(top_logprobs, "top_logprobs", DType::f32, {rows, n});
    if (num_top > 0 && first_tokens.view.rank == 2 && first_tokens.view.shape[1] != num_top)
      bad_value("top_tokens", fmt::format("has {} columns; num_top is {}", first_tokens.view.shape[1], num_top));
  }
  args.tokens = chosen.view;
  args.valid = is_valid.view;
  args.logprobs = chosen_logprobs.view;
  args.top_tokens = first_tokens.view;
  args.top_logprobs = first_logprobs.view;
  args.stream = call.stream();
  call.run(kNames, [&] { sample(call.context(), args); });
  return nb::make_tuple(chosen.object, is_valid.object, chosen_logprobs.object, first_tokens.object, first_logprobs.object);
}

nb::object softmax_(ArrayLike logits, nb::object temperature, nb::object out, const Context* context, nb::object stream) {
  Call call(logits, "logits", context, stream);
  const TensorView& x = call.first();
  const Output result = call.out_like(out, "out", DType::f32, x);
  const RowFloat t = call.row_float(temperature, "temperature", rows_of(x));
  call.run(kNames, [&] { softmax(call.context(), x, t, result.view, call.stream()); });
  return result.object;
}

nb::object top_p_renorm_probs_(ArrayLike probs, nb::object top_p, nb::object out, const Context* context, nb::object stream) {
  Call call(probs, "probs", context, stream);
  const TensorView& x = call.first();
  const Output result = call.out_like(out, "out", DType::f32, x);
  const RowFloat p = call.row_float(top_p, "top_p", rows_of(x));
  call.run(kNames, [&] { top_p_renorm_probs(call.context(), x, p, result.view, call.stream()); });
  return result.object;
}

nb::object top_k_renorm_probs_(ArrayLike probs, nb::object top_k, nb::object out, const Context* context, nb::object stream) {
  Call call(probs, "probs", context, stream);
  const TensorView& x = call.first();
  const Output result = call.out_like(out, "out", DType::f32, x);
  const RowInt k = call.row_int(top_k, "top_k", rows_of(x));
  call.run(kNames, [&] { top_k_renorm_probs(call.context(), x, k, result.view, call.stream()); });
  return result.object;
}

nb::object top_k_mask_logits_(ArrayLike logits, nb::object top_k, nb::object out, const Context* context, nb::object stream) {
  Call call(logits, "logits", context, stream);
  const TensorView& x = call.first();
  const Output result = call.out_like(out, "out", x.dtype, x);
  const RowInt k = call.row_int(top_k, "top_k", rows_of(x));
  call.run(kNames, [&] { top_k_mask_logits(call.context(), x, k, result.view, call.stream()); });
  return result.object;
}

Two top_k_(ArrayLike input, std::int64_t k, bool sorted, nb::object row_starts, nb::object row_lengths, nb::object page_table,
           nb::object row_requests, std::int64_t page_size, nb::object index_offsets, nb::object values, nb::object indices,
           nb::object index_dtype_, const Context* context, nb::object stream) {
  Call call(input, "input", context, stream);
  TopKArgs args{.input = call.first(),
                .k = k,
                .sorted = sorted,
                .row_starts = call.in(row_starts, "row_starts"),
                .row_lengths = call.in(row_lengths, "row_lengths"),
                .pages = {call.in(page_table, "page_table"), call.in(row_requests, "row_requests"), page_size},
                .index_offsets = call.in(index_offsets, "index_offsets"),
                .stream = call.stream()};
  if (page_table.is_none() && page_size != 1) bad_value("page_size", "is given without page_table; give both");
  // k is checked by the call; what it would refuse is not made first.
  const std::int64_t width = std::clamp<std::int64_t>(k, 0, 4096), rows = rows_of(args.input);
  const Output new_values = call.wanted(values, "values", args.input.dtype, {rows, width});
  const Output new_indices = call.out(indices, "indices", index_dtype(index_dtype_, "index_dtype"), {rows, width});
  check_type(new_indices, indices, "indices", index_dtype_, "index_dtype");
  args.values = new_values.view;
  args.indices = new_indices.view;
  call.run(kNames, [&] { top_k(call.context(), args); });
  return nb::make_tuple(new_values.object, new_indices.object);
}

Two speculative(ArrayLike target_probs, ArrayLike draft_tokens, nb::object draft_probs, nb::object draft_lengths, bool greedy,
                nb::object seed, nb::object offset, nb::object tokens, nb::object token_dtype, nb::object accepted, const Context* context,
                nb::object stream) {
  Call call(target_probs, "target_probs", context, stream);
  SpeculativeArgs args{.draft_probs = call.in(draft_probs, "draft_probs"),
                       .draft_tokens = call.in(draft_tokens, "draft_tokens"),
                       .target_probs = call.first(),
                       .draft_lengths = call.in(draft_lengths, "draft_lengths"),
                       .greedy = greedy,
                       .random = call.random(seed, offset),
                       .stream = call.stream()};
  const TensorView& target = args.target_probs;
  const DType type = index_dtype(token_dtype, "token_dtype");
  const Output emitted = call.out(tokens, "tokens", type, {rows_of(target), target.rank > 1 ? target.shape[1] : 0});
  check_type(emitted, tokens, "tokens", token_dtype, "token_dtype");
  const Output counts = call.wanted(accepted, "accepted", emitted.view.dtype, {rows_of(target)});
  args.tokens = emitted.view;
  args.accepted = counts.view;
  call.run(kNames, [&] { chain_speculative_sample(call.context(), args); });
  return nb::make_tuple(emitted.object, counts.object);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  using nb::arg;
  m.def("sample", &sample_, arg("input"), arg("kind"), arg("indices").none(), arg("bias_tokens").none(), arg("bias").none(),
        arg("history").none(), arg("history_counts").none(), arg("repetition_penalty"), arg("frequency_penalty"), arg("presence_penalty"),
        arg("allowed").none(), arg("temperature"), arg("top_k"), arg("top_p"), arg("min_p"), arg("order"), arg("seed"), arg("offset"),
        arg("tokens").none(), arg("token_dtype").none(), arg("valid"), arg("logprobs"), arg("num_top"), arg("top_tokens").none(),
        arg("top_logprobs").none(), arg("logprob_kind"), arg("context").none(), arg("stream").none());
  m.def("softmax", &softmax_, arg("logits"), arg("temperature"), arg("out").none(), arg("context").none(), arg("stream").none());
  m.def("top_p_renorm_probs", &top_p_renorm_probs_, arg("probs"), arg("top_p"), arg("out").none(), arg("context").none(),
        arg("stream").none());
  m.def("top_k_renorm_probs", &top_k_renorm_probs_, arg("probs"), arg("top_k"), arg("out").none(), arg("context").none(),
        arg("stream").none());
  m.def("top_k_mask_logits", &top_k_mask_logits_, arg("logits"), arg("top_k"), arg("out").none(), arg("context").none(),
        arg("stream").none());
  m.def("top_k", &top_k_, arg("input"), arg("k"), arg("sorted"), arg("row_starts").none(), arg("row_lengths").none(),
        arg("page_table").none(), arg("row_requests").none(), arg("page_size"), arg("index_offsets").none(), arg("values"),
        arg("indices").none(), arg("index_dtype").none(), arg("context").none(), arg("stream").none());
  m.def("chain_speculative_sample", &speculative, arg("target_probs"), arg("draft_tokens"), arg("draft_probs").none(),
        arg("draft_lengths").none(), arg("greedy"), arg("seed"), arg("offset"), arg("tokens").none(), arg("token_dtype").none(),
        arg("accepted"), arg("context").none(), arg("stream").none());
}

}  // namespace girih::python
