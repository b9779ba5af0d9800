// bind_params(): values by name into the numbered table of a program, checked whole before the table is touched. Called at every plan
// and run, so it allocates nothing unless it throws.

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "variant/program.h"

namespace girih::variant {
namespace {

std::string_view call_of(ParamTime time) { return time == ParamTime::plan ? "the batch (plan-time)" : "run() (run-time)"; }

int find_param(const Program& program, std::string_view name) {
  for (std::size_t i = 0; i < program.params.size(); ++i) {
    if (program.params[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::string list_params(const Program& program, ParamTime time) {
  std::string text;
  for (const ParamInfo& param : program.params) {
    if (param.time == time) text += (text.empty() ? "" : ", ") + param.name;
  }
  return text.empty() ? "none" : text;
}

ParamData scalar_data(const ParamInfo& param, const ParamValue& value, std::string_view op) {
  if (value.array.rank != 0) {
    fail(girih::Code::invalid_argument, op, "params['{}'] is an array of rank {}; the variant declares a scalar: set number or integer",
         param.name, value.array.rank);
  }
  ParamData data;
  if (param.dtype == DType::i64) {
    if (value.number != 0) {
      fail(girih::Code::invalid_argument, op, "params['{}'].number={}; the variant declares an integer: set integer", param.name,
           value.number);
    }
    data.integer = value.integer;
    return data;
  }
  if (value.integer != 0) {
    fail(girih::Code::invalid_argument, op, "params['{}'].integer={}; the variant declares a number: set number", param.name,
         value.integer);
  }
  data.number = static_cast<float>(value.number);
  if (std::isinf(data.number) && !std::isinf(value.number)) {
    fail(girih::Code::invalid_argument, op, "params['{}'].number={}; must be within the range of f32", param.name, value.number);
  }
  return data;
}

ParamData array_data(const ParamInfo& param, const ParamValue& value, std::string_view op, Device place) {
  const TensorView& array = value.array;
  const std::string_view kind = param.kind == ParamInfo::Kind::bits ? "packed bits" : "an array";
  if (array.rank != 1) {
    fail(girih::Code::invalid_argument, op, "params['{}'].array has rank {}; the variant declares {}: give a tensor of rank 1", param.name,
         array.rank, kind);
  }
  if (array.dtype != param.dtype) {
    fail(girih::Code::invalid_argument, op, "params['{}'].array is {}; the variant declares {} of {}", param.name, girih::name(array.dtype),
         kind, girih::name(param.dtype));
  }
  if (array.device != place) {
    fail(girih::Code::invalid_argument, op, "params['{}'].array.device={}; {} reads it on {}", param.name, girih::name(array.device),
         call_of(param.time), girih::name(place));
  }
  const std::int64_t size = array.shape[0];
  if (size < 0 || size > INT64_MAX / 8)
    fail(girih::Code::invalid_argument, op, "params['{}'].array.shape[0]={}; must be a length", param.name, size);
  if (size > 1 && array.strides[0] != 1) {
    fail(girih::Code::invalid_argument, op, "params['{}'].array.strides[0]={}; must be 1 (dense)", param.name, array.strides[0]);
  }
  if (size > 0 && array.data == nullptr) {
    fail(girih::Code::invalid_argument, op, "params['{}'].array.data is null with {} elements", param.name, size);
  }
  const auto element = static_cast<std::uintptr_t>(std::max(1, bits(param.dtype) / 8));
  if (array.data != nullptr && reinterpret_cast<std::uintptr_t>(array.data) % element != 0) {
    fail(girih::Code::invalid_argument, op, "params['{}'].array.data is not aligned to its elements of {}", param.name,
         girih::name(param.dtype));
  }
  ParamData data;
  data.data = array.data;
  data.size = param.kind == ParamInfo::Kind::bits ? size * 8 : size;
  return data;
}

}  // namespace

void bind_params(const Program& program, ParamTime time, std::span<const ParamValue> values, std::string_view op, ParamTable& table,
                 Device place) {
  ParamTable bound;
  std::array<bool, Program::kMaxParams> given{};
  for (const ParamValue& value : values) {
    const int index = find_param(program, value.name);
    if (index < 0) {
      fail(girih::Code::invalid_argument, op, "params['{}'] is not a parameter of the variant; those of {} are: {}", value.name,
           call_of(time), list_params(program, time));
    }
    const auto i = static_cast<std::size_t>(index);
    const ParamInfo& param = program.params[i];
    if (param.time != time) {
      fail(girih::Code::invalid_argument, op, "params['{}'] is given with {}; the variant declares it for {}", value.name, call_of(time),
           call_of(param.time));
    }
    if (given[i]) fail(girih::Code::invalid_argument, op, "params['{}'] is given twice; give it once", value.name);
    given[i] = true;
    bound[i] = param.kind == ParamInfo::Kind::scalar ? scalar_data(param, value, op) : array_data(param, value, op, place);
  }
  for (std::size_t i = 0; i < program.params.size(); ++i) {
    if (program.params[i].time == time && !given[i]) {
      fail(girih::Code::invalid_argument, op, "params['{}'] is missing; the variant needs it with {}", program.params[i].name,
           call_of(time));
    }
  }
  for (std::size_t i = 0; i < program.params.size(); ++i) {
    if (given[i]) table[i] = bound[i];
  }
}

}  // namespace girih::variant
