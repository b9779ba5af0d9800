// The rotary operators' arguments, checked and as the row operators' core takes them. Where keys go (places or a plan) is added by the
// caller of describe_rope_append().
#pragma once

#include "girih/rope.h"
#include "rows/rows.h"

namespace girih {

rows::Launch describe_rope(Device device, const RopeArgs& args);
/// Positions may be missing: `positions_follow` says that the caller will add them. `rows` are those that the batch appends.
rows::Launch describe_rope_append(Device device, const KvStore& store, std::int64_t rows, const RopeAppendArgs& args);

/// Where a batch's rows go and the positions that these places have, row by row.
struct AppendPlaces {
  std::vector<abi::TokenPlace> places;
  std::vector<std::int64_t> positions;
};
AppendPlaces append_places(std::string_view op, const KvStore& store, const AppendBatch& batch);

}  // namespace girih
