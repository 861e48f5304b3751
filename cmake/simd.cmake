# Instruction sets by file name: kernels_avx512.c, kernels_avx2.c. Which one runs is decided at run time.
foreach(source ${NEB_SOURCES})
    if(source MATCHES "_avx512\\.c$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
            "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx2;-mfma;-mprefer-vector-width=512")
    elseif(source MATCHES "_avx2\\.c$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
    endif()
endforeach()
