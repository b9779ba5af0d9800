// See bench_report.h.
#include "tools/bench_report.h"

#include <fmt/format.h>

#include "girih/version.h"
#include "girih_commit.h"
#include "tools/output.h"

namespace girih::tools {

using Json = nlohmann::ordered_json;

Json bench_json(const BenchResult& result) {
  const MachineFacts& m = result.machine;
  Json out;
  out["machine"] = {{"cpu", m.cpu}, {"cpus", m.cpus}, {"workers", m.workers}, {"target", m.target}, {"last_cache_bytes", m.cache_bytes}};
  if (!m.governor.empty()) out["machine"]["governor"] = m.governor;
  if (m.clock_mhz > 0) out["machine"]["clock_mhz"] = m.clock_mhz;
  out["machine"]["date"] = m.date;
  if (result.ceilings.read_bytes_per_second > 0) {
    out["machine"]["read_bytes_per_second"] = result.ceilings.read_bytes_per_second;
    out["machine"]["f32_flops"] = result.ceilings.f32_flops;
    out["machine"]["bf16_flops"] = result.ceilings.bf16_flops;
  }
  out["version"] = kVersion;
  out["commit"] = GIRIH_COMMIT;
  out["rows"] = Json::array();
  for (const BenchRow& r : result.rows) {
    Json row = {{"op", r.op},
                {"case", r.name},
                {"backend", r.backend},
                {"seconds", r.seconds},
                {"bytes", r.bytes},
                {"flops", r.flops},
                {"roofline_fraction", r.roofline_fraction},
                {"plan_seconds", r.plan_seconds},
                {"host_seconds", r.host_seconds}};
    for (const auto& [key, value] : r.extra.items()) row[key] = value;
    row["peers"] = Json::array();
    out["rows"].push_back(row);
  }
  return out;
}

std::string bench_html(const BenchResult& result) {
  const MachineFacts& m = result.machine;
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>girih bench</title>\n<style>body{{font:14px "
      "sans-serif;margin:2em;color:#222}}"
      "table{{border-collapse:collapse}}th,td{{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}}"
      "th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){{text-align:left}}</style></head><body>\n<h1>girih bench</h1>\n"
      "<p>{}, {} workers, target {}, {}, commit {}</p>\n",
      escape_markup(m.cpu), m.workers, escape_markup(m.target), escape_markup(m.date), escape_markup(GIRIH_COMMIT));
  const MachineCeilings& c = result.ceilings;
  if (c.read_bytes_per_second > 0) {
    page +=
        fmt::format("<p>Ceilings: reading memory {:.1f} GB/s, f32 {:.0f} GFLOP/s, bf16 dot {:.0f} GFLOP/s (0 = the CPU has none).</p>\n",
                    c.read_bytes_per_second / 1e9, c.f32_flops / 1e9, c.bf16_flops / 1e9);
  }
  page +=
      "<table>\n<tr><th>op</th><th>case</th><th>ms</th><th>GB/s</th><th>GFLOP/s</th><th>of roofline</th><th>plan us</th><th>host "
      "us</th><th>more</th></tr>\n";
  for (const BenchRow& r : result.rows) {
    std::string more;
    for (const auto& [key, value] : r.extra.items()) {
      if (!value.is_primitive()) continue;  // comparisons, below
      more +=
          (more.empty() ? "" : ", ") + key + " " + (value.is_number_float() ? fmt::format("{:.4g}", value.get<double>()) : value.dump());
    }
    for (const auto& twin : r.extra.value("twins", Json::array()))
      more += fmt::format(", {:.3f}x {}", twin["ratio"].get<double>(), twin["case"].get<std::string>());
    if (r.extra.contains("one_worker")) more += fmt::format(", {:.3f}x one worker", r.extra["one_worker"]["ratio"].get<double>());
    const auto rate = [&r](double amount) { return r.seconds > 0 ? fmt::format("{:.1f}", amount / r.seconds / 1e9) : std::string("-"); };
    page += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{:.4f}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1f}</td><td>{:.1f}</td><td>{}</td></tr>\n",
        escape_markup(r.op), escape_markup(r.name), r.seconds * 1e3, rate(r.bytes), rate(r.flops),
        r.roofline_fraction > 0 ? fmt::format("{:.0f} %", 100 * r.roofline_fraction) : "-", r.plan_seconds * 1e6, r.host_seconds * 1e6,
        escape_markup(more));
  }
  page += "</table>\n</body></html>\n";
  return page;
}

}  // namespace girih::tools
