# What the program writes about itself is installed with it: man pages, and completions for bash, zsh and
# fish. They are written when what is installed is built, by the program, so not when it is built for another
# machine.
if(NOT ATTNRES_PROGRAM OR CMAKE_CROSSCOMPILING)
  return()
endif()
set(WRITTEN ${CMAKE_BINARY_DIR}/written_help)
set(COMPLETIONS ${WRITTEN}/bash/attnres ${WRITTEN}/zsh/_attnres ${WRITTEN}/fish/attnres.fish)
file(GLOB RECIPES CONFIGURE_DEPENDS recipes/*.json recipes/studies/*.json)
add_custom_command(
  OUTPUT ${WRITTEN}/man1/attnres.1 ${COMPLETIONS}
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${WRITTEN}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${WRITTEN}/bash ${WRITTEN}/zsh ${WRITTEN}/fish
  COMMAND attnres_program help --man ${WRITTEN}/man1
  COMMAND attnres_program help --completion bash > ${WRITTEN}/bash/attnres
  COMMAND attnres_program help --completion zsh > ${WRITTEN}/zsh/_attnres
  COMMAND attnres_program help --completion fish > ${WRITTEN}/fish/attnres.fish
  DEPENDS attnres_program ${RECIPES}
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} # whose recipes are completed by name
  COMMENT "Writing man pages and completions"
  VERBATIM)
add_custom_target(attnres_help DEPENDS ${WRITTEN}/man1/attnres.1 ${COMPLETIONS})
add_dependencies(installed attnres_help)
install(DIRECTORY ${WRITTEN}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${WRITTEN}/bash/attnres
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${WRITTEN}/zsh/_attnres DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${WRITTEN}/fish/attnres.fish
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
