# version.cmake - the version, read from include/octet.h, the one place that has it.
# As a script (cmake -P) it only says whether this cmake is new enough.
cmake_minimum_required(VERSION 3.18)

set(OCTET_VERSION "")
foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../include/octet.h line
        REGEX "^#define OCTET_VERSION_${part} [0-9]+$")
    string(REGEX MATCH "[0-9]+$" OCTET_VERSION_${part} "${line}")
    if(OCTET_VERSION_${part} STREQUAL "")
        message(FATAL_ERROR "include/octet.h has no line '#define OCTET_VERSION_${part} <number>'")
    endif()
    list(APPEND OCTET_VERSION ${OCTET_VERSION_${part}})
endforeach()
list(JOIN OCTET_VERSION "." OCTET_VERSION)

# Before 1.0 a minor release may change the binary interface; from 1.0 on only a major one.
set(OCTET_SOVERSION ${OCTET_VERSION_MAJOR})
if(OCTET_VERSION_MAJOR EQUAL 0)
    set(OCTET_SOVERSION 0.${OCTET_VERSION_MINOR})
endif()
