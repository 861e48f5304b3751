# What `cmake --install` puts where. Components, for packages: command, library, development, cuda, mpi, opencl, manual; without one all are
# installed. The package file and nebula-i.pc find the rest by their own place, so a tree may be moved.
include(CMakePackageConfigHelpers)
set(NEB_PACKAGE ${CMAKE_INSTALL_LIBDIR}/cmake/nebula-i)

install(TARGETS nebula-i COMPONENT command)
install(TARGETS nebula_static COMPONENT development)
install(DIRECTORY include/nebula DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
if(TARGET nebula_shared)
    install(TARGETS nebula_shared EXPORT nebula-i-targets LIBRARY COMPONENT library NAMELINK_COMPONENT development)
    install(EXPORT nebula-i-targets NAMESPACE nebula-i:: DESTINATION ${NEB_PACKAGE} COMPONENT development)
    configure_package_config_file(cmake/nebula-i-config.cmake.in nebula-i-config.cmake INSTALL_DESTINATION ${NEB_PACKAGE})
    write_basic_package_version_file(nebula-i-config-version.cmake COMPATIBILITY SameMinorVersion)
    install(FILES ${CMAKE_BINARY_DIR}/nebula-i-config.cmake ${CMAKE_BINARY_DIR}/nebula-i-config-version.cmake
            DESTINATION ${NEB_PACKAGE} COMPONENT development)
endif()
file(RELATIVE_PATH NEB_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/nebula-i.pc.in nebula-i.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/nebula-i.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
if(TARGET nebula-i-cuda)
    install(PROGRAMS ${NEB_CUDA_PLUGIN} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda)
endif()
if(NEB_SHARE)
    install(DIRECTORY ${NEB_SHARE}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT manual)
    install(DIRECTORY ${NEB_SHARE}/bash-completion ${NEB_SHARE}/zsh ${NEB_SHARE}/fish
            DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT manual)
endif()
