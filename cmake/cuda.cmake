# The CUDA device, a plug-in of its own: built where nvcc is found, loaded at run time, never linked to the command.
# Machine code for Hopper, PTX for every GPU from compute capability 8.0 on. The CUDA runtime is linked statically;
# cuBLASLt is opened at run time.
set(NEB_CUDA_CODE -gencode=arch=compute_80,code=compute_80 -gencode=arch=compute_90a,code=sm_90a
    CACHE STRING "nvcc's targets")
option(NEB_CUDA "build the CUDA device where nvcc is found" ON)
find_program(NEB_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(NOT NEB_CUDA OR NEB_SANITIZE OR NOT NEB_NVCC)
    return()
endif()

file(GLOB NEB_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/device/cuda/*.cu)
set(NEB_NVCC_FLAGS -O3 -std=c++17 -lineinfo --extended-lambda --expt-relaxed-constexpr -I${CMAKE_SOURCE_DIR}/include
    ${NEB_CUDA_CODE}
    -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wno-maybe-uninitialized,-fno-exceptions
    -Werror=all-warnings -diag-suppress=128,177,186)
# Some kernels are written for Hopper alone; without its code the general ones serve there, too.
if(NEB_CUDA_CODE MATCHES "sm_90a")
    list(APPEND NEB_NVCC_FLAGS -DNEB_HOPPER=1)
else()
    list(APPEND NEB_NVCC_FLAGS -DNEB_HOPPER=0)
endif()
set(objects)
foreach(source ${NEB_CUDA_SOURCES})
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
        COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${NEB_NVCC} ${NEB_NVCC_FLAGS} -MD -MF ${object}.d -c ${source} -o ${object}
        DEPENDS ${source} DEPFILE ${object}.d COMMENT "CUDA ${name}.cu" VERBATIM)
    list(APPEND objects ${object})
endforeach()

set(NEB_CUDA_PLUGIN ${CMAKE_BINARY_DIR}/libnebula-i-cuda.so)
add_custom_command(OUTPUT ${NEB_CUDA_PLUGIN}
    COMMAND ${NEB_NVCC} -shared -cudart static -gencode=arch=compute_90a,code=sm_90a
            -Xcompiler=-static-libstdc++,-static-libgcc,-fPIC
            -Xlinker=--exclude-libs=ALL,-z,defs,-soname=libnebula-i-cuda.so -o ${NEB_CUDA_PLUGIN} ${objects}
            -lpthread -ldl -lrt
    DEPENDS ${objects} COMMENT "Linking libnebula-i-cuda.so" VERBATIM)
add_custom_target(nebula-i-cuda ALL DEPENDS ${NEB_CUDA_PLUGIN})
