// run(): every argument checked against the plan, then handed to the backend. Nothing is written before all checks have passed.
#include <algorithm>

#include "attention/check_args.h"
#include "attention/cpu.h"
#include "attention/cuda_run.h"
#include "base/error.h"

namespace girih {
namespace attention {
namespace {

constexpr const char* kOp = "attention.run";

void run_on_cpu(const Context& context, const ScheduleState& s, const PlanState& plan, const AttentionArgs& args) {
  if (args.stream != nullptr) fail(Code::invalid_argument, kOp, "stream is given; the schedule is for the CPU");
  if (args.device_plan != nullptr) fail(Code::invalid_argument, kOp, "device_plan is given; the schedule is for the CPU");
  const CheckedArgs checked = check_args(s, plan, args);
  if (plan.view.header->num_tokens == 0) return;
  run_cpu(context, {.schedule = &s,
                    .plan = &plan.view,
                    .segments = checked.segments,
                    .q = checked.q,
                    .q_rope = checked.q_rope,
                    .o = checked.o,
                    .lse = checked.lse,
                    .o_factor = checked.o_scale == nullptr ? 1.0F : 1.0F / *checked.o_scale,
                    .params = checked.params,
                    .part_o = reinterpret_cast<float*>(checked.workspace + checked.at.part_o),
                    .part_ml = reinterpret_cast<float*>(checked.workspace + checked.at.part_ml),
                    .scratch = checked.workspace + checked.at.unit_scratch});
}

}  // namespace
}  // namespace attention

void run(const Context& context, const Schedule& schedule, const Plan& plan, const AttentionArgs& args) {
  const attention::ScheduleState& state = schedule.state();
  if (context.device() != state.device) {
    fail(Code::invalid_argument, attention::kOp, "context.device={}; the schedule is for {}", name(context.device()), name(state.device));
  }
  if (state.device.kind == DeviceKind::cuda)
    attention::run_cuda(context, state, plan.state(), args);
  else
    attention::run_on_cpu(context, state, plan.state(), args);
}

void single_attention(const Context& context, AttentionSpec spec, const TensorView& q, const TensorView& k, const TensorView& v,
                      const TensorView& o, const TensorView& lse, std::span<const ParamValue> params) {
  constexpr const char* kSingle = "single_attention";
  if (q.rank != 3 || k.rank != 3 || v.rank != 3) {
    fail(Code::invalid_argument, kSingle, "q, k and v have rank {}, {} and {}; all must be 3 (tokens, heads, dim)", q.rank, k.rank, v.rank);
  }
  if (k.shape[0] != v.shape[0] || k.shape[1] != v.shape[1]) {
    fail(Code::invalid_argument, kSingle, "v has {} tokens and {} heads, k has {} and {}; they must agree", v.shape[0], v.shape[1],
         k.shape[0], k.shape[1]);
  }
  if (q.shape[2] != k.shape[2]) fail(Code::invalid_argument, kSingle, "q.shape[2]={} differs from k.shape[2]={}", q.shape[2], k.shape[2]);
  if (q.shape[1] > INT32_MAX || k.shape[1] > INT32_MAX || q.shape[2] > INT32_MAX || v.shape[2] > INT32_MAX) {
    fail(Code::invalid_argument, kSingle, "q, k or v has more than 2^31-1 heads or dims");
  }
  spec.num_qo_heads = static_cast<int>(q.shape[1]);
  spec.num_kv_heads = static_cast<int>(k.shape[1]);
  spec.head_dim_qk = static_cast<int>(q.shape[2]);
  spec.head_dim_vo = static_cast<int>(v.shape[2]);
  spec.q_dtype = q.dtype;
  spec.k_dtype = k.dtype;
  spec.v_dtype = v.dtype;
  spec.o_dtype = o.dtype;
  spec.head_dim_rope = 0;
  spec.v_is_k = false;
  if (spec.lse == LseKind::none && lse.rank != 0) spec.lse = LseKind::natural;
  std::vector<ParamValue> plan_params;
  std::vector<ParamValue> run_params;
  const variant::Program program = variant::compile(spec.variant);
  for (const ParamValue& p : params) {
    const auto info = std::find_if(program.params.begin(), program.params.end(), [&](const auto& i) { return i.name == p.name; });
    (info != program.params.end() && info->time == ParamTime::plan ? plan_params : run_params).push_back(p);
  }

  const AttentionLimits limits{.max_tokens = q.shape[0], .max_requests = 1, .max_kv_len = k.shape[0], .max_param_bytes = INT64_C(1) << 40};
  const Schedule frozen = schedule(context, spec, limits);
  Plan plan(frozen);
  const std::vector<std::int64_t> qo_indptr = {0, q.shape[0]};
  const std::vector<std::int64_t> kv_indptr = {0, k.shape[0]};
  const KvSegment segment{.page_size = kEndlessPage, .kv_indptr = kv_indptr};
  plan.update({.qo_indptr = qo_indptr, .segments = {&segment, 1}, .params = plan_params});

  const SegmentData data{.store = ragged_kv_store(k, v)};
  AttentionArgs args;
  args.q = q;
  args.segments = {&data, 1};
  args.params = run_params;
  args.o = o;
  args.lse = lse;
  if (context.device().kind == DeviceKind::cuda) return attention::run_cuda_once(context, frozen, plan, args);
  std::vector<std::byte> memory(static_cast<std::size_t>(plan.info().workspace_bytes) + 64);
  void* aligned = memory.data();
  std::size_t space = memory.size();
  std::align(64, memory.size() - 64, aligned, space);
  args.workspace = {static_cast<std::byte*>(aligned), static_cast<std::size_t>(plan.info().workspace_bytes)};
  run(context, frozen, plan, args);
}

}  // namespace girih
