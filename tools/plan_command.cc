// `girih plan`: the work list that plan() makes of a batch, as text, JSON or a picture. Nothing is run.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tools/cli.h"
#include "tools/output.h"
#include "tools/plan_report.h"

namespace girih::tools {
namespace {

using Json = nlohmann::ordered_json;

struct PlanOptions {
  std::string file, trace, qo_lens = "1", kv_lens, mask = "causal", logits = "none", dtype = "bf16", svg;
  std::int64_t step = 0, page_size = 16, first = 20;
  int num_units = 0, num_qo_heads = 32, num_kv_heads = 8, head_dim = 128;
  bool all = false, json = false, batch_invariant = false;
};

OwnedBatch batch_of(const PlanOptions& o, const TraceStep& trace_step) {
  const int sources = !o.file.empty() + !o.trace.empty() + !o.kv_lens.empty();
  if (sources != 1) fail(Code::invalid_argument, "plan", "give one of FILE, --kv-lens{}", trace_step ? " or --trace" : "");
  if (!o.file.empty()) return read_batch_json(o.file);
  if (!o.trace.empty()) return trace_step(o.trace, o.step);
  AttentionSpec spec;
  spec.num_qo_heads = o.num_qo_heads;
  spec.num_kv_heads = o.num_kv_heads;
  spec.head_dim_qk = o.head_dim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = spec.o_dtype = dtype_from_name(o.dtype);
  spec.batch_invariant = o.batch_invariant;
  return make_batch(spec, parse_lengths(o.qo_lens, "--qo-lens"), parse_lengths(o.kv_lens, "--kv-lens"), o.page_size,
                    parse_call(o.mask, "--mask"), parse_call(o.logits, "--logits"));
}

Json items_json(const attention::PlanView& view, int group, std::int64_t count) {
  Json items = Json::array();
  for (std::size_t u = 0; u + 1 < view.unit_begin.size(); ++u) {
    for (std::int32_t i = view.unit_begin[u]; i < view.unit_begin[u + 1] && std::ssize(items) < count; ++i) {
      const abi::WorkItem& w = view.items[static_cast<std::size_t>(i)];
      items.push_back({{"unit", u},
                       {"request", request_of_row(view, w.row_begin, group)},
                       {"segment", w.segment},
                       {"kv_head", w.kv_head},
                       {"row_begin", w.row_begin},
                       {"row_count", w.row_count},
                       {"kv_begin", w.kv_begin},
                       {"kv_end", w.kv_end},
                       {"full_begin", w.full_begin},
                       {"full_end", w.full_end},
                       {"tile_class", w.tile_class},
                       {"flags", w.flags},
                       {"part_row", w.part_row},
                       {"cost", w.cost}});
    }
  }
  return items;
}

void print_json(const Schedule& schedule, const Plan& plan, int group, std::int64_t count) {
  const PlanInfo& info = plan.info();
  Json out;
  out["schedule"] = schedule.key();
  out["num_units"] = schedule.num_units();
  out["num_items"] = info.num_items;
  out["num_merges"] = info.num_merges;
  out["blob_bytes"] = info.blob_bytes;
  out["workspace_bytes"] = info.workspace_bytes;
  out["workspace_limit_bytes"] = schedule.workspace_bytes();
  out["max_unit_cost"] = info.max_unit_cost;
  out["total_cost"] = info.total_cost;
  out["max_piece_cost"] = info.max_piece_cost;
  out["balance"] = balance(info, schedule.num_units());
  out["visible_pairs"] = info.visible_pairs;
  out["items"] = items_json(plan.state().view, group, count);
  fmt::print("{}\n", out.dump(1));
}

void print_text(const Schedule& schedule, const Plan& plan, int group, std::int64_t count) {
  const PlanInfo& info = plan.info();
  const attention::PlanView& view = plan.state().view;
  fmt::print("schedule   {}\n", schedule.key());
  fmt::print("batch      {} requests, {} rows, {} segments\n", view.requests.size(), view.header->num_tokens, view.segments.size());
  fmt::print("items      {} over {} units, {} merges, blob {} bytes\n", info.num_items, schedule.num_units(), info.num_merges,
             info.blob_bytes);
  fmt::print("balance    {:.3f} (busiest unit {} / max(mean {:.0f}, largest piece {}))\n", balance(info, schedule.num_units()),
             info.max_unit_cost, static_cast<double>(info.total_cost) / schedule.num_units(), info.max_piece_cost);
  fmt::print("workspace  {} of {} bytes\n\n", info.workspace_bytes, schedule.workspace_bytes());
  fmt::print("{}", item_header());
  std::int64_t printed = 0;
  for (std::size_t u = 0; u + 1 < view.unit_begin.size(); ++u) {
    for (std::int32_t i = view.unit_begin[u]; i < view.unit_begin[u + 1] && printed < count; ++i, ++printed) {
      fmt::print("{}", item_line(view, i, static_cast<int>(u), group));
    }
  }
  if (printed < info.num_items) fmt::print("... {} more (--all, or --first N)\n", info.num_items - printed);
}

void run_plan(const PlanOptions& o, const TraceStep& trace_step) {
  const OwnedBatch owned = batch_of(o, trace_step);
  const Context context;
  const Schedule schedule = girih::schedule(context, owned.spec, owned.limits(), {.num_units = o.num_units});
  Plan plan(schedule);
  plan.update(owned.view().batch);
  const int group = schedule.spec().num_qo_heads / schedule.spec().num_kv_heads;
  const std::int64_t count = o.all ? plan.info().num_items : o.first;
  if (!o.svg.empty()) {
    write_file(o.svg, work_svg(plan_bars(plan.state().view, group), schedule.num_units(),
                               fmt::format("{} requests over {} units, balance {:.3f}", owned.num_requests(), schedule.num_units(),
                                           balance(plan.info(), schedule.num_units()))));
  }
  if (o.json) {
    print_json(schedule, plan, group, count);
  } else {
    print_text(schedule, plan, group, count);
  }
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code, const TraceStep& trace_step) {
  CLI::App* command = app.add_subcommand("plan", "Plan a batch and show the work list");
  const auto o = std::make_shared<PlanOptions>();
  CLI::Option* file = command->add_option("FILE", o->file, "Batch as JSON (spec and batch; docs of the form in tools/batch_json.h)");
  command->add_option("--qo-lens", o->qo_lens, "Query lengths: 1,1,512 or 1x64; one for all requests is enough")->capture_default_str();
  command->add_option("--kv-lens", o->kv_lens, "KV lengths: 4096,1000 or 512x8 or zipf:mean=4096,n=64 or uniform:min=1,max=9,n=4");
  CLI::Option* trace = nullptr;
  if (trace_step) {
    trace = command->add_option("--trace", o->trace, "Plan a step of the replay of this trace");
    command->add_option("--step", o->step, "Which step, from 0")->needs(trace)->check(CLI::NonNegativeNumber);
  }
  command->add_option("--page-size", o->page_size, "Tokens a page; 0 = ragged")->capture_default_str()->check(CLI::Range(0, 1 << 20));
  command->add_option("--units", o->num_units, "Units to balance over; 0 = the CPU workers")->check(CLI::Range(0, 1 << 16));
  command->add_option("--qo-heads", o->num_qo_heads, "Query heads")->capture_default_str();
  command->add_option("--kv-heads", o->num_kv_heads, "KV heads")->capture_default_str();
  command->add_option("--head-dim", o->head_dim, "Head dimension")->capture_default_str();
  command->add_option("--dtype", o->dtype, "Type of Q, K, V and O: f32, f16, bf16")->capture_default_str();
  command
      ->add_option("--mask", o->mask,
                   "full, causal, window:left=N[,right=N], sliding_window:size=N, chunked_local:size=N, "
                   "streaming:first=N,left=N, prefix_lm:prefix_len=N, document:size=N")
      ->capture_default_str();
  command->add_option("--logits", o->logits, "none, soft_cap:cap=X, alibi, sigmoid:bias=X")->capture_default_str();
  command->add_flag("--batch-invariant", o->batch_invariant, "Cut KV where only the spec decides");
  command->add_option("--first", o->first, "Items to print")->capture_default_str()->check(CLI::NonNegativeNumber);
  command->add_flag("--all", o->all, "Print every item");
  command->add_flag("--json", o->json, "Print JSON");
  command->add_option("--svg", o->svg, "Write a picture of the work of each unit");
  // A batch file or a trace says these itself.
  for (const char* name : {"--qo-lens", "--kv-lens", "--page-size", "--qo-heads", "--kv-heads", "--head-dim", "--dtype", "--mask",
                           "--logits", "--batch-invariant"}) {
    command->get_option(name)->excludes(file);
    if (trace != nullptr) command->get_option(name)->excludes(trace);
  }
  command->callback([o, trace_step, &exit_code] {
    run_plan(*o, trace_step);
    exit_code = kOk;
  });
}

}  // namespace girih::tools
