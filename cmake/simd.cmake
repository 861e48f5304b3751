# Instruction sets by file name: kernels_avx512.c, kernels_avx2.c. Which one runs is decided at run time. The
# kernels pass vectors only through inlined functions, so the warning about their ABI (-Wpsabi) says nothing.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(FILTER NEB_SOURCES EXCLUDE REGEX "_avx(2|512)\\.c$")
endif()
set(NEB_KERNEL_FLAGS -ffp-contract=fast -Wno-psabi)
foreach(source ${NEB_SOURCES})
    if(source MATCHES "_avx512\\.c$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
            "${NEB_KERNEL_FLAGS};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx2;-mfma;-mprefer-vector-width=512")
    elseif(source MATCHES "_avx2\\.c$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${NEB_KERNEL_FLAGS};-mavx2;-mfma")
    elseif(source MATCHES "kernels_plain\\.c$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${NEB_KERNEL_FLAGS}")
    endif()
endforeach()

# The codec's kernels are under the arithmetic contract: the same bits from every build. No contraction there.
set(NEB_EXACT_KERNELS ${NEB_SOURCES})
list(FILTER NEB_EXACT_KERNELS INCLUDE REGEX "/codec/kernels_[a-z0-9]+\\.c$")
set_property(SOURCE ${NEB_EXACT_KERNELS} APPEND PROPERTY COMPILE_OPTIONS "-ffp-contract=off;-Wno-psabi")
