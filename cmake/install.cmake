# install.cmake - libraries, header, program, CMake package and pkg-config file; relocatable.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/octet)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS octet octet_static EXPORT octet)
install(FILES include/octet.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/octet DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET octet_program)
    install(TARGETS octet_program)
endif()

install(EXPORT octet NAMESPACE octet:: FILE octet-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/octet-config.cmake.in octet-config.cmake
    INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# While the major version is 0, a minor release may change the interface.
set(compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(compatibility SameMinorVersion)
endif()
write_basic_package_version_file(octet-config-version.cmake COMPATIBILITY ${compatibility})
install(FILES ${PROJECT_BINARY_DIR}/octet-config.cmake
    ${PROJECT_BINARY_DIR}/octet-config-version.cmake DESTINATION ${package_dir})

# pkg-config finds the prefix from where the file lies, unless the folders are absolute.
set(pc_prefix ${CMAKE_INSTALL_PREFIX})
set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" AND NOT IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    file(RELATIVE_PATH up /prefix/${pkgconfig_dir} /prefix)
    string(REGEX REPLACE "/$" "" up "${up}")
    set(pc_prefix "\${pcfiledir}/${up}")
    set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
set(pc_dl "")
if(CMAKE_DL_LIBS)
    set(pc_dl -l${CMAKE_DL_LIBS})
endif()
configure_file(cmake/octet.pc.in octet.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/octet.pc DESTINATION ${pkgconfig_dir})
