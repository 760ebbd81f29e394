# embed.cmake - the kernels and every header they include, as one C file of byte arrays.
#
# Included, it makes the rule; as a script (cmake -DLIST=... -DOUT=... -P) it writes the file.
# A text's name is what an #include says: "format/e4m3.h", "octet.h", "stdint.h".
cmake_minimum_required(VERSION 3.18...4.0)

if(NOT CMAKE_SCRIPT_MODE_FILE)
    set(root ${PROJECT_SOURCE_DIR})
    file(GLOB embedded_files CONFIGURE_DEPENDS
        ${root}/src/cuda/kernels/*.cu ${root}/src/cuda/kernels/*.h
        ${root}/src/cuda/kernels/standard/*.h ${root}/src/format/*.h
        ${root}/src/core/matrix.h ${root}/src/core/size.h
        ${root}/include/octet.h ${root}/include/octet/*.h)
    # The list is a file that changes with it, so that a removed source counts as a change.
    set(embedded_list ${PROJECT_BINARY_DIR}/embedded.list)
    set(embedded_c ${PROJECT_BINARY_DIR}/embedded.c)
    list(JOIN embedded_files "\n" lines)
    file(CONFIGURE OUTPUT ${embedded_list} CONTENT "${lines}\n" @ONLY)
    add_custom_command(OUTPUT ${embedded_c}
        COMMAND ${CMAKE_COMMAND} -DLIST=${embedded_list} -DOUT=${embedded_c}
                -P ${CMAKE_CURRENT_LIST_FILE}
        DEPENDS ${embedded_files} ${embedded_list} ${CMAKE_CURRENT_LIST_FILE}
        COMMENT "Embedding kernels" VERBATIM)
    return()
endif()

file(STRINGS ${LIST} files)
set(arrays "")
set(rows "")
set(count 0)
foreach(file ${files})
    string(REGEX REPLACE "^.*/(src/cuda/kernels/standard|src|include)/" "" name ${file})
    file(READ ${file} hex HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
    # The last 0 ends the text; it is not counted.
    string(APPEND arrays "static const unsigned char text_${count}[] = {${bytes}0};\n")
    string(APPEND rows "    {\"${name}\", text_${count}, sizeof text_${count} - 1},\n")
    math(EXPR count "${count} + 1")
endforeach()

file(WRITE ${OUT} "/* embedded.c - written by embed.cmake: kernels and the headers they include. */
#include \"cuda/embedded.h\"

${arrays}
const oct_cuda_text oct_cuda_texts[] = {
${rows}};
const int oct_cuda_text_count = ${count};
")
