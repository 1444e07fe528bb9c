# What `cmake --install` copies: the program with its launcher, its recipes and models, the engine (attnres::engine), the operations
# (attnres::ops), the kernels with their C interface (attnres::kernels), their headers, and the CMake
# package that finds them. What of these was not built yet is built then.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${CMAKE_BINARY_DIR}\" --target installed
                              COMMAND_ERROR_IS_FATAL ANY)")

set(PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/attnres)
file(RELATIVE_PATH LIB_FROM_BIN ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})

# Each with a file of its own: attnres::kernels is found without torch.
set(TARGETS attnres_c attnres_ops)
if(ATTNRES_PROGRAM)
  list(APPEND TARGETS attnres_engine)
endif()
add_custom_target(installed)
foreach(TARGET ${TARGETS})
  add_dependencies(installed ${TARGET})
  install(TARGETS ${TARGET} EXPORT ${TARGET} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT ${TARGET} NAMESPACE attnres:: DESTINATION ${PACKAGE_DIR})
endforeach()
# torch stays where it is.
set_target_properties(attnres_ops PROPERTIES INSTALL_RPATH ${LIBTORCH_LIBRARIES})
if(ATTNRES_PROGRAM)
  add_dependencies(installed attnres_app)
  install(TARGETS attnres_app attnres_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  set_target_properties(
    attnres_program PROPERTIES INSTALL_RPATH "$ORIGIN/${LIB_FROM_BIN};${LIBTORCH_LIBRARIES}")
  set_target_properties(attnres_engine PROPERTIES INSTALL_RPATH "$ORIGIN;${LIBTORCH_LIBRARIES}")
  install(FILES attnres/infer/text_engine.h attnres/infer/generation_settings.h
                attnres/infer/model_description.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attnres/infer)
  install(FILES attnres/grammar/answer_grammar.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attnres/grammar)
  install(FILES attnres/chat/reply_piece.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attnres/chat)
  install(FILES attnres/infer/engine_c_api.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          RENAME attnres_engine.h)
  install(DIRECTORY recipes models DESTINATION ${CMAKE_INSTALL_DATADIR}/attnres)
endif()

# Loaded beside the operations, where they are asked for.
if(TARGET attnres_mpi)
  add_dependencies(installed attnres_mpi)
  install(TARGETS attnres_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  set_target_properties(attnres_mpi PROPERTIES INSTALL_RPATH "$ORIGIN;${LIBTORCH_LIBRARIES}")
endif()
if(ATTNRES_CUDA)
  add_dependencies(installed attnres_cuda)
  install(TARGETS attnres_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  set_target_properties(attnres_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;${LIBTORCH_LIBRARIES}")
endif()

# What scripts/wheel says of them to Python.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TORCH_OF_PYTHON ${LibTorch_VERSION})
configure_file(python/built_for.py.in built_for.py @ONLY)

set(OPS attnres/ops/depth_attention)
install(FILES ${OPS}/depth_attention.h ${OPS}/two_phase.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${OPS})
install(FILES ${OPS}/kernel_c_api.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        RENAME attnres_kernels.h)

configure_package_config_file(cmake/attnresConfig.cmake.in attnresConfig.cmake
                              INSTALL_DESTINATION ${PACKAGE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(attnresConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/attnresConfig.cmake
              ${CMAKE_BINARY_DIR}/attnresConfigVersion.cmake cmake/FindLibTorch.cmake
        DESTINATION ${PACKAGE_DIR})
include(InstallHelp)
