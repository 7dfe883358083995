# Unity builds: the sources of a room are compiled in groups. Most of a compile goes into the headers and the templates that
# neighbouring files share: three groups of 25 files take 28 % more processor time than one group of 76, which needs 1.3 GiB.
# So a machine of few cores compiles large groups. With more cores, smaller groups keep all of them busy.
#
# Files of a group share one anonymous namespace, so a name in it must be unique in its room.
# tests/build/compile_alone.py checks the opposite rule: each file compiles without its neighbours.
option(TRAINCTL_UNITY "Compile the sources of a room in groups; OFF (preset dev) compiles each file alone" ON)
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
set(most 32)
set(most_cuda 4)
if(cores LESS 8)
  set(most 85)
  set(most_cuda 10)  # nvcc reads the headers three times, which takes 5 s a group
endif()
set(TRAINCTL_UNITY_FILES ${most} CACHE STRING "C++ sources per group, at most")
set(TRAINCTL_UNITY_CUDA_SOURCES ${most_cuda} CACHE STRING "CUDA sources per group, at most")

if(TRAINCTL_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC looks for garbage each time its heap has grown by a third. Large groups are compiled 3 % faster if it waits for 1 GiB.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=1048576>")
endif()

# unity_sources(<target> SOURCES <sources> [NAME <name>] [OPTIONS <compile options>]): adds the sources to the target, in groups
# of about equal size by language and in the order of their paths. OPTIONS follow those of the target. A second call for the same
# target needs a NAME. Sources that have compile options or definitions of their own are compiled alone.
function(unity_sources target)
  cmake_parse_arguments(UNITY "" "NAME" "SOURCES;OPTIONS" ${ARGN})
  foreach(extension cpp cu)
    set(limit ${TRAINCTL_UNITY_FILES})
    if(extension STREQUAL "cu")
      set(limit ${TRAINCTL_UNITY_CUDA_SOURCES})
    endif()
    set(grouped "")
    set(sources ${UNITY_SOURCES})
    list(FILTER sources INCLUDE REGEX "\\.${extension}$")
    list(SORT sources)
    foreach(source ${sources})
      get_source_file_property(options ${source} COMPILE_OPTIONS)
      get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
      if(TRAINCTL_UNITY AND NOT options AND NOT definitions)
        list(APPEND grouped ${source})
        continue()
      endif()
      target_sources(${target} PRIVATE ${source})
      if(UNITY_OPTIONS AND NOT options)
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${UNITY_OPTIONS}")
      endif()
    endforeach()
    list(LENGTH grouped count)
    math(EXPR groups "(${count} + ${limit} - 1) / ${limit}")
    set(begin 0)
    foreach(number RANGE 1 ${groups})
      if(count EQUAL 0)
        break()
      endif()
      math(EXPR end "${count} * ${number} / ${groups}")
      math(EXPR size "${end} - ${begin}")
      list(SUBLIST grouped ${begin} ${size} members)
      set(includes "")
      foreach(source ${members})
        file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
        string(APPEND includes "#include \"${path}\"\n")
      endforeach()
      # The file is rewritten only when the group changes.
      set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}.unity/${UNITY_NAME}${number}.${extension})
      file(CONFIGURE OUTPUT ${file} CONTENT "${includes}" @ONLY)
      target_sources(${target} PRIVATE ${file})
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${UNITY_OPTIONS}")
      set(begin ${end})
    endforeach()
  endforeach()
endfunction()
