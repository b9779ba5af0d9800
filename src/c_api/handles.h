// What is behind the C ABI's opaque handles. The first member tells which kind a handle is.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "c_api/call.h"
#include "girih/attention.h"

struct girih_context {
  static constexpr std::string_view kName = "girih_context";
  std::uint64_t tag = girih::c_api::tag_of(kName);
  girih::Context value;
};

struct girih_expr {
  static constexpr std::string_view kName = "girih_expr";
  std::uint64_t tag = girih::c_api::tag_of(kName);
  girih::Expr value;
};

struct girih_expr_builder {
  static constexpr std::string_view kName = "girih_expr_builder";
  std::uint64_t tag = girih::c_api::tag_of(kName);
  std::deque<girih_expr> exprs;  ///< whose addresses stay
  girih_status status = GIRIH_OK;
  std::string error;  ///< the first
};

struct girih_variant {
  static constexpr std::string_view kName = "girih_variant";
  std::uint64_t tag = girih::c_api::tag_of(kName);
  girih::Variant value;
};

struct girih_schedule {
  static constexpr std::string_view kName = "girih_schedule";
  std::uint64_t tag = girih::c_api::tag_of(kName);
  girih::Schedule value;
  girih_variant variant;  ///< of the spec, for girih_schedule_get_spec
};

struct girih_plan {
  static constexpr std::string_view kName = "girih_plan";
  std::uint64_t tag = girih::c_api::tag_of(kName);
  girih::Plan value;
};

struct girih_device_plan {
  static constexpr std::string_view kName = "girih_device_plan";
  std::uint64_t tag = girih::c_api::tag_of(kName);
  girih::DevicePlan value;
};

struct girih_block_sparse {
  static constexpr std::string_view kName = "girih_block_sparse";
  std::uint64_t tag = girih::c_api::tag_of(kName);
  girih::BlockSparse value;
};

struct girih_capabilities {
  static constexpr std::string_view kName = "girih_capabilities";
  struct Row {
    girih::AttentionCapability value;
    std::vector<girih_dtype> q_dtypes, o_dtypes, kv_dtypes;
    std::vector<const char*> features;
  };
  std::uint64_t tag = girih::c_api::tag_of(kName);
  std::vector<Row> rows;
};
