# The third-party parts, gathered in one interface target. neb_part(NAME header archive [shared names...]) prefers
# the static archive. A missing part stops the configuration with the line to run.
add_library(neb_parts INTERFACE)
target_link_libraries(neb_parts INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})

function(neb_part name header archive)
    find_path(NEB_${name}_INCLUDE ${header} PATH_SUFFIXES openblas-serial openblas ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-serial)
    find_library(NEB_${name}_LIBRARY NAMES ${archive} ${ARGN} PATH_SUFFIXES openblas-serial)
    if(NOT NEB_${name}_INCLUDE OR NOT NEB_${name}_LIBRARY)
        message(FATAL_ERROR "${name} is missing (${header}, ${archive}): run tools/setup")
    endif()
    target_include_directories(neb_parts SYSTEM INTERFACE ${NEB_${name}_INCLUDE})
    target_link_libraries(neb_parts INTERFACE ${NEB_${name}_LIBRARY})
endfunction()

neb_part(CYAML cyaml/cyaml.h libcyaml.a cyaml)
neb_part(YAML yaml.h libyaml.a yaml)
neb_part(JANSSON jansson.h libjansson.a jansson)
neb_part(SQLITE sqlite3.h libsqlite3.a sqlite3)
neb_part(UV uv.h libuv_a.a uv)
neb_part(ZSTD zstd.h libzstd.a zstd)
neb_part(SSL openssl/ssl.h libssl.a ssl)
neb_part(CRYPTO openssl/evp.h libcrypto.a crypto)
neb_part(OPENBLAS cblas.h libopenblas.a openblas)
