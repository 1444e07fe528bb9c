# The library that masks tokens by a grammar, as the target XGrammar::xgrammar: scripts/setup builds it into .xgrammar,
# for every build of the checkout.
set(_built ${CMAKE_SOURCE_DIR}/.xgrammar)
find_path(XGrammar_INCLUDE_DIR xgrammar/xgrammar.h HINTS ${_built} PATH_SUFFIXES include)
find_library(XGrammar_LIBRARY xgrammar HINTS ${_built} PATH_SUFFIXES lib)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(XGrammar REQUIRED_VARS XGrammar_LIBRARY XGrammar_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "run scripts/setup")

if(XGrammar_FOUND AND NOT TARGET XGrammar::xgrammar)
  find_package(Threads REQUIRED)
  add_library(XGrammar::xgrammar STATIC IMPORTED)
  set_target_properties(XGrammar::xgrammar PROPERTIES
                        IMPORTED_LOCATION ${XGrammar_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${XGrammar_INCLUDE_DIR}
                        INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
