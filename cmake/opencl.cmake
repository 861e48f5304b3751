# The OpenCL device, a plug-in of its own: built where OpenCL's headers and loader are found, loaded at run time, never
# linked to the command. The kernels' sources are a part of it.
option(NEB_OPENCL "build the OpenCL device where OpenCL is found" ON)
if(NEB_OPENCL AND NOT NEB_SANITIZE STREQUAL "fuzzer")
    find_path(NEB_OPENCL_INCLUDE CL/cl.h)
    find_library(NEB_OPENCL_LIBRARY OpenCL)
endif()
if(NOT NEB_OPENCL_INCLUDE OR NOT NEB_OPENCL_LIBRARY OR NOT NEB_OPENCL)
    message(STATUS "no OpenCL device (Debian: apt install ocl-icd-opencl-dev pocl-opencl-icd)")
    return()
endif()

set(folder ${CMAKE_SOURCE_DIR}/src/device/opencl)
file(GLOB NEB_OPENCL_SOURCES CONFIGURE_DEPENDS ${folder}/*.c)
set(NEB_OPENCL_KERNELS) # in the order of enum neb_ocl_module; the common part is the last
foreach(name elementwise rows norm loss update attn attn_ref gemm common)
    list(APPEND NEB_OPENCL_KERNELS ${folder}/kernels/${name}.cl)
endforeach()
set(made ${CMAKE_BINARY_DIR}/opencl/sources.c)
add_custom_command(OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} "-DFILES=${NEB_OPENCL_KERNELS}" -DOUT=${made} -P ${CMAKE_SOURCE_DIR}/cmake/opencl_sources.cmake
    DEPENDS ${NEB_OPENCL_KERNELS} ${CMAKE_SOURCE_DIR}/cmake/opencl_sources.cmake COMMENT "OpenCL kernels" VERBATIM)
add_library(nebula-i-opencl MODULE ${NEB_OPENCL_SOURCES} ${made})
target_include_directories(nebula-i-opencl PRIVATE ${CMAKE_SOURCE_DIR}/include ${folder})
target_include_directories(nebula-i-opencl SYSTEM PRIVATE ${NEB_OPENCL_INCLUDE})
target_link_libraries(nebula-i-opencl PRIVATE ${NEB_OPENCL_LIBRARY} Threads::Threads m)
install(TARGETS nebula-i-opencl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT opencl)
