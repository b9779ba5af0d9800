// Arguments of the sampling operators, checked and turned into what both backends run from. The first broken rule throws; nothing has
// been written by then.
#pragma once

#include <string_view>

#include "abi/sampling_params.h"
#include "girih/sampling.h"

namespace girih::sampling {

abi::SampleParams check_sample(const Context& context, const SampleArgs& args);

/// Of the functions that write a row for a row: [rows, vocab] in and out.
struct RowsArgs {
  std::string_view op;
  std::string_view input_name;
  const TensorView& input;
  const TensorView& out;
  bool probs = false;
  bool same_type = false;  ///< out is of input's type; else f32
  void* stream = nullptr;
};
abi::SampleParams check_rows(const Context& context, const RowsArgs& args);

abi::TopKParams check_top_k(const Context& context, const TopKArgs& args);
abi::SpeculativeParams check_speculative(const Context& context, const SpeculativeArgs& args);

/// What a row's number may be.
enum class FloatRule : std::uint8_t { positive, finite, temperature, top_p, min_p, prob_temperature };
abi::RowFloatArg row_float(std::string_view op, std::string_view what, const Context& context, const RowFloat& value, std::int64_t rows,
                           FloatRule rule);
abi::RowIntArg row_int(std::string_view op, std::string_view what, const Context& context, const RowInt& value, std::int64_t rows);

}  // namespace girih::sampling
