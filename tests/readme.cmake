# Fails unless README.md shows examples/paged_decode/main.cc exactly. Arguments: ROOT.
file(READ ${ROOT}/README.md readme)
file(READ ${ROOT}/examples/paged_decode/main.cc code)
string(FIND "${readme}" "```cpp\n${code}```\n" position)
if(position EQUAL -1)
  message(FATAL_ERROR "README.md: its C++ example differs from examples/paged_decode/main.cc; copy the file into the code block")
endif()
