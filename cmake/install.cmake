# cmake --install: a relocatable tree, PREFIX/bin/trainctl with the non-system libraries in PREFIX/lib.
include(GNUInstallDirs)
# DT_RPATH rather than DT_RUNPATH, so that it also applies to the libraries' own dependencies.
target_link_options(trainctl PRIVATE LINKER:--disable-new-dtags)
set_target_properties(trainctl PROPERTIES INSTALL_RPATH "$ORIGIN/../lib" BUILD_WITH_INSTALL_RPATH OFF)
install(TARGETS trainctl RUNTIME DESTINATION bin)
install(DIRECTORY configs/ DESTINATION share/trainctl/configs)
install(FILES LICENSE DESTINATION share/trainctl)
install(CODE "
  file(GET_RUNTIME_DEPENDENCIES
    EXECUTABLES \"$<TARGET_FILE:trainctl>\"
    RESOLVED_DEPENDENCIES_VAR resolved
    UNRESOLVED_DEPENDENCIES_VAR unresolved
    PRE_EXCLUDE_REGEXES \"^ld-linux\" \"^lib(c|m|dl|rt|pthread|resolv)\\\\.so\"
    POST_EXCLUDE_REGEXES \"libcuda\\\\.so\" \"libnvidia\" \"libcublas\" \"libcudnn\" \"libnccl\" \"libcudart\")
  if(unresolved)
    message(FATAL_ERROR \"cannot find \${unresolved}, which trainctl needs\")
  endif()
  foreach(library \${resolved})
    file(INSTALL \"\${library}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib\" FOLLOW_SYMLINK_CHAIN)
  endforeach()
")
