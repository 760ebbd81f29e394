# flags.cmake - how every C file of the project is compiled.

# -ffp-contract=off: numbers are the same with and without FMA, and on every compiler.
function(octet_flags target)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF C_VISIBILITY_PRESET hidden)
    if(NOT MSVC)
        target_compile_options(${target} PRIVATE
            -Wall -Wextra -Wpedantic -Wconversion -ffp-contract=off
            $<$<BOOL:${OCTET_WERROR}>:-Werror>)
    endif()
    if(OCTET_SANITIZE)
        target_compile_options(${target} PRIVATE -fsanitize=${OCTET_SANITIZE}
            -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
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
