# compile_together(TARGET [COLD ROOM..]): the sources of a room (attnres/depth, tests/ops, app) are compiled
# together, at most CMAKE_UNITY_BUILD_BATCH_SIZE at once, because parsing headers takes most of a source's
# time. -DCMAKE_UNITY_BUILD=OFF compiles each by itself. Cold rooms, where a model computes nothing, are
# optimised less, which takes a fifth off their time.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24 CACHE STRING "Sources that are compiled together")
function(compile_together TARGET)
  cmake_parse_arguments(ARG "" "" COLD ${ARGN})
  get_target_property(SOURCES ${TARGET} SOURCES)
  list(SORT SOURCES)
  set(ROOMS)
  foreach(SOURCE ${SOURCES})
    cmake_path(ABSOLUTE_PATH SOURCE OUTPUT_VARIABLE ROOM)
    cmake_path(RELATIVE_PATH ROOM BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
    string(REGEX MATCH "^[^/]+(/[^/]+/)?" ROOM "${ROOM}")
    string(MAKE_C_IDENTIFIER "${ROOM}" ROOM)
    list(APPEND ROOMS ${ROOM})
    list(APPEND SOURCES_${ROOM} ${SOURCE})
  endforeach()
  list(REMOVE_DUPLICATES ROOMS)
  list(TRANSFORM ARG_COLD REPLACE "(.+)" "attnres_\\1_" OUTPUT_VARIABLE COLD)
  foreach(ROOM ${ROOMS})
    list(LENGTH SOURCES_${ROOM} COUNT)
    # As many groups as are needed, of one size.
    math(EXPR GROUPS "(${COUNT} - 1) / ${CMAKE_UNITY_BUILD_BATCH_SIZE} + 1")
    set(INDEX 0)
    foreach(SOURCE ${SOURCES_${ROOM}})
      math(EXPR GROUP "${INDEX} * ${GROUPS} / ${COUNT}")
      math(EXPR INDEX "${INDEX} + 1")
      set_source_files_properties(${SOURCE} PROPERTIES UNITY_GROUP ${ROOM}${GROUP})
      if(ROOM IN_LIST COLD)
        set_source_files_properties(
          ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${TARGET}.dir/Unity/unity_${ROOM}${GROUP}_cxx.cxx
          PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
      endif()
    endforeach()
  endforeach()
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD_MODE GROUP)
endfunction()
