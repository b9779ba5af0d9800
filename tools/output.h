// Output files of the tool: written at once, failures are runtime errors that name the file.
#pragma once

#include <string>
#include <string_view>

namespace girih::tools {

/// "-" is stdout. Throws std::runtime_error.
void write_file(const std::string& file, std::string_view text);

/// `text` with & < > " replaced, for XML and HTML.
std::string escape_markup(std::string_view text);

}  // namespace girih::tools
