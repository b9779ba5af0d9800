// See plan_report.h.
#include "tools/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "attention/cuda_state.h"
#include "tools/output.h"

namespace girih::tools {
namespace {

constexpr int kWidth = 1200;
constexpr int kLabel = 60;  // pixels left of the bars
constexpr int kTop = 30;
constexpr int kRow = 22;
constexpr int kBar = 18;

/// Hues a golden angle apart: neighbours differ, and any number of requests has a colour.
std::string colour_of(int colour) { return fmt::format("hsl({},62%,{}%)", colour * 137 % 360, 48 + colour % 3 * 8); }

}  // namespace

double balance(const PlanInfo& info, int num_units) {
  const double mean = static_cast<double>(info.total_cost) / std::max(num_units, 1);
  const double bound = std::max(mean, static_cast<double>(info.max_piece_cost));
  return bound > 0 ? static_cast<double>(info.max_unit_cost) / bound : 1.0;
}

std::array<ListBalance, attention::kNumClasses> list_balances(const attention::ScheduleState& schedule, const attention::PlanView& plan) {
  std::array<ListBalance, attention::kNumClasses> lists;
  for (int c = 0; c < attention::kNumClasses; ++c) {
    ListBalance& list = lists[static_cast<std::size_t>(c)];
    const std::int32_t begin = plan.header->class_unit_begin[c];
    const std::int32_t end = plan.header->class_unit_begin[c + 1];
    if (begin == end) continue;
    list.num_units = schedule.cuda != nullptr ? attention::class_blocks(schedule, c) : end - begin;
    std::int64_t total = 0;
    std::vector<std::int64_t> shares;
    for (std::int32_t unit = begin; unit < end; ++unit) {
      std::int64_t cost = 0;
      for (std::int32_t i = plan.unit_begin[static_cast<std::size_t>(unit)]; i < plan.unit_begin[static_cast<std::size_t>(unit) + 1]; ++i)
        cost += plan.items[static_cast<std::size_t>(i)].cost;
      total += cost;
      if (unit < begin + list.num_units) {
        shares.push_back(cost);
      } else {
        *std::min_element(shares.begin(), shares.end()) += cost;
      }
    }
    list.empty = total == 0;
    const std::int64_t largest = *std::max_element(shares.begin(), shares.end());
    if (total > 0) list.largest = static_cast<double>(largest) * list.num_units / static_cast<double>(total);
  }
  return lists;
}

std::string_view list_name(const std::array<int, attention::kNumClasses>& num_units, int list) {
  if (num_units[1] == 0) return "all";
  return list == 0 ? "small" : "large";
}

std::int64_t request_of_row(const attention::PlanView& plan, std::int64_t row, int group) {
  const std::int64_t token = row / group;
  const auto after = std::upper_bound(plan.requests.begin(), plan.requests.end(), token,
                                      [](std::int64_t t, const abi::RequestInfo& r) { return t < r.q_begin + r.q_len; });
  if (after == plan.requests.end() || token < after->q_begin) return -1;
  return after - plan.requests.begin();
}

std::string item_header() {
  return fmt::format("{:>5} {:>7} {:>5} {:>4} {:>16} {:>20} {:>20} {:>6} {:>6} {:>9}\n", "unit", "request", "seg", "head", "rows", "keys",
                     "unmasked keys", "class", "part", "cost");
}

std::string item_line(const attention::PlanView& plan, std::int64_t item, int unit, int group) {
  const abi::WorkItem& w = plan.items[static_cast<std::size_t>(item)];
  const auto range = [](std::int64_t begin, std::int64_t end) { return fmt::format("{}..{}", begin, end); };
  return fmt::format("{:>5} {:>7} {:>5} {:>4} {:>16} {:>20} {:>20} {:>6} {:>6} {:>9}\n", unit, request_of_row(plan, w.row_begin, group),
                     w.segment, w.kv_head, range(w.row_begin, std::int64_t{w.row_begin} + w.row_count), range(w.kv_begin, w.kv_end),
                     w.full_begin < w.full_end ? range(w.full_begin, w.full_end) : "-", w.tile_class == 0 ? "small" : "large",
                     w.part_row < 0 ? "-" : std::to_string(w.part_row), w.cost);
}

std::vector<WorkBar> plan_bars(const attention::PlanView& plan, int group) {
  std::vector<WorkBar> bars;
  for (std::size_t u = 0; u + 1 < plan.unit_begin.size(); ++u) {
    std::int64_t at = 0;
    for (std::int32_t i = plan.unit_begin[u]; i < plan.unit_begin[u + 1]; ++i) {
      const abi::WorkItem& w = plan.items[static_cast<std::size_t>(i)];
      if (w.row_count == 0) continue;
      const std::int64_t request = request_of_row(plan, w.row_begin, group);
      bars.push_back({.unit = static_cast<int>(u),
                      .begin = at,
                      .cost = w.cost,
                      .colour = static_cast<int>(std::max<std::int64_t>(request, 0)),
                      .title = fmt::format("request {}, KV head {}, segment {}: rows {}..{}, keys {}..{}, cost {}", request, w.kv_head,
                                           w.segment, w.row_begin, w.row_begin + w.row_count, w.kv_begin, w.kv_end, w.cost)});
      at += w.cost;
    }
  }
  return bars;
}

std::string work_svg(const std::vector<WorkBar>& bars, int num_units, const std::string& caption) {
  std::int64_t longest = 1;
  std::int64_t total = 0;
  for (const WorkBar& bar : bars) {
    longest = std::max(longest, bar.begin + bar.cost);
    total += bar.cost;
  }
  const double scale = static_cast<double>(kWidth - kLabel - 10) / static_cast<double>(longest);
  const int height = kTop + num_units * kRow + 10;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n<text x=\"{2}\" y=\"18\" fill=\"#222\">{3}</text>\n",
      kWidth, height, kLabel, escape_markup(caption));
  for (int u = 0; u < num_units; ++u) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#555\">{}</text>\n", kLabel - 8, kTop + u * kRow + 13, u);
  }
  for (std::size_t i = 0; i < bars.size();) {
    // A bar too narrow to see takes its right neighbours of the same colour along.
    std::size_t last = i;
    std::int64_t end = bars[i].begin + bars[i].cost;
    while (static_cast<double>(end - bars[i].begin) * scale < 0.25 && last + 1 < bars.size() && bars[last + 1].unit == bars[i].unit &&
           bars[last + 1].colour == bars[i].colour) {
      ++last;
      end = bars[last].begin + bars[last].cost;
    }
    const std::string joined = last > i ? fmt::format(" (and {} more)", last - i) : "";
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\" "
        "stroke-width=\"0.3\"><title>{}</title></rect>\n",
        kLabel + static_cast<double>(bars[i].begin) * scale, kTop + bars[i].unit * kRow,
        std::max(static_cast<double>(end - bars[i].begin) * scale, 0.1), kBar, colour_of(bars[i].colour),
        escape_markup(bars[i].title + joined));
    i = last + 1;
  }
  const double mean = kLabel + static_cast<double>(total) / std::max(num_units, 1) * scale;
  svg += fmt::format(
      "<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#222\" stroke-dasharray=\"4 "
      "3\"><title>mean</title></line>\n</svg>\n",
      mean, kTop - 4, height - 8);
  return svg;
}

}  // namespace girih::tools
