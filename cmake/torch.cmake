# torch.cmake - liboctet_torch.so: the ops for programs that run torch without Python, such as those
# that load packages of AOTInductor. torch is found at run time, so none is needed here. It is built
# where the extension module may be, but needs no Python: a C++ compiler for this machine.
set(torch_plugin OFF)
if(top_level AND NOT OCTET_PYTHON STREQUAL "OFF" AND NOT OCTET_SANITIZE AND NOT SKBUILD
        AND NOT APPLE AND NOT CMAKE_CROSSCOMPILING)
    include(CheckLanguage)
    check_language(CXX)
    if(CMAKE_CXX_COMPILER)
        enable_language(CXX)
        set(torch_plugin ON)
    endif()
endif()

if(torch_plugin)
    file(GLOB torch_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/torch/*.c
        ${PROJECT_SOURCE_DIR}/src/torch/*.cpp)
    add_library(octet_torch MODULE ${torch_sources})
    octet_flags(octet_torch)
    octet_internal_includes(octet_torch)
    target_link_libraries(octet_torch PRIVATE octet_static Threads::Threads ${CMAKE_DL_LIBS})
    target_link_options(octet_torch PRIVATE -Wl,--exclude-libs,ALL)
    set_target_properties(octet_torch PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON
        CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden)
    add_dependencies(lib octet_torch)
endif()
