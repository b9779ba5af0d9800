// The table of operators: docs/operators.md shows it row for row, and no name stands twice.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "girih/capabilities.h"

namespace girih {
namespace {

std::string markdown() {
  static constexpr const char* kCapture[] = {"no", "yes", ""};
  std::string text = "| operator | header | CPU | CUDA | capture | reads | writes |\n|---|---|---|---|---|---|---|\n";
  for (const OperatorCapability& row : operator_capabilities()) {
    text += fmt::format("| `{}` | `{}` | {} | {} | {} | {} | {} |\n", row.op, row.header, row.cpu ? "yes" : "no", row.cuda ? "yes" : "no",
                        kCapture[static_cast<int>(row.capture)], row.reads, row.writes);
  }
  return text;
}

TEST(Capabilities, DocsShowTheTable) {
  std::ifstream file(GIRIH_SOURCE_DIR "/docs/operators.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string begin = "<!-- operators: the rows of operator_capabilities() -->\n";
  const std::size_t at = text.str().find(begin);
  ASSERT_NE(at, std::string::npos);
  const std::size_t end = text.str().find("<!-- end -->", at);
  EXPECT_EQ(text.str().substr(at + begin.size(), end - at - begin.size()), markdown());
}

TEST(Capabilities, NamesAreUniqueAndEveryOperatorRunsSomewhere) {
  std::set<std::string_view> names;
  for (const OperatorCapability& row : operator_capabilities()) {
    EXPECT_TRUE(names.insert(row.op).second) << row.op;
    EXPECT_TRUE(row.cpu || row.cuda) << row.op;
    EXPECT_EQ(row.cuda, row.capture != Capture::not_applicable) << row.op;
  }
}

}  // namespace
}  // namespace girih
