// Facts for pictures (girih/_show_mask.py and _show_plan.py draw them): what the planner proves of a mask, tile by tile, which keys the
// CPU's evaluator sees, the items of a plan; and the CUDA text of kernels, as `girih source` prints it.
#include "cpu/targets.h"
#include "hwy/highway.h"
#include "variant/evaluate-inl.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attention/cuda.h"
#include "attention/plan.h"
#include "base/error.h"
#include "bind.h"
#include "expr.h"
#include "girih/attention.h"
#include "jit/compiler.h"
#include "plan.h"
#include "variant/interval.h"

namespace girih::python {
namespace {

constexpr std::string_view kShow = "show";

/// One request of which rows [first, first + count) are asked about; positions are bottom-right aligned, as plan() has them by default.
struct View {
  std::int64_t q_len, kv_len, q_head, kv_head;

  variant::Box box(std::int64_t first, std::int64_t count) const {
    variant::Box box;
    const std::int64_t last = first + count - 1;
    box.q_idx = box.q_row = {first, last};
    box.q_pos = {kv_len - q_len + first, kv_len - q_len + last};
    box.q_len = {q_len, q_len};
    box.kv_len = {kv_len, kv_len};
    box.q_head = {q_head, q_head};
    box.kv_head = {kv_head, kv_head};
    return box;
  }
  variant::RowVars row(std::int64_t i) const {
    return {.q_pos = kv_len - q_len + i, .q_idx = i, .q_len = q_len, .kv_len = kv_len, .q_head = q_head, .kv_head = kv_head, .q_row = i};
  }
};

/// The variant's parameters as far as they are given. A plan-time parameter without a value proves as little as a run-time one.
struct Bound {
  variant::Program program;
  variant::ParamTable table{};
  std::vector<std::string> missing;

  Bound(const Variant& v, const ParamValues& given) : program(variant::compile(v)) {
    std::vector<ParamValue> plan;
    std::vector<ParamValue> run;
    variant::Program only_given = program;
    for (std::size_t i = 0; i < program.params.size(); ++i) {
      const variant::ParamInfo& param = program.params[i];
      const auto is_param = [&](const ParamValue& value) { return value.name == param.name; };
      if (std::none_of(given.values().begin(), given.values().end(), is_param)) missing.push_back(param.name);
    }
    for (const ParamValue& value : given.values()) {
      const auto found = std::find_if(program.params.begin(), program.params.end(), [&](const auto& p) { return p.name == value.name; });
      if (found == program.params.end()) {
        std::vector<std::string> names;
        for (const variant::ParamInfo& param : program.params) names.push_back(param.name);
        fail(Code::invalid_argument, kShow, "params['{}'] is not a parameter of the variant; it has: {}", value.name,
             names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
      }
      (found->time == ParamTime::run ? run : plan).push_back(value);
    }
    for (const ParamTime time : {ParamTime::plan, ParamTime::run}) {
      // Those without a value are not asked for: they are of the other time in the copy.
      for (std::size_t i = 0; i < program.params.size(); ++i) {
        only_given.params[i].time = program.params[i].time;
        if (is_missing(program.params[i].name)) only_given.params[i].time = time == ParamTime::plan ? ParamTime::run : ParamTime::plan;
      }
      variant::bind_params(only_given, time, time == ParamTime::plan ? plan : run, kShow, table);
    }
    for (variant::ParamInfo& param : program.params)
      if (is_missing(param.name)) param.time = ParamTime::run;
  }
  bool is_missing(const std::string& name) const { return std::find(missing.begin(), missing.end(), name) != missing.end(); }
};

void check_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) fail(Code::invalid_argument, kShow, "{}={}; must be in [{}, {}]", field, value, low, high);
}

/// 0 never, 1 always, 2 depends: for each tile what plan() makes of it (runs of keys, rounded to blocks).
std::string tile_classes(const Bound& bound, const View& view, std::int64_t tile_rows, std::int64_t tile_keys) {
  variant::MaskProver prover(bound.program);
  prover.bind(bound.table);
  const std::int64_t columns = (view.kv_len + tile_keys - 1) / tile_keys;
  std::string classes;
  std::vector<variant::MaskProver::Run> runs;
  for (std::int64_t first = 0; first < view.q_len; first += tile_rows) {
    runs.clear();
    prover.find_runs(view.box(first, std::min(tile_rows, view.q_len - first)), 0, view.kv_len, tile_keys, runs);
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t begin = c * tile_keys;
      const std::int64_t end = std::min(begin + tile_keys, view.kv_len);
      char tile = 0;
      for (const auto& run : runs) {
        if (run.begin >= end || run.end <= begin) continue;
        tile = run.always && run.begin <= begin && run.end >= end ? 1 : 2;
        if (tile == 2) break;
      }
      classes.push_back(tile);
    }
  }
  return classes;
}

/// 0 hidden, 1 visible, 2 unknown without the missing parameters (or a CUDA text): for each query and key.
std::string cell_values(const Bound& bound, const View& view) {
  const variant::Code& mask = bound.program.mask;
  bool known = true;
  for (const variant::Instruction& instruction : mask.instructions) {
    known = known && instruction.op != variant::Op::cuda_code;
    known = known && (instruction.param < 0 || !bound.is_missing(bound.program.params[static_cast<std::size_t>(instruction.param)].name));
  }
  std::string cells(static_cast<std::size_t>(view.q_len * view.kv_len), 1);
  if (mask.empty()) return cells;
  if (!known) {
    variant::MaskProver prover(bound.program);
    prover.bind(bound.table);
    for (std::int64_t i = 0; i < view.q_len; ++i) {
      for (std::int64_t k = 0; k < view.kv_len; ++k)
        cells[static_cast<std::size_t>(i * view.kv_len + k)] = static_cast<char>(prover.classify(view.box(i, 1), {k, k}));
    }
    return cells;
  }
  const auto lanes = static_cast<int>(std::min<std::int64_t>(view.kv_len, variant::kMaxLanes));
  std::vector<std::byte> memory(static_cast<std::size_t>(variant::evaluate_scratch_bytes(bound.program, lanes)) + 64);
  const std::size_t off = (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  std::vector<std::int64_t> kv_pos(static_cast<std::size_t>(lanes));
  std::vector<std::uint8_t> visible(static_cast<std::size_t>(lanes));
  for (std::int64_t i = 0; i < view.q_len; ++i) {
    for (std::int64_t k = 0; k < view.kv_len; k += lanes) {
      const int n = static_cast<int>(std::min<std::int64_t>(lanes, view.kv_len - k));
      for (int j = 0; j < n; ++j) kv_pos[static_cast<std::size_t>(j)] = k + j;
      variant::HWY_NAMESPACE::evaluate_mask(bound.program, bound.table, view.row(i), kv_pos.data(), n, visible.data(), memory.data() + off);
      for (int j = 0; j < n; ++j)
        cells[static_cast<std::size_t>(i * view.kv_len + k + j)] = static_cast<char>(visible[static_cast<std::size_t>(j)]);
    }
  }
  return cells;
}

nb::tuple mask_picture(const Variant& v, std::int64_t q_len, std::int64_t kv_len, std::int64_t tile_rows, std::int64_t tile_keys,
                       bool with_cells, std::int64_t q_head, std::int64_t kv_head, nb::handle params) {
  constexpr std::int64_t kMaxLength = std::int64_t{1} << 40;
  constexpr std::int64_t kMaxTiles = 1 << 16;
  check_range("q_len", q_len, 1, kMaxLength);
  check_range("kv_len", kv_len, 1, kMaxLength);
  check_range("tile[0]", tile_rows, 1, kMaxLength);
  check_range("tile[1]", tile_keys, 1, kMaxLength);
  check_range("q_head", q_head, 0, 1 << 20);
  check_range("kv_head", kv_head, 0, 1 << 20);
  const std::int64_t rows = (q_len - 1) / tile_rows + 1;
  const std::int64_t columns = (kv_len - 1) / tile_keys + 1;
  if (rows > kMaxTiles || columns > kMaxTiles || rows * columns > kMaxTiles)
    fail(Code::invalid_argument, kShow, "tile=({}, {}) makes {} x {} tiles; at most {} are drawn: give larger ones", tile_rows, tile_keys,
         rows, columns, kMaxTiles);
  const ParamValues values(params, variant::compile(v).params);
  for (const Array& array : values.arrays())
    if (array.view.device.kind != DeviceKind::cpu) fail(Code::invalid_argument, kShow, "params: arrays must be on the CPU");
  const Bound bound(v, values);
  const View view{q_len, kv_len, q_head, kv_head};
  const std::string tiles = tile_classes(bound, view, tile_rows, tile_keys);
  const std::string cells = with_cells ? cell_values(bound, view) : std::string();
  const bool by_head = bound.program.mask.uses(variant::Var::q_head) || bound.program.mask.uses(variant::Var::kv_head);
  std::vector<std::string> missing;
  for (const variant::Instruction& instruction : bound.program.mask.instructions) {
    if (instruction.param < 0) continue;
    const std::string& name = bound.program.params[static_cast<std::size_t>(instruction.param)].name;
    if (bound.is_missing(name) && std::find(missing.begin(), missing.end(), name) == missing.end()) missing.push_back(name);
  }
  return nb::make_tuple(nb::bytes(tiles.data(), tiles.size()), with_cells ? nb::object(nb::bytes(cells.data(), cells.size())) : nb::none(),
                        nb::cast(missing), by_head);
}

/// The request of a packed row.
std::int64_t request_of(const attention::PlanView& plan, std::int64_t token) {
  const auto after = std::upper_bound(plan.requests.begin(), plan.requests.end(), token,
                                      [](std::int64_t t, const abi::RequestInfo& r) { return t < r.q_begin + r.q_len; });
  return after == plan.requests.end() || token < after->q_begin ? -1 : after - plan.requests.begin();
}

nb::list plan_items(const PyPlan& planned) {
  const Use use(planned.in_use, "Plan");
  const Plan& plan = planned.plan;
  const attention::PlanView& view = plan.state().view;
  nb::list items;
  if (view.header == nullptr) return items;
  const AttentionSpec& spec = plan.schedule().spec();
  const std::int64_t group = spec.num_qo_heads / spec.num_kv_heads;
  for (std::size_t unit = 0; unit + 1 < view.unit_begin.size(); ++unit) {
    for (std::int32_t i = view.unit_begin[unit]; i < view.unit_begin[unit + 1]; ++i) {
      const abi::WorkItem& w = view.items[static_cast<std::size_t>(i)];
      if (w.row_count == 0) continue;
      nb::dict item;
      item["unit"] = unit;
      item["request"] = request_of(view, w.row_begin / group);
      item["segment"] = w.segment;
      item["kv_head"] = w.kv_head;
      item["tile_class"] = w.tile_class == 0 ? "small" : "large";
      item["row_begin"] = w.row_begin;
      item["row_count"] = w.row_count;
      item["kv_begin"] = w.kv_begin;
      item["kv_end"] = w.kv_end;
      item["full_begin"] = w.full_begin;
      item["full_end"] = w.full_end;
      item["split"] = w.part_row >= 0;
      item["cost"] = w.cost;
      items.append(item);
    }
  }
  return items;
}

/// (name, first unit, end) of each list of work: on the CPU one for all tiles, on a GPU one a tile class that occurs.
nb::list plan_lists(const PyPlan& planned) {
  const Use use(planned.in_use, "Plan");
  const Plan& plan = planned.plan;
  const attention::PlanView& view = plan.state().view;
  nb::list lists;
  if (view.header == nullptr) return lists;
  const auto& begin = view.header->class_unit_begin;
  const bool apart = begin[2] > begin[1];
  for (int c = 0; c < attention::kNumClasses; ++c)
    if (begin[c + 1] > begin[c]) lists.append(nb::make_tuple(!apart ? "all" : c == 0 ? "small" : "large", begin[c], begin[c + 1]));
  return lists;
}

std::string source(const AttentionSpec& spec, int arch, const std::string& family) {
  std::string text;
  for (const attention::CudaKernel& kernel : attention::cuda_kernels_of(spec, cuda::example_device(arch), family)) {
    const jit::Recipe recipe = jit::make_recipe({kernel.name, kernel.source, cuda::nvrtc_arch(arch)});
    text += fmt::format(
        "// kernel   {} ({})\n// target   {}\n// options  {}\n// bundle   {}\n// recipe   {}\n"
        "// launch   {} threads a block, {} blocks an SM, {} bytes of dynamic shared memory a block\n{}\n",
        kernel.name, kernel.family, recipe.kernel.target, fmt::join(recipe.options, " "), recipe.bundle, recipe.hash(), kernel.num_threads,
        kernel.blocks_per_sm, kernel.shared_bytes, kernel.source);
  }
  return text;
}

}  // namespace

void bind_show(nb::module_& m) {
  m.def("mask_picture", mask_picture, nb::arg("variant"), nb::arg("q_len"), nb::arg("kv_len"), nb::arg("tile_rows"), nb::arg("tile_keys"),
        nb::arg("with_cells"), nb::arg("q_head"), nb::arg("kv_head"), nb::arg("params").none(),
        nb::sig("def mask_picture(variant: Variant, q_len: int, kv_len: int, tile_rows: int, tile_keys: int, with_cells: bool, "
                "q_head: int, kv_head: int, params: collections.abc.Mapping[str, typing.Any] | None) -> "
                "tuple[bytes, bytes | None, list[str], bool]"),
        "Classes of a mask's tiles (0 never, 1 always, 2 depends), row by row; its cells (0 hidden, 1 visible, 2 unknown) if asked for;\n"
        "parameters of the mask that have no value; whether the mask differs by head.");
  m.def("plan_items", plan_items, nb::arg("plan"), nb::sig("def plan_items(plan: Plan) -> list[dict[str, typing.Any]]"),
        "The work items of a plan in the order in which their units do them.");
  m.def("plan_lists", plan_lists, nb::arg("plan"), nb::sig("def plan_lists(plan: Plan) -> list[tuple[str, int, int]]"),
        "(name, first unit, end of units) of each list that a plan balances by itself: \"all\", or \"small\" and \"large\" tiles.");
  m.def("source", source, nb::arg("spec"), nb::arg("arch") = 90, nb::kw_only(), nb::arg("family") = "",
        nb::sig("def source(spec: AttentionSpec, arch: int = 90, *, family: str = '') -> str"),
        "The CUDA text that is compiled for a spec's kernels on GPUs of a compute capability (90 = 9.0), with its compiler options, as\n"
        "`girih source` prints it. No GPU is needed. family: \"floor\", \"mma\"; \"\" = the fastest that takes the spec.\n"
        "Raises ValueError for an unknown arch, NotImplementedError where no kernel (of that family) takes the spec.");
}

}  // namespace girih::python
