# flags.cmake - how every C file of the project is compiled.

# -ffp-contract=off: numbers are the same with and without FMA, and on every compiler. What a
# project that adds this one has set for its own files (-ffast-math, -Ofast) does not hold here,
# at the link neither: there it would flush subnormal numbers for the whole process.
set(octet_exact -ffp-contract=off -fno-fast-math -fno-unsafe-math-optimizations
    -fno-finite-math-only -fno-associative-math -fno-reciprocal-math -fsigned-zeros)

foreach(flags CMAKE_C_FLAGS CMAKE_CXX_FLAGS) # of this folder alone
    string(REGEX REPLACE "(^| )-Ofast( |$)" "\\1-O3\\2" ${flags} "${${flags}}")
    string(REGEX REPLACE "(^| )-f(fast-math|unsafe-math-optimizations)( |$)" " " ${flags} "${${flags}}")
endforeach()

# On 32-bit x86 the old unit computes in 80 bits; SSE2 rounds as every other machine does.
if(CMAKE_SIZEOF_VOID_P EQUAL 4 AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|i[3-6]86)$")
    list(APPEND octet_exact -msse2 -mfpmath=sse)
endif()

# A project that adds this one may have no build type, and would get a library without any
# optimization, many times slower.
set(octet_optimized "")
get_directory_property(octet_given COMPILE_OPTIONS)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES
        AND NOT "${CMAKE_C_FLAGS} ${octet_given}" MATCHES "(^|[ ;])-O")
    set(octet_optimized -O2)
endif()

function(octet_flags target)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF C_VISIBILITY_PRESET hidden)
    target_compile_options(${target} PRIVATE
        -Wall -Wextra -Wpedantic -Wconversion ${octet_exact} ${octet_optimized}
        $<$<BOOL:${OCTET_WERROR}>:-Werror>)
    get_target_property(kind ${target} TYPE)
    if(kind MATCHES "EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY")
        target_link_options(${target} PRIVATE -fno-fast-math)
    endif()
    if(OCTET_SANITIZE)
        target_compile_options(${target} PRIVATE -fsanitize=${OCTET_SANITIZE}
            -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
    endif()
    if(OCTET_FUZZ AND CMAKE_C_COMPILER_ID MATCHES "Clang")
        target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
    endif()
endfunction()

# For the library's own files and its tests: "core/fail.h" and "octet.h".
function(octet_internal_includes target)
    target_include_directories(${target} PRIVATE
        ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
endfunction()

if(OCTET_SANITIZE)
    add_link_options(-fsanitize=${OCTET_SANITIZE})
endif()
