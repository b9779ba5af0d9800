# cmake --install: public headers, libraries, the CMake package, the CLI.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/girih DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${GIRIH_GENERATED_INCLUDE}/girih/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/girih)
install(TARGETS ${GIRIH_LIBRARIES} EXPORT girih_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET girih_cli)
  install(TARGETS girih_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(GIRIH_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/girih)
install(EXPORT girih_targets NAMESPACE girih:: FILE girih-targets.cmake DESTINATION ${GIRIH_PACKAGE_DIR})
configure_package_config_file(cmake/girih-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/girih-config.cmake
  INSTALL_DESTINATION ${GIRIH_PACKAGE_DIR})
# Before 1.0 a minor version may break sources.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/girih-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/girih-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/girih-config-version.cmake
  DESTINATION ${GIRIH_PACKAGE_DIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
