// What a plan looks like to a person: balance, items as text or JSON, and a picture of the work of every unit.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attention/plan.h"

namespace girih::tools {

/// One bar of the picture.
struct WorkBar {
  int unit = 0;
  std::int64_t begin = 0;  ///< planner's cost units from the unit's start
  std::int64_t cost = 0;
  int colour = 0;     ///< bars of one colour belong together (a request)
  std::string title;  ///< shown on hover
};

/// A self-contained SVG: a row per unit, a bar per entry, and the mean as a line. Bars narrower than a quarter pixel are joined to
/// their neighbour of the same colour.
std::string work_svg(const std::vector<WorkBar>& bars, int num_units, const std::string& caption);

/// The bars of a plan; `group` = query heads per KV head.
std::vector<WorkBar> plan_bars(const attention::PlanView& plan, int group);

/// The request of a packed row; -1 where no request has it (a padded item).
std::int64_t request_of_row(const attention::PlanView& plan, std::int64_t row, int group);

/// max unit cost / max(mean, largest piece that cannot be cut): 1 is perfect.
double balance(const PlanInfo& info, int num_units);

/// One of a plan's lists: on the CPU the only one, on a GPU the tiles of one class, which have kernel, blocks and measure of cost of their
/// own.
struct ListBalance {
  int num_units = 0;   ///< workers or blocks that share the work; 0: there is no such list
  bool empty = true;   ///< no work in this plan
  double largest = 1;  ///< largest share over the mean; 1 where it is empty
};
/// Units beyond a list's blocks go to whichever has least so far.
std::array<ListBalance, attention::kNumClasses> list_balances(const attention::ScheduleState& schedule, const attention::PlanView& plan);
/// "all", or "small" and "large" where classes are apart.
std::string_view list_name(const std::array<int, attention::kNumClasses>& num_units, int list);

/// One line per item: unit, request, KV head, rows, keys and so on.
std::string item_line(const attention::PlanView& plan, std::int64_t item, int unit, int group);
std::string item_header();

}  // namespace girih::tools
