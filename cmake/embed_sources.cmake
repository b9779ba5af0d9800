# Writes OUT, a C++ file with the kernel texts of ROOT and their hash, for src/jit/sources.h. Arguments: ROOT OUT. Names and texts only:
# the same tree gives the same file wherever it lies. A text becomes raw string literals of a size that every compiler takes.
cmake_policy(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/kernel_sources.cmake)
girih_kernel_sources(${ROOT} names paths)

set(table "")
set(everything "")
list(LENGTH names count)
math(EXPR last "${count} - 1")
foreach(i RANGE ${last})
  list(GET names ${i} name)
  list(GET paths ${i} path)
  file(READ ${path} text)
  if(text MATCHES "\\)girih\"")
    message(FATAL_ERROR "${path}: the characters )girih\" end a text and cannot be in it")
  endif()
  string(SHA256 hash "${text}")
  string(APPEND everything "${name} ${hash}\n")
  string(LENGTH "${text}" length)
  set(literals "")
  set(begin 0)
  while(begin LESS length)
    string(SUBSTRING "${text}" ${begin} 8000 piece)
    string(APPEND literals "\n        R\"girih(${piece})girih\"")
    math(EXPR begin "${begin} + 8000")
  endwhile()
  string(APPEND table "    source(\"${name}\",${literals}),\n")
endforeach()
string(SHA256 bundle "${everything}")
string(SUBSTRING ${bundle} 0 32 bundle)

file(WRITE ${OUT}
"// The kernel texts. Written by CMake (cmake/embed_sources.cmake).
#include \"jit/sources.h\"

namespace girih::jit {
namespace {

// The length comes from the literal's type: counting characters at compile time exceeds clang's limit of steps.
template <size_t kSize>
constexpr EmbeddedSource source(std::string_view name, const char (&text)[kSize]) {
  return {name, {text, kSize - 1}};
}

constexpr EmbeddedSource kSources[] = {
${table}};

}  // namespace

std::span<const EmbeddedSource> embedded_sources() { return kSources; }
std::string_view bundle_hash() { return \"${bundle}\"; }

}  // namespace girih::jit
")
