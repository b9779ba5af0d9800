// C ABI: sampling and selection over a vocabulary.
#include "girih/sampling.h"

#include "c_api/convert.h"
#include "c_api/handles.h"

namespace girih::c_api {
namespace {

static_assert(static_cast<int>(SampleInput::probs) == GIRIH_PROBS && static_cast<int>(FilterOrder::joint) == GIRIH_JOINT);
static_assert(static_cast<int>(LogprobKind::filtered) == GIRIH_FILTERED);

bool given(const girih_tensor& t) { return t.rank != 0 || t.data != nullptr; }

RowFloat row_float(const Call& call, const girih_row_float& r, const Field& field) {
  call.reserved(r.reserved, field);
  const TensorView rows = tensor(call, r.rows, Field(field, "rows"));
  return given(r.rows) ? RowFloat(rows) : RowFloat(r.value);
}
RowFloat row_float(const Call& call, const girih_row_float* r, const Field& field) {
  if (r == nullptr) call.refuse("{} is NULL; must point to a girih_row_float", field.text());
  return row_float(call, *r, field);
}

RowInt row_int(const Call& call, const girih_row_int& r, const Field& field) {
  const TensorView rows = tensor(call, r.rows, Field(field, "rows"));
  return given(r.rows) ? RowInt(rows) : RowInt(r.value);
}
RowInt row_int(const Call& call, const girih_row_int* r, const Field& field) {
  if (r == nullptr) call.refuse("{} is NULL; must point to a girih_row_int", field.text());
  return row_int(call, *r, field);
}

Random random(const Call& call, const girih_random& r, const Field& field) {
  return {.seed = row_int(call, r.seed, Field(field, "seed")), .offset = row_int(call, r.offset, Field(field, "offset"))};
}

TokenLists token_lists(const Call& call, const girih_token_lists& lists, const Field& field) {
  return {.indptr = tensor(call, lists.indptr, Field(field, "indptr")), .tokens = tensor(call, lists.tokens, Field(field, "tokens"))};
}

SampleArgs sample_args(const Call& call, const girih_sample_args& a) {
  const Field field("args");
  call.reserved(a.reserved, field);
  const auto view = [&](const girih_tensor& t, const char* name) { return tensor(call, t, Field(field, name)); };
  const auto number = [&](const girih_row_float& r, const char* name) { return row_float(call, r, Field(field, name)); };
  return {.kind = call.enumerator<SampleInput>(a.kind, GIRIH_PROBS + 1, Field(field, "kind")),
          .input = view(a.input, "input"),
          .indices = view(a.indices, "indices"),
          .bias_tokens = token_lists(call, a.bias_tokens, Field(field, "bias_tokens")),
          .bias = view(a.bias, "bias"),
          .history = token_lists(call, a.history, Field(field, "history")),
          .history_counts = view(a.history_counts, "history_counts"),
          .repetition_penalty = number(a.repetition_penalty, "repetition_penalty"),
          .frequency_penalty = number(a.frequency_penalty, "frequency_penalty"),
          .presence_penalty = number(a.presence_penalty, "presence_penalty"),
          .allowed = view(a.allowed, "allowed"),
          .temperature = number(a.temperature, "temperature"),
          .top_k = row_int(call, a.top_k, Field(field, "top_k")),
          .top_p = number(a.top_p, "top_p"),
          .min_p = number(a.min_p, "min_p"),
          .order = call.enumerator<FilterOrder>(a.order, GIRIH_JOINT + 1, Field(field, "order")),
          .random = random(call, a.random, Field(field, "random")),
          .tokens = view(a.tokens, "tokens"),
          .valid = view(a.valid, "valid"),
          .logprobs = view(a.logprobs, "logprobs"),
          .top_tokens = view(a.top_tokens, "top_tokens"),
          .top_logprobs = view(a.top_logprobs, "top_logprobs"),
          .logprob_kind = call.enumerator<LogprobKind>(a.logprob_kind, GIRIH_FILTERED + 1, Field(field, "logprob_kind")),
          .stream = a.stream};
}

TopKArgs top_k_args(const Call& call, const girih_top_k_args& a) {
  const Field field("args");
  call.reserved(a.reserved, field);
  const auto view = [&](const girih_tensor& t, const char* name) { return tensor(call, t, Field(field, name)); };
  return {
      .input = view(a.input, "input"),
      .k = a.k,
      .sorted = call.flag(a.sorted, Field(field, "sorted")),
      .row_starts = view(a.row_starts, "row_starts"),
      .row_lengths = view(a.row_lengths, "row_lengths"),
      .pages = {.table = view(a.page_table, "page_table"), .row_requests = view(a.row_requests, "row_requests"), .page_size = a.page_size},
      .index_offsets = view(a.index_offsets, "index_offsets"),
      .values = view(a.values, "values"),
      .indices = view(a.indices, "indices"),
      .stream = a.stream};
}

SpeculativeArgs speculative_args(const Call& call, const girih_speculative_args& a) {
  const Field field("args");
  call.reserved(a.reserved, field);
  const auto view = [&](const girih_tensor& t, const char* name) { return tensor(call, t, Field(field, name)); };
  return {.draft_probs = view(a.draft_probs, "draft_probs"),
          .draft_tokens = view(a.draft_tokens, "draft_tokens"),
          .target_probs = view(a.target_probs, "target_probs"),
          .draft_lengths = view(a.draft_lengths, "draft_lengths"),
          .greedy = call.flag(a.greedy, Field(field, "greedy")),
          .random = random(call, a.random, Field(field, "random")),
          .tokens = view(a.tokens, "tokens"),
          .accepted = view(a.accepted, "accepted"),
          .stream = a.stream};
}

}  // namespace
}  // namespace girih::c_api

using girih::c_api::Call;
using girih::c_api::guarded;
using girih::c_api::row_float;
using girih::c_api::row_int;
using girih::c_api::tensor;

girih_status girih_sample(const girih_context* context, const girih_sample_args* args) {
  return guarded("girih_sample", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::sample(on, girih::c_api::sample_args(call, call.read(args, "args")));
  });
}

girih_status girih_softmax(const girih_context* context, const girih_tensor* logits, const girih_row_float* temperature,
                           const girih_tensor* out, void* stream) {
  return guarded("girih_softmax", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::softmax(on, tensor(call, logits, "logits"), row_float(call, temperature, "temperature"), tensor(call, out, "out"), stream);
  });
}

girih_status girih_top_p_renorm_probs(const girih_context* context, const girih_tensor* probs, const girih_row_float* top_p,
                                      const girih_tensor* out, void* stream) {
  return guarded("girih_top_p_renorm_probs", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::top_p_renorm_probs(on, tensor(call, probs, "probs"), row_float(call, top_p, "top_p"), tensor(call, out, "out"), stream);
  });
}

girih_status girih_top_k_renorm_probs(const girih_context* context, const girih_tensor* probs, const girih_row_int* top_k,
                                      const girih_tensor* out, void* stream) {
  return guarded("girih_top_k_renorm_probs", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::top_k_renorm_probs(on, tensor(call, probs, "probs"), row_int(call, top_k, "top_k"), tensor(call, out, "out"), stream);
  });
}

girih_status girih_top_k_mask_logits(const girih_context* context, const girih_tensor* logits, const girih_row_int* top_k,
                                     const girih_tensor* out, void* stream) {
  return guarded("girih_top_k_mask_logits", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::top_k_mask_logits(on, tensor(call, logits, "logits"), row_int(call, top_k, "top_k"), tensor(call, out, "out"), stream);
  });
}

girih_status girih_top_k(const girih_context* context, const girih_top_k_args* args) {
  return guarded("girih_top_k", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::top_k(on, girih::c_api::top_k_args(call, call.read(args, "args")));
  });
}

girih_status girih_chain_speculative_sample(const girih_context* context, const girih_speculative_args* args) {
  return guarded("girih_chain_speculative_sample", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::chain_speculative_sample(on, girih::c_api::speculative_args(call, call.read(args, "args")));
  });
}
