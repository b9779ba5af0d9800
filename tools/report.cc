// The replay report (report.h).
#include "tools/report.h"

#include <algorithm>

#include <fmt/format.h>

#include "tools/output.h"
#include "tools/report_charts.h"

namespace girih::tools {
namespace {

constexpr const char* kStyle = R"(
:root { --c1: #2563a8; --c2: #d97a1e; --c3: #3f8f5f; --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --page: #f6f7f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
       font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 25px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 15px; margin: 0 0 2px; }
p { margin: 0; color: var(--soft); }
.note { font-size: 13px; margin-bottom: 8px; }
.tiles { display: grid; grid-template-columns: repeat(6, 1fr); gap: 12px; margin: 22px 0 16px; }
.tile, section { background: #fff; border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: 12px 14px; }
.tile b { display: block; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile span { font-size: 12.5px; color: var(--soft); }
.grid { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; }
section { padding: 16px 18px; min-width: 0; }
section.wide { grid-column: 1 / -1; }
svg { display: block; width: 100%; height: auto; font-family: inherit; }
svg .tick { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .label { font-size: 11px; fill: var(--soft); }
svg .strong { fill: var(--ink); font-weight: 600; }
svg .grid { stroke: var(--line); }
svg .axis { stroke: #aab3bf; }
svg .mark { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 4 3; }
svg .piece { stroke: #fff; stroke-width: 0.4; }
svg .track { fill: #e9edf2; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td, th { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; font-weight: 400; }
th { color: var(--soft); white-space: nowrap; width: 1%; padding-right: 22px; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
tr:last-child td, tr:last-child th { border-bottom: 0; }
.bad { color: #b3261e; font-weight: 600; }
@media (max-width: 900px) { .grid { grid-template-columns: 1fr; } .tiles { grid-template-columns: repeat(2, 1fr); } }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
)";

std::string section(const std::string& title, const std::string& note, const std::string& content, bool wide = false) {
  return fmt::format("<section{}><h2>{}</h2><p class=\"note\">{}</p>\n{}</section>\n", wide ? " class=\"wide\"" : "", escape_markup(title),
                     escape_markup(note), content);
}

std::string tile(const std::string& value, const std::string& label) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape_markup(value), escape_markup(label));
}

std::string row(const std::string& field, const std::string& value, bool bad = false) {
  return fmt::format("<tr><th>{}</th><td{}>{}</td></tr>\n", escape_markup(field), bad ? " class=\"bad\"" : "", escape_markup(value));
}

std::string percentile_text(const Percentiles& p) {
  return fmt::format("p50 {}, p90 {}, p99 {}, max {}", show_seconds(p.p50), show_seconds(p.p90), show_seconds(p.p99), show_seconds(p.max));
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string summary_table(const ReplayResult& result, const ReplaySummary& s) {
  std::string rows = row("Trace", describe_run(result));
  rows += row("Model", describe_model(result));
  rows += row("Kernel", result.schedule_key);
  rows += row("Batching", fmt::format("token budget {}, at most {} running{}", show_count(result.options.token_budget),
                                      result.options.max_batch, result.options.batch_invariant ? ", batch invariant" : ""));
  rows += row("Tokens", fmt::format("{} prefill, {} decode, over {} of {}", show_count(s.prefill_tokens), show_count(s.decode_tokens),
                                    show_seconds(s.step_seconds_sum), result.options.full_step ? "steps without GEMMs" : "attention"));
  rows += row("Step", percentile_text(s.step_seconds));
  rows += row("Decode step", percentile_text(s.decode_step_seconds));
  rows += row("Between tokens", percentile_text(s.token_gap_seconds));
  rows += row("Plan", percentile_text(s.plan_seconds_per_step));
  for (int c = 0; c < attention::kNumClasses; ++c) {
    if (const std::string text = balance_text(result, s, c); !text.empty()) rows += row("Balance", text);
  }
  const bool any_prefix = std::ranges::any_of(result.requests, [](const TraceRequest& r) { return !r.hash_ids.empty(); });
  if (!any_prefix) {
    rows += row("Sharing", "none: the trace names no prefixes");
  } else if (result.options.sharing) {
    rows += row(
        "Sharing",
        fmt::format("{} of {} prompt tokens taken over instead of computed ({:.1f} %); KV read {} of {} keys ({:.1f} % saved)",
                    show_count(result.shared_tokens), show_count(result.prompt_tokens),
                    percent(static_cast<double>(result.shared_tokens), static_cast<double>(result.prompt_tokens)), show_count(s.read_keys),
                    show_count(s.flat_keys), percent(static_cast<double>(s.flat_keys - s.read_keys), static_cast<double>(s.flat_keys))));
  } else {
    rows += row("Sharing", "off");
  }
  const VerifyResult& v = result.verify;
  if (v.requested > 0) {
    rows +=
        row("Verified",
            fmt::format("{} of {} samples against double precision, {} beyond tolerance; largest error {:.2e}, {:.0f} % of its tolerance",
                        v.checked, v.requested, v.failed, v.max_error, 100 * v.max_ratio),
            !v.passed());
  }
  return "<table>" + rows + "</table>\n";
}

std::string machine_card(const ReplaySummary& s, const MachineCeilings& ceilings, const MachineFacts& machine) {
  std::string rows = row("CPU", machine.cpu);
  rows += row("Workers", fmt::format("{} of {} CPUs, target {}", machine.workers, machine.cpus, machine.target));
  if (machine.cache_bytes > 0) rows += row("Last-level cache", show_bytes(static_cast<double>(machine.cache_bytes)));
  rows += row("Measured", machine.date);
  std::string gauges =
      draw_gauge(s.bytes_per_second, ceilings.read_bytes_per_second,
                 fmt::format("memory: {:.2f} of {:.2f} GB/s", s.bytes_per_second / 1e9, ceilings.read_bytes_per_second / 1e9));
  gauges += draw_gauge(s.flops_per_second, s.peak_flops,
                       fmt::format("arithmetic: {:.1f} of {:.1f} GFLOP/s", s.flops_per_second / 1e9, s.peak_flops / 1e9));
  gauges += draw_gauge(s.roofline_fraction, 1, "roofline: each step's bound by memory or arithmetic, over the time of run");
  return gauges + "<table style=\"margin-top:10px\">" + rows + "</table>\n";
}

template <typename Field>
std::vector<double> per_step(const ReplayResult& result, Field field) {
  std::vector<double> values;
  for (const StepRecord& step : result.steps) values.push_back(static_cast<double>(field(step)));
  return values;
}

std::string length_section(const ReplayResult& result, bool input) {
  Histogram h{.unit = AxisUnit::count, .x_label = "tokens", .y_label = "requests"};
  for (const TraceRequest& request : result.requests) {
    h.values.push_back(static_cast<double>(input ? request.input_length : request.output_length));
  }
  const Percentiles p = percentiles(h.values);
  h.marks = {{"p50", p.p50}, {"p99", p.p99}};
  if (!input) h.colour = "var(--c3)";
  return section(input ? "Input length" : "Output length",
                 fmt::format("{} requests, median {:.0f}, p99 {:.0f}, longest {:.0f} tokens", show_count(std::ssize(result.requests)),
                             p.p50, p.p99, p.max),
                 draw_histogram(h));
}

std::string time_section(const std::string& title, const std::string& note, std::vector<double> values, const std::string& y_label) {
  const Percentiles p = percentiles(values);
  Histogram h{.values = std::move(values), .unit = AxisUnit::seconds, .x_label = "time, log scale", .y_label = y_label, .log_x = true};
  h.marks = {{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
  return section(title, note, draw_histogram(h));
}

std::string step_sections(const ReplayResult& result, const ReplaySummary& s) {
  const auto step_time = per_step(result, [](const StepRecord& r) { return r.seconds(); });
  std::string html = section("Step time", "append, plan and run; the band spans the steps that a column joins",
                             draw_series({.series = {{"step time", "var(--c1)", step_time}},
                                          .unit = AxisUnit::seconds,
                                          .y_label = "time",
                                          .marked_step = result.picture.step}));
  html += time_section("Distribution of step times", percentile_text(s.step_seconds), step_time, "steps");
  html += section("Query tokens of each step", "prompt chunks and decoded tokens",
                  draw_series({.series = {{"decode", "var(--c1)", per_step(result, [](const StepRecord& r) { return r.decode_tokens; })},
                                          {"prefill", "var(--c2)", per_step(result, [](const StepRecord& r) { return r.prefill_tokens; })}},
                               .y_label = "tokens",
                               .stacked = true}));
  html +=
      section("Requests in each step", "by what they do",
              draw_series({.series = {{"decode", "var(--c1)", per_step(result, [](const StepRecord& r) { return r.decode_requests; })},
                                      {"prefill", "var(--c2)", per_step(result, [](const StepRecord& r) { return r.prefill_requests; })}},
                           .y_label = "requests",
                           .stacked = true}));
  const auto page_size = static_cast<double>(result.options.page_size);
  html += section(
      "KV of each step", "tokens held in the pool for running requests, and tokens as the batch sees them",
      draw_series(
          {.series = {{"stored", "var(--c3)",
                       per_step(result, [&](const StepRecord& r) { return static_cast<double>(r.pool_pages) * page_size; })},
                      {"seen by the batch", "var(--c2)", per_step(result, [](const StepRecord& r) { return r.logical_kv_tokens; })}},
           .y_label = "tokens"}));
  html += time_section("Time between tokens", "of one request, attention only; " + percentile_text(s.token_gap_seconds), result.token_gaps,
                       "tokens");
  return html;
}

std::string work_section(const ReplayResult& result) {
  const WorkPicture& picture = result.picture;
  if (picture.step < 0) return section("Work of each unit", "the chosen step was not reached", "", true);
  const StepRecord& r = result.steps[picture.step];
  std::int64_t items = 0;
  for (const auto& unit : picture.units) items += std::ssize(unit);
  return section(fmt::format("Work of each unit in step {}", picture.step),
                 fmt::format("{} prefill and {} decode requests, {} query tokens, {} work items, {} segment{}; run took {}",
                             r.prefill_requests, r.decode_requests, show_count(r.prefill_tokens + r.decode_tokens), show_count(items),
                             r.segments, r.segments == 1 ? "" : "s", show_seconds(r.run_seconds)),
                 draw_work(picture), true);
}

}  // namespace

std::string report_html(const ReplayResult& result, const ReplaySummary& s, const MachineCeilings& ceilings, const MachineFacts& machine) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>girih replay</title>\n<style>";
  html += kStyle;
  html += "</style>\n</head>\n<body>\n<main>\n";
  html += fmt::format(
      "<h1>girih replay: {}</h1>\n<p>{}</p>\n<p>Times are of attention only: append, plan and run; no weights, no sampling.</p>\n",
      escape_markup(result.options.model.name), escape_markup(describe_run(result)));
  html += "<div class=\"tiles\">\n";
  html += tile(show_count(static_cast<std::int64_t>(s.prefill_rate)), "prefill tokens/s");
  html += tile(show_count(static_cast<std::int64_t>(s.decode_rate)), "decode tokens/s");
  html += tile(show_seconds(s.step_seconds.p50), "step, median");
  html += tile(show_seconds(s.token_gap_seconds.p99), "between tokens, p99");
  html += tile(show_seconds(s.plan_seconds_per_step.p50), "plan, median");
  html += tile(fmt::format("{:.0f} %", 100 * s.roofline_fraction), "of the roofline");
  html += "</div>\n<div class=\"grid\">\n";
  html += section("Summary", "", summary_table(result, s));
  html += section("Machine", "ceilings measured in the same process", machine_card(s, ceilings, machine));
  html += length_section(result, true) + length_section(result, false);
  html += step_sections(result, s);
  html += work_section(result);
  html += "</div>\n</main>\n</body>\n</html>\n";
  return html;
}

}  // namespace girih::tools
