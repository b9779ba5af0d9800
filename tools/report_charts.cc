// SVG charts (report_charts.h).
#include "tools/report_charts.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tools/output.h"

namespace girih::tools {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 240;
constexpr double kLeft = 58, kRight = 14, kTop = 26, kBottom = 42;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
constexpr std::size_t kMaxColumns = 240;  // steps are joined into at most so many columns
constexpr std::size_t kBins = 40;

/// "250", "1.5k", "20 ms".
std::string axis_number(double value, AxisUnit unit) {
  const auto trimmed = [](double v) { return fmt::format("{:.6g}", v); };
  if (unit == AxisUnit::seconds) {
    if (value == 0) return "0";
    if (value >= 0.9999) return trimmed(value) + " s";
    if (value >= 0.9999e-3) return trimmed(value * 1e3) + " ms";
    return trimmed(value * 1e6) + " µs";
  }
  if (value >= 1e6) return trimmed(value / 1e6) + "M";
  if (value >= 1e4) return trimmed(value / 1e3) + "k";
  return trimmed(value);
}

/// A step of 1, 2 or 5 times a power of ten that gives at most `count` intervals.
double tick_step(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10 * power;
}

std::string open_svg(double height, const std::string& label) {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth, height, escape_markup(label));
}

std::string text(double x, double y, const char* anchor, const std::string& content, const char* css = "tick") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y, anchor, css,
                     escape_markup(content));
}

/// The y axis from 0, with grid lines. Returns the value at the top.
double y_axis(std::string& svg, double largest, AxisUnit unit, const std::string& label) {
  const double step = std::max(tick_step(std::max(largest, 1e-12), 4), unit == AxisUnit::count && largest >= 1 ? 1.0 : 0.0);
  const double top = step * std::max(1.0, std::ceil(largest / step * 0.9999));
  for (int i = 0; step * i <= top * 1.0001; ++i) {
    const double y = kTop + kPlotHeight * (1 - step * i / top);
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", kLeft, kWidth - kRight, y, y,
                       i == 0 ? "axis" : "grid");
    svg += text(kLeft - 6, y + 3.5, "end", axis_number(step * i, unit));
  }
  svg += text(0, 11, "start", label, "label");
  return top;
}

void x_label(std::string& svg, const std::string& label) { svg += text(kLeft + kPlotWidth, kHeight - 6, "end", label, "label"); }

/// Maps values of a histogram's x axis to [0, 1].
struct XScale {
  double low = 0, high = 1;
  bool log = false;
  double operator()(double value) const { return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low); }
};

XScale x_scale(const Histogram& h) {
  const auto [low, high] = std::minmax_element(h.values.begin(), h.values.end());
  if (!h.log_x) {
    const double step = tick_step(std::max(*high, 1.0), 6);
    return {.low = 0, .high = step * std::ceil(std::max(*high, 1.0) / step * 1.0001), .log = false};
  }
  const double floor = std::max(*low, 1e-9) * 0.9;
  return {.low = floor, .high = std::max(*high * 1.1, floor * 10), .log = true};
}

void x_ticks(std::string& svg, const XScale& scale, AxisUnit unit) {
  std::vector<double> ticks;
  if (scale.log) {
    const bool few_decades = scale.high / scale.low < 1000;
    const int last = static_cast<int>(std::floor(std::log10(scale.high)));
    for (int exponent = static_cast<int>(std::floor(std::log10(scale.low))); exponent <= last; ++exponent) {
      const double decade = std::pow(10, exponent);
      for (double factor : {1.0, 2.0, 5.0}) {
        if (factor == 1.0 || few_decades) ticks.push_back(decade * factor);
      }
    }
  } else {
    const double step = tick_step(scale.high - scale.low, 6);
    for (int i = 0; scale.low + step * i <= scale.high * 1.0001; ++i) ticks.push_back(scale.low + step * i);
  }
  for (double tick : ticks) {
    const double at = scale(tick);
    if (at < -1e-9 || at > 1 + 1e-9) continue;
    const double x = kLeft + kPlotWidth * at;
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" class=\"axis\"/>\n", x, kTop + kPlotHeight,
                       kTop + kPlotHeight + 4);
    svg += text(x, kTop + kPlotHeight + 16, "middle", axis_number(tick, unit));
  }
}

/// Steps joined into columns: the mean, lowest and highest of each.
struct Column {
  double mean = 0, low = 0, high = 0;
};
std::vector<Column> join_steps(const std::vector<double>& values) {
  const std::size_t count = std::min(values.size(), kMaxColumns);
  std::vector<Column> columns(count);
  for (std::size_t c = 0; c < count; ++c) {
    const std::size_t begin = values.size() * c / count;
    const std::size_t end = values.size() * (c + 1) / count;
    Column& column = columns[c];
    column.low = column.high = values[begin];
    for (std::size_t i = begin; i < end; ++i) {
      column.mean += values[i] / static_cast<double>(end - begin);
      column.low = std::min(column.low, values[i]);
      column.high = std::max(column.high, values[i]);
    }
  }
  return columns;
}

double column_x(std::size_t i, std::size_t count) {
  return kLeft + kPlotWidth * (static_cast<double>(i) + 0.5) / static_cast<double>(std::max<std::size_t>(count, 1));
}

/// A closed area between two curves over the columns, as steps.
std::string area(const std::vector<double>& low, const std::vector<double>& high, double top, const std::string& colour, double opacity) {
  const std::size_t count = low.size();
  const double half = kPlotWidth / static_cast<double>(count) / 2;
  const auto y = [&](double value) { return kTop + kPlotHeight * (1 - value / top); };
  std::string path;
  for (std::size_t i = 0; i < count; ++i) {
    const double x = column_x(i, count);
    path += fmt::format("{}{:.1f},{:.1f} L{:.1f},{:.1f} ", i == 0 ? "M" : "L", x - half, y(high[i]), x + half, y(high[i]));
  }
  for (std::size_t i = count; i-- > 0;) {
    const double x = column_x(i, count);
    path += fmt::format("L{:.1f},{:.1f} L{:.1f},{:.1f} ", x + half, y(low[i]), x - half, y(low[i]));
  }
  return fmt::format("<path d=\"{}Z\" fill=\"{}\" fill-opacity=\"{}\"/>\n", path, colour, opacity);
}

std::string legend(const std::vector<Series>& series) {
  std::string svg;
  double x = kLeft;
  for (const Series& s : series) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" rx=\"2\" fill=\"{}\"/>\n", x, kHeight - 14.5, s.colour);
    svg += text(x + 14, kHeight - 6, "start", s.name, "label");
    x += 28 + 6.1 * static_cast<double>(s.name.size());
  }
  return svg;
}

void step_ticks(std::string& svg, std::size_t num_steps) {
  const double step = std::max(1.0, tick_step(static_cast<double>(std::max<std::size_t>(num_steps, 1)), 8));
  for (int i = 0; step * i < static_cast<double>(num_steps); ++i) {
    const double tick = step * i;
    const double x = kLeft + kPlotWidth * (tick + 0.5) / static_cast<double>(num_steps);
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" class=\"axis\"/>\n", x, kTop + kPlotHeight,
                       kTop + kPlotHeight + 4);
    svg += text(x, kTop + kPlotHeight + 16, "middle", axis_number(tick, AxisUnit::count));
  }
}

std::string empty_chart() { return open_svg(60, "no data") + text(kWidth / 2, 34, "middle", "no data", "label") + "</svg>\n"; }

}  // namespace

std::string draw_histogram(const Histogram& h) {
  if (h.values.empty()) return empty_chart();
  const XScale scale = x_scale(h);
  std::vector<double> bins(kBins, 0);
  for (double value : h.values) {
    const double at = scale(h.log_x ? std::max(value, scale.low) : value);
    ++bins[std::min(kBins - 1, static_cast<std::size_t>(std::max(0.0, at) * kBins))];
  }
  std::string svg = open_svg(kHeight, h.x_label);
  const double top = y_axis(svg, *std::max_element(bins.begin(), bins.end()), AxisUnit::count, h.y_label);
  const double width = kPlotWidth / kBins;
  for (std::size_t i = 0; i < kBins; ++i) {
    const double height = kPlotHeight * bins[i] / top;
    if (height <= 0) continue;
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{:.0f}</title></rect>\n",
                       kLeft + width * static_cast<double>(i) + 0.5, kTop + kPlotHeight - height, width - 1, height, h.colour, bins[i]);
  }
  x_ticks(svg, scale, h.unit);
  double last_label = -1e9;
  double label_y = kTop + 9;
  for (const auto& [name, value] : h.marks) {
    const double x = kLeft + kPlotWidth * std::clamp(scale(h.log_x ? std::max(value, scale.low) : value), 0.0, 1.0);
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" class=\"mark\"/>\n", x, kTop, kTop + kPlotHeight);
    // Labels that would touch the one before go one line down.
    label_y = x - last_label < 30 ? label_y + 12 : kTop + 9;
    const bool at_edge = x > kWidth - kRight - 30;
    svg += text(at_edge ? x - 3 : x + 3, label_y, at_edge ? "end" : "start", name, "label strong");
    last_label = x;
  }
  x_label(svg, h.x_label);
  return svg + "</svg>\n";
}

std::string draw_series(const SeriesChart& chart) {
  if (chart.series.empty() || chart.series.front().values.empty()) return empty_chart();
  std::vector<std::vector<Column>> joined;
  for (const Series& series : chart.series) joined.push_back(join_steps(series.values));
  const std::size_t count = joined.front().size();
  double largest = 0;
  for (std::size_t c = 0; c < count; ++c) {
    double sum = 0;
    for (const auto& columns : joined) {
      sum += columns[c].mean;
      if (!chart.stacked) largest = std::max(largest, columns[c].high);
    }
    if (chart.stacked) largest = std::max(largest, sum);
  }
  std::string svg = open_svg(kHeight, chart.y_label);
  const double top = y_axis(svg, largest, chart.unit, chart.y_label);
  const std::size_t num_steps = chart.series.front().values.size();
  step_ticks(svg, num_steps);
  std::vector<double> base(count, 0);
  for (std::size_t s = 0; s < joined.size(); ++s) {
    std::vector<double> low(count), high(count);
    for (std::size_t c = 0; c < count; ++c) {
      low[c] = chart.stacked ? base[c] : joined[s][c].low;
      high[c] = chart.stacked ? base[c] + joined[s][c].mean : joined[s][c].high;
    }
    svg += area(low, high, top, chart.series[s].colour, chart.stacked ? 0.9 : 0.25);
    if (chart.stacked) {
      base = high;
      continue;
    }
    std::string points;
    for (std::size_t c = 0; c < count; ++c) {
      points += fmt::format("{:.1f},{:.1f} ", column_x(c, count), kTop + kPlotHeight * (1 - joined[s][c].mean / top));
    }
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.4\"/>\n", points, chart.series[s].colour);
  }
  if (chart.marked_step >= 0) {
    const double x = kLeft + kPlotWidth * (static_cast<double>(chart.marked_step) + 0.5) / static_cast<double>(num_steps);
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" class=\"mark\"/>\n", x, kTop, kTop + kPlotHeight);
    const bool at_edge = x > kWidth - kRight - 80;
    svg += text(at_edge ? x - 3 : x + 3, kTop + 9, at_edge ? "end" : "start", fmt::format("step {}", chart.marked_step), "label strong");
  }
  svg += legend(chart.series);
  x_label(svg, "step");
  return svg + "</svg>\n";
}

std::string draw_work(const WorkPicture& picture) {
  std::int64_t longest = 0;
  double total = 0;
  for (const auto& unit : picture.units) {
    std::int64_t sum = 0;
    for (const WorkPicture::Piece& piece : unit) sum += piece.cost;
    longest = std::max(longest, sum);
    total += static_cast<double>(sum);
  }
  if (longest == 0) return empty_chart();
  constexpr double kFull = 1160, kRowLeft = 64;
  const double row = std::clamp(200.0 / static_cast<double>(picture.units.size()), 6.0, 34.0);
  const double height = row * static_cast<double>(picture.units.size()) + 40;
  const double scale = (kFull - kRowLeft - 60) / static_cast<double>(longest);
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"work per unit\">\n", kFull, height);
  for (std::size_t u = 0; u < picture.units.size(); ++u) {
    const double y = 18 + row * static_cast<double>(u);
    double x = kRowLeft;
    std::int64_t sum = 0;
    if (row >= 11 || u % 4 == 0) svg += text(kRowLeft - 6, y + row / 2 + 3, "end", fmt::format("unit {}", u));
    for (std::size_t i = 0; i < picture.units[u].size();) {
      // Pieces of one look are joined until the box is wide enough to be seen.
      const WorkPicture::Piece& first = picture.units[u][i];
      std::int64_t cost = 0;
      std::size_t joined = 0;
      while (i < picture.units[u].size() && (joined == 0 || static_cast<double>(cost) * scale < 1.5)) {
        const WorkPicture::Piece& piece = picture.units[u][i];
        if (piece.segment != first.segment || piece.tile_class != first.tile_class) break;
        cost += piece.cost;
        ++joined;
        ++i;
      }
      const double width = static_cast<double>(cost) * scale;
      const std::string colour = first.tile_class == 0 ? "var(--c1)" : "var(--c2)";
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\" fill-opacity=\"{:.2f}\" "
          "class=\"piece\"><title>{} "
          "item{}, segment {}, {} tiles, cost {}</title></rect>\n",
          x, y, std::max(width, 0.2), row - std::min(4.0, row * 0.2), colour, std::max(0.35, 0.95 - 0.2 * first.segment), joined,
          joined == 1 ? "" : "s", first.segment, first.tile_class == 0 ? "decode" : "prefill", cost);
      x += width;
      sum += cost;
    }
    if (row >= 11)
      svg += text(kFull - 4, y + row / 2 + 3, "end",
                  fmt::format("{:.3f}", static_cast<double>(sum) * static_cast<double>(picture.units.size()) / total));
  }
  const double mean = kRowLeft + total / static_cast<double>(picture.units.size()) * scale;
  svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"8\" y2=\"{1:.1f}\" class=\"mark\"/>\n", mean, height - 18);
  svg += text(mean - 4, 13, "end", "mean", "label strong");
  svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"10\" height=\"10\" rx=\"2\" fill=\"var(--c1)\"/>\n", kRowLeft, height - 13);
  svg += text(kRowLeft + 14, height - 4, "start", "decode tiles", "label");
  svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"10\" height=\"10\" rx=\"2\" fill=\"var(--c2)\"/>\n", kRowLeft + 100, height - 13);
  svg += text(kRowLeft + 114, height - 4, "start", "prefill tiles", "label");
  svg += text(kFull - 4, height - 4, "end", "planner's cost units; numbers are a unit's cost over the mean; lighter = lower cascade level",
              "label");
  return svg + "</svg>\n";
}

std::string draw_gauge(double achieved, double ceiling, const std::string& label) {
  const double part = ceiling > 0 ? std::clamp(achieved / ceiling, 0.0, 1.0) : 0;
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} 34\" role=\"img\" aria-label=\"{}\">\n", kWidth, escape_markup(label));
  svg += text(0, 11, "start", label, "label");
  svg += text(kWidth, 11, "end", fmt::format("{:.0f} %", 100 * (ceiling > 0 ? achieved / ceiling : 0)), "label strong");
  svg += fmt::format("<rect x=\"0\" y=\"18\" width=\"{}\" height=\"10\" rx=\"3\" class=\"track\"/>\n", kWidth);
  svg += fmt::format("<rect x=\"0\" y=\"18\" width=\"{:.1f}\" height=\"10\" rx=\"3\" fill=\"var(--c1)\"/>\n", std::max(2.0, kWidth * part));
  return svg + "</svg>\n";
}

}  // namespace girih::tools
