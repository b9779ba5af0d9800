# Writes HEADER with the commit of SOURCE, and only when it changed, so that nothing is recompiled otherwise.
set(commit "unknown")
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=* OUTPUT_VARIABLE found
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    set(commit "${found}")
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#pragma once\n#define GIRIH_COMMIT \"@commit@\"\n" @ONLY)
