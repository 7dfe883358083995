# cmake --install: a relocatable tree.
#
#   PREFIX/bin/trainctl
#   PREFIX/lib/trainctl/          the libraries that it needs, but for those of libc6: a folder of its own, since a PREFIX/lib
#                                 such as /usr/local/lib is searched for every program
#   PREFIX/share/man/man1, bash-completion, zsh, fish
#   PREFIX/include/               the header of plugins
#   PREFIX/share/trainctl/        configs, docs, which jobs of the cookbook read, and the Python package
#   PREFIX/share/doc/trainctl/    our licence, and those of the libraries
include(GNUInstallDirs)
# DT_RPATH rather than DT_RUNPATH, so that it also applies to the libraries' own dependencies.
target_link_options(trainctl PRIVATE LINKER:--disable-new-dtags)
set_target_properties(trainctl PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/trainctl" BUILD_WITH_INSTALL_RPATH OFF)
install(TARGETS trainctl RUNTIME DESTINATION bin)
# Golden plans (tests/update_plans) are for those who change trainctl.
install(DIRECTORY configs docs examples DESTINATION share/trainctl PATTERN "*.plan" EXCLUDE PATTERN "*.so" EXCLUDE)
install(FILES engine/ops/plugins/trainctl_plugin.h DESTINATION include)
# The trackers of a job are modules of the Python package (cli/run/launch/trackers.cpp finds it there).
install(DIRECTORY python/trainctl DESTINATION share/trainctl/python PATTERN "__pycache__" EXCLUDE)
install(FILES LICENSE DESTINATION share/doc/trainctl)
# Arrow, if ./bootstrap arrow has built it: trainctl opens it with the first Parquet file.
set(arrow ${PROJECT_SOURCE_DIR}/build/arrow)
install(CODE "
  file(GLOB shim \"${arrow}/libtrainctl_arrow.so\")
  if(shim)
    file(GLOB libraries \"${arrow}/pyarrow/libarrow.so.*\" \"${arrow}/pyarrow/libparquet.so.*\")
    file(GLOB licences \"${arrow}/pyarrow-*.dist-info/LICENSE*\" \"${arrow}/pyarrow-*.dist-info/NOTICE*\"
         \"${arrow}/pyarrow-*.dist-info/licenses/*.txt\")
    file(INSTALL \${shim} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/trainctl\")
    file(INSTALL \${libraries} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/trainctl/pyarrow\")
    file(INSTALL \${licences} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/share/doc/trainctl/licenses/arrow\")
  else()
    message(STATUS \"without Arrow: ./bootstrap arrow builds it, and Parquet files need it\")
  endif()
")
set(CPACK_PACKAGE_CONTACT "trainctl maintainers <maintainers@trainctl.example>")
install(CODE "
  set(trainctl \"$<TARGET_FILE:trainctl>\")
  set(version \"${PROJECT_VERSION}\")
  set(contact \"${CPACK_PACKAGE_CONTACT}\")
  include(\"${CMAKE_CURRENT_LIST_DIR}/install_libraries.cmake\")
  include(\"${CMAKE_CURRENT_LIST_DIR}/install_words.cmake\")
")

# ./bootstrap package: the same tree as a .deb and a .tar.gz.
set(CPACK_PACKAGE_NAME trainctl)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "declarative launcher and engine for distributed training")
set(CPACK_PACKAGE_DESCRIPTION "One YAML file says what a network is and how it runs in parallel.
trainctl plans the run, proves the plan, starts one process a rank, and
trains on CPUs or NVIDIA GPUs. It also starts and supervises any other
program.")
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_PACKAGE_FILE_NAME "trainctl-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# All libraries but those of libc6 are in the package, so it installs wherever the C library is as new as here.
execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE libc OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "glibc " "" libc "${libc}")
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${libc})")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openssh-client, man-db, bash-completion")
include(CPack)
