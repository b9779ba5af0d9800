// Charts of the replay report as SVG text: histograms, series over steps, and the work of each unit. Every chart has a viewBox of
// kChartWidth x its own height and scales with the page; colours come from the page's CSS variables.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/replay_engine.h"

namespace girih::tools {

/// How an axis writes its numbers.
enum class AxisUnit : std::uint8_t { count, seconds };

struct Histogram {
  std::vector<double> values{};
  AxisUnit unit = AxisUnit::count;
  std::string x_label, y_label;
  bool log_x = false;                                   ///< bins of equal ratio; for values above 0
  std::vector<std::pair<std::string, double>> marks{};  ///< vertical lines
  std::string colour = "var(--c1)";
};
std::string draw_histogram(const Histogram& histogram);

struct Series {
  std::string name;
  std::string colour;
  std::vector<double> values;  ///< one per step
};
struct SeriesChart {
  std::vector<Series> series;
  AxisUnit unit = AxisUnit::count;
  std::string y_label;
  bool stacked = false;  ///< areas on top of each other; otherwise lines, each with the range of the steps it joins
  std::int64_t marked_step = -1;
};
std::string draw_series(const SeriesChart& chart);

/// A bar per unit, a box per work item.
std::string draw_work(const WorkPicture& picture);

/// Achieved of ceiling.
std::string draw_gauge(double achieved, double ceiling, const std::string& label);

}  // namespace girih::tools
