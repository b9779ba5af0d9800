// Figures of a replay (replay_summary.h).
#include "tools/replay_summary.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace girih::tools {

Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double fraction) {
    const auto rank = static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(values.size())));
    return values[std::clamp<std::int64_t>(rank - 1, 0, std::ssize(values) - 1)];
  };
  return {.p50 = at(0.5), .p90 = at(0.9), .p99 = at(0.99), .max = values.back()};
}

ReplaySummary summarise(const ReplayResult& result, const MachineCeilings& ceilings) {
  ReplaySummary s;
  const bool bf16 = result.options.kv_dtype != DType::f32 && result.options.kv_dtype != DType::f16;
  s.peak_flops = bf16 ? std::max(ceilings.f32_flops, ceilings.bf16_flops) : ceilings.f32_flops;
  double bytes = 0, flops = 0, ideal = 0;
  std::array<double, attention::kNumClasses> balance{}, balanced_seconds{};
  std::vector<double> step_seconds, decode_steps, plans;
  for (const StepRecord& step : result.steps) {
    s.append_seconds += step.append_seconds;
    s.plan_seconds += step.plan_seconds;
    s.run_seconds += step.run_seconds;
    s.kernel_seconds += step.kernel_seconds;
    s.queue_seconds += step.queue_seconds;
    s.beside += step.beside;
    s.prefill_tokens += step.prefill_tokens;
    s.decode_tokens += step.decode_tokens;
    s.flat_keys += step.flat_keys;
    s.read_keys += step.read_keys;
    bytes += step.bytes;
    flops += step.flops;
    if (ceilings.read_bytes_per_second > 0 && s.peak_flops > 0) {
      ideal += std::max(step.bytes / ceilings.read_bytes_per_second, step.flops / s.peak_flops);
    }
    for (std::size_t c = 0; c < balance.size(); ++c) {
      if (step.balance[c].empty) continue;
      balance[c] += step.balance[c].largest * step.run_seconds;
      balanced_seconds[c] += step.run_seconds;
      s.worst_balance[c] = std::max(s.worst_balance[c], step.balance[c].largest);
    }
    step_seconds.push_back(step.seconds());
    if (step.prefill_tokens == 0) decode_steps.push_back(step.seconds());
    plans.push_back(step.plan_seconds);
  }
  s.attention_seconds = s.append_seconds + s.plan_seconds + s.run_seconds;
  s.step_seconds_sum = s.attention_seconds + s.beside.total();
  s.step_seconds = percentiles(std::move(step_seconds));
  s.decode_step_seconds = percentiles(std::move(decode_steps));
  s.plan_seconds_per_step = percentiles(std::move(plans));
  s.token_gap_seconds = percentiles(result.token_gaps);
  if (s.step_seconds_sum > 0) {
    s.prefill_rate = static_cast<double>(s.prefill_tokens) / s.step_seconds_sum;
    s.decode_rate = static_cast<double>(s.decode_tokens) / s.step_seconds_sum;
  }
  if (s.run_seconds > 0) {
    s.bytes_per_second = bytes / s.run_seconds;
    s.flops_per_second = flops / s.run_seconds;
    s.roofline_fraction = ideal / s.run_seconds;
  }
  for (std::size_t c = 0; c < balance.size(); ++c) {
    if (balanced_seconds[c] > 0) s.mean_balance[c] = balance[c] / balanced_seconds[c];
  }
  return s;
}

std::string balance_text(const ReplayResult& result, const ReplaySummary& s, int list) {
  const auto c = static_cast<std::size_t>(list);
  if (result.list_units[c] == 0) return {};
  const std::string_view name = list_name(result.list_units, list);
  return fmt::format("{}largest unit {:.3f} of the mean, worst step {:.3f}, {} units", name == "all" ? "" : fmt::format("{} tiles: ", name),
                     s.mean_balance[c], s.worst_balance[c], result.list_units[c]);
}

std::string show_seconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

std::string show_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string show_count(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::int64_t i = 0; i < std::ssize(digits); ++i) {
    const std::int64_t left = std::ssize(digits) - i;
    if (left % 3 == 0 && i > (value < 0 ? 1 : 0)) text += ',';
    text += digits[i];
  }
  return text;
}

std::string describe_model(const ReplayResult& result) {
  const ReplayOptions& o = result.options;
  const std::string dims = o.model.head_dim_qk == o.model.head_dim_vo ? std::to_string(o.model.head_dim_qk)
                                                                      : fmt::format("{}/{}", o.model.head_dim_qk, o.model.head_dim_vo);
  return fmt::format("{} ({}/{} heads of {}), {} layer{}, KV {}, pages of {}, pool of {} tokens ({})", o.model.name, o.model.num_qo_heads,
                     o.model.num_kv_heads, dims, o.num_layers, o.num_layers == 1 ? "" : "s", name(o.kv_dtype), o.page_size,
                     show_count(result.num_pages * o.page_size), show_bytes(static_cast<double>(result.pool_bytes)));
}

std::string describe_run(const ReplayResult& result) {
  return fmt::format("{} ({}): {} of {} requests finished in {} steps{}", result.source, result.format,
                     show_count(result.finished_requests), show_count(std::ssize(result.requests)), show_count(std::ssize(result.steps)),
                     result.interrupted ? ", interrupted" : "");
}

namespace {

std::string percentile_line(const Percentiles& p) {
  return fmt::format("p50 {:>9}   p90 {:>9}   p99 {:>9}   max {:>9}", show_seconds(p.p50), show_seconds(p.p90), show_seconds(p.p99),
                     show_seconds(p.max));
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string sharing_text(const ReplayResult& result, const ReplaySummary& s) {
  if (!result.options.sharing) return "  sharing         off\n";
  if (std::ranges::all_of(result.requests, [](const TraceRequest& r) { return r.hash_ids.empty(); })) {
    return "  sharing         none: the trace names no prefixes\n";
  }
  const std::int64_t peak_stored = result.peak_pool_pages * result.options.page_size;
  return fmt::format(
      "  sharing         {} of {} prompt tokens taken over instead of computed ({:.1f} %)\n"
      "                  KV read {} of {} keys ({:.1f} % saved{})\n"
      "                  KV held at the peak: {} tokens stored, {} as the largest batch sees them\n",
      show_count(result.shared_tokens), show_count(result.prompt_tokens),
      percent(static_cast<double>(result.shared_tokens), static_cast<double>(result.prompt_tokens)), show_count(s.read_keys),
      show_count(s.flat_keys), percent(static_cast<double>(s.flat_keys - s.read_keys), static_cast<double>(s.flat_keys)),
      result.options.batch_invariant ? ": batch invariant, no cascade" : ": shared prefixes are read once a group", show_count(peak_stored),
      show_count(result.peak_logical_kv_tokens));
}

std::string verify_text(const VerifyResult& v) {
  if (v.requested == 0) return "";
  return fmt::format(
      "  verify          {}: {} of {} samples recomputed in double, {} beyond tolerance\n"
      "                  largest error {:.2e} (LSE {:.2e}), {:.0f} % of its tolerance at {}\n"
      "                  pool against what was appended: {:.0f} % of what the KV type allows\n",
      v.passed() ? "passed" : "FAILED", v.checked, v.requested, v.failed, v.max_error, v.max_lse_error, 100 * v.max_ratio,
      v.worst.empty() ? "no sample" : v.worst, 100 * v.max_stored_ratio);
}

}  // namespace

std::string summary_text(const ReplayResult& result, const ReplaySummary& s, const MachineCeilings& ceilings) {
  std::string text = fmt::format("{}\n{}\n", describe_run(result), describe_model(result));
  const bool full = result.options.full_step;
  text += full ? "full steps but for the GEMMs: plan, and in each layer append, attention, norms, RoPE and activation; sampling\n\n"
               : "attention only: append, plan and run, without weights, sampling or the making of data\n\n";
  text += fmt::format("  throughput      prefill {:>9.0f} tokens/s   decode {:>7.0f} tokens/s   over {} of {}\n", s.prefill_rate,
                      s.decode_rate, show_seconds(s.step_seconds_sum), full ? "steps" : "attention");
  text +=
      fmt::format("  tokens          prefill {:>9}            decode {:>7}\n", show_count(s.prefill_tokens), show_count(s.decode_tokens));
  text += fmt::format("  step            {}\n", percentile_line(s.step_seconds));
  text += fmt::format("  decode step     {}\n", percentile_line(s.decode_step_seconds));
  text += fmt::format("  between tokens  {}\n", percentile_line(s.token_gap_seconds));
  text += fmt::format("  plan            {}\n", percentile_line(s.plan_seconds_per_step));
  const auto share = [&](double seconds) { return percent(seconds, s.step_seconds_sum); };
  text += fmt::format("  share of time   run {:.1f} %, append {:.1f} %, plan {:.1f} %\n", share(s.run_seconds), share(s.append_seconds),
                      share(s.plan_seconds));
  if (full) {
    text += fmt::format("                  norms {:.1f} %, RoPE {:.1f} %, activation {:.1f} %, sampling {:.1f} %\n", share(s.beside.norm),
                        share(s.beside.rope), share(s.beside.activation), share(s.beside.sampling));
  }
  if (s.kernel_seconds > 0) {
    text += fmt::format(
        "  on the GPU      kernels of append and run take {:.1f} % of the time of append, plan and run; the host queues them in {:.1f} %\n",
        percent(s.kernel_seconds, s.attention_seconds), percent(s.queue_seconds, s.attention_seconds));
  }
  text += fmt::format("  bandwidth       {:.2f} GB/s of {:.2f} measured reading memory\n", s.bytes_per_second / 1e9,
                      ceilings.read_bytes_per_second / 1e9);
  text += fmt::format("  arithmetic      {:.1f} GFLOP/s of {:.1f} measured\n", s.flops_per_second / 1e9, s.peak_flops / 1e9);
  text += fmt::format("  roofline        {:.0f} % (each step's bound by memory or arithmetic, over the time of run)\n",
                      100 * s.roofline_fraction);
  for (int c = 0; c < attention::kNumClasses; ++c) {
    if (const std::string line = balance_text(result, s, c); !line.empty()) text += fmt::format("  balance         {}\n", line);
  }
  text += sharing_text(result, s);
  text += verify_text(result.verify);
  return text;
}

namespace {

nlohmann::ordered_json percentiles_json(const Percentiles& p) { return {{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"max", p.max}}; }

/// Of a step: by list, where it has work.
nlohmann::ordered_json balance_json(const StepRecord& step, const ReplayResult& result) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (int c = 0; c < attention::kNumClasses; ++c) {
    const ListBalance& list = step.balance[static_cast<std::size_t>(c)];
    if (!list.empty) json[std::string(list_name(result.list_units, c))] = list.largest;
  }
  return json;
}

nlohmann::ordered_json balance_json(const ReplaySummary& s, const ReplayResult& result) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (std::size_t c = 0; c < s.mean_balance.size(); ++c) {
    if (result.list_units[c] == 0) continue;
    json[std::string(list_name(result.list_units, static_cast<int>(c)))] = {
        {"units", result.list_units[c]}, {"mean", s.mean_balance[c]}, {"worst", s.worst_balance[c]}};
  }
  return json;
}

nlohmann::ordered_json beside_json(const LayerSeconds& beside) {
  return {{"norm_seconds", beside.norm},
          {"rope_seconds", beside.rope},
          {"activation_seconds", beside.activation},
          {"sampling_seconds", beside.sampling}};
}

nlohmann::ordered_json steps_json(const ReplayResult& result) {
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (const StepRecord& step : result.steps) {
    steps.push_back({{"append_seconds", step.append_seconds},
                     {"plan_seconds", step.plan_seconds},
                     {"run_seconds", step.run_seconds},
                     {"kernel_seconds", step.kernel_seconds},
                     {"queue_seconds", step.queue_seconds},
                     {"prefill_requests", step.prefill_requests},
                     {"decode_requests", step.decode_requests},
                     {"prefill_tokens", step.prefill_tokens},
                     {"decode_tokens", step.decode_tokens},
                     {"segments", step.segments},
                     {"flat_keys", step.flat_keys},
                     {"read_keys", step.read_keys},
                     {"pool_pages", step.pool_pages},
                     {"bytes", step.bytes},
                     {"flops", step.flops},
                     {"balance", balance_json(step, result)}});
    if (result.options.full_step) steps.back()["beside"] = beside_json(step.beside);
  }
  return steps;
}

}  // namespace

nlohmann::ordered_json summary_json(const ReplayResult& result, const ReplaySummary& s, const MachineCeilings& ceilings,
                                    const MachineFacts& machine) {
  nlohmann::ordered_json json;
  json["machine"] = {{"cpu", machine.cpu},
                     {"cpus", machine.cpus},
                     {"target", machine.target},
                     {"workers", machine.workers},
                     {"date", machine.date},
                     {"read_bytes_per_second", ceilings.read_bytes_per_second},
                     {"f32_flops", ceilings.f32_flops},
                     {"bf16_flops", ceilings.bf16_flops}};
  json["rows"] = nlohmann::ordered_json::array();
  json["rows"].push_back({{"op", "replay"},
                          {"case", result.settings},
                          {"backend", result.backend},
                          {"seconds", s.attention_seconds},
                          {"bytes", s.bytes_per_second * s.run_seconds},
                          {"flops", s.flops_per_second * s.run_seconds},
                          {"roofline_fraction", s.roofline_fraction},
                          {"plan_seconds", s.plan_seconds},
                          {"host_seconds", s.plan_seconds},
                          {"peers", nlohmann::ordered_json::array()}});
  if (result.options.full_step) json["rows"].back()["beside"] = beside_json(s.beside);
  const VerifyResult& v = result.verify;
  json["replay"] = {{"source", result.source},
                    {"format", result.format},
                    {"model", result.options.model.name},
                    {"kv_dtype", name(result.options.kv_dtype)},
                    {"num_layers", result.options.num_layers},
                    {"page_size", result.options.page_size},
                    {"num_pages", result.num_pages},
                    {"token_budget", result.options.token_budget},
                    {"max_batch", result.options.max_batch},
                    {"sharing", result.options.sharing},
                    {"batch_invariant", result.options.batch_invariant},
                    {"full_step", result.options.full_step},
                    {"seed", result.options.seed},
                    {"schedule", result.schedule_key},
                    {"num_units", result.num_units},
                    {"requests", std::ssize(result.requests)},
                    {"finished_requests", result.finished_requests},
                    {"interrupted", result.interrupted},
                    {"wall_seconds", result.wall_seconds},
                    {"prefill_tokens", s.prefill_tokens},
                    {"decode_tokens", s.decode_tokens},
                    {"prefill_tokens_per_second", s.prefill_rate},
                    {"decode_tokens_per_second", s.decode_rate},
                    {"prompt_tokens", result.prompt_tokens},
                    {"shared_tokens", result.shared_tokens},
                    {"flat_keys", s.flat_keys},
                    {"read_keys", s.read_keys},
                    {"peak_pool_pages", result.peak_pool_pages},
                    {"peak_logical_kv_tokens", result.peak_logical_kv_tokens},
                    {"bytes_per_second", s.bytes_per_second},
                    {"flops_per_second", s.flops_per_second},
                    {"balance", balance_json(s, result)},
                    {"step_seconds", percentiles_json(s.step_seconds)},
                    {"decode_step_seconds", percentiles_json(s.decode_step_seconds)},
                    {"token_gap_seconds", percentiles_json(s.token_gap_seconds)},
                    {"plan_seconds", percentiles_json(s.plan_seconds_per_step)}};
  json["verify"] = {{"requested", v.requested},
                    {"checked", v.checked},
                    {"failed", v.failed},
                    {"max_error", v.max_error},
                    {"max_lse_error", v.max_lse_error},
                    {"max_ratio", v.max_ratio},
                    {"max_stored_ratio", v.max_stored_ratio},
                    {"worst", v.worst}};
  json["steps"] = steps_json(result);
  return json;
}

}  // namespace girih::tools
