# Runs while installing: the libraries of ${trainctl}, and the licences of their Debian packages.
file(GET_RUNTIME_DEPENDENCIES
  EXECUTABLES "${trainctl}"
  RESOLVED_DEPENDENCIES_VAR resolved
  UNRESOLVED_DEPENDENCIES_VAR unresolved
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv)\\.so"
  POST_EXCLUDE_REGEXES "libcuda\\.so" "libnvidia" "libcublas" "libcudnn" "libnccl" "libcudart")
if(unresolved)
  message(FATAL_ERROR "cannot find ${unresolved}, which trainctl needs")
endif()
foreach(library ${resolved})
  file(INSTALL "${library}" DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/trainctl" FOLLOW_SYMLINK_CHAIN)
  file(REAL_PATH "${library}" real)
  string(REGEX REPLACE "^/usr/" "/" recorded "${real}")  # dpkg knows some files below /usr, others below /
  execute_process(COMMAND dpkg-query --search "*${recorded}" OUTPUT_VARIABLE owner ERROR_QUIET RESULT_VARIABLE unknown)
  if(NOT unknown)
    string(REGEX MATCH "^[^:,]+" package "${owner}")
    file(INSTALL "/usr/share/doc/${package}/copyright" DESTINATION "${CMAKE_INSTALL_PREFIX}/share/doc/trainctl/licenses"
         RENAME "${package}" FOLLOW_SYMLINK_CHAIN OPTIONAL)
  else()
    message(STATUS "no Debian package owns ${real}: its licence is not in the tree")
  endif()
endforeach()
