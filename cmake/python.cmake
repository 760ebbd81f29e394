# python.cmake - octet._C, the extension module: CPython's limited API, torch found at run time.
#
# It is part of `lib` where the machine has CPython's headers and a C++ compiler (one small file
# throws, so that an op's failure becomes a Python exception); OCTET_PYTHON=ON insists on both,
# OFF leaves it out, as it is by default in another project's build. In a checkout it lands in
# python/octet, so PYTHONPATH=python finds it.
set(python_default OFF)
if(top_level)
    set(python_default AUTO)
endif()
set(OCTET_PYTHON ${python_default} CACHE STRING "Build the Python extension: AUTO, ON or OFF")

set(python_required "")
if(OCTET_PYTHON STREQUAL "ON")
    set(python_required REQUIRED)
endif()
set(python_found OFF)
if(NOT OCTET_PYTHON STREQUAL "OFF" AND NOT OCTET_SANITIZE AND UNIX)
    include(CheckLanguage)
    check_language(CXX)
    set(Python_FIND_UNVERSIONED_NAMES FIRST)
    find_package(Python 3.10 COMPONENTS Interpreter Development.Module ${python_required})
    if(Python_Development.Module_FOUND AND CMAKE_CXX_COMPILER)
        enable_language(CXX)
        set(python_found ON)
    elseif(python_required)
        message(FATAL_ERROR "OCTET_PYTHON=ON needs a C++ compiler")
    endif()
endif()

if(python_found)
    file(GLOB python_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/python/*.c
        ${PROJECT_SOURCE_DIR}/src/torch/*.c ${PROJECT_SOURCE_DIR}/src/torch/*.cpp)
    list(FILTER python_sources EXCLUDE REGEX "src/torch/plugin\\.c$")
    find_package(Threads REQUIRED)
    add_library(octet_python MODULE ${python_sources})
    octet_flags(octet_python)
    octet_internal_includes(octet_python)
    target_include_directories(octet_python SYSTEM PRIVATE ${Python_INCLUDE_DIRS})
    target_compile_definitions(octet_python PRIVATE Py_LIMITED_API=0x030A0000)
    target_link_libraries(octet_python PRIVATE octet_static Threads::Threads ${CMAKE_DL_LIBS})
    set_target_properties(octet_python PROPERTIES PREFIX "" OUTPUT_NAME _C SUFFIX .abi3.so
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden)
    if(APPLE)
        target_link_options(octet_python PRIVATE -undefined dynamic_lookup)
    else()
        # The core inside the module is its own; it exports nothing but the module's init.
        target_link_options(octet_python PRIVATE -Wl,--exclude-libs,ALL)
    endif()
    if(SKBUILD)
        install(TARGETS octet_python LIBRARY DESTINATION octet)
    else()
        set_target_properties(octet_python PROPERTIES
            LIBRARY_OUTPUT_DIRECTORY ${PROJECT_SOURCE_DIR}/python/octet)
        add_dependencies(lib octet_python)
    endif()
endif()
