// See output.h.
#include "tools/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace girih::tools {

void write_file(const std::string& file, std::string_view text) {
  if (file == "-") {
    fmt::print("{}", text);
    return;
  }
  std::FILE* stream = std::fopen(file.c_str(), "wb");
  if (stream == nullptr) throw std::runtime_error(fmt::format("{}: cannot be written: {}", file, std::strerror(errno)));
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  const bool closed = std::fclose(stream) == 0;
  if (!written || !closed) throw std::runtime_error(fmt::format("{}: cannot be written: {}", file, std::strerror(errno)));
}

std::string escape_markup(std::string_view text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

}  // namespace girih::tools
