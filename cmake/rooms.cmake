# room(<name> SOURCES <globs> [EXCLUDE <patterns>] [ALONE <patterns>] [OPTIONS <compile options>] LINKS <libraries>): the
# static library trainctl_<name> of one room. Sources are globbed: to add an op or a pass, add its file. Sources that match
# ALONE join no group of a unity build.
# Properties of single files (set_source_files_properties) must be set before this call, because unity builds read them.
function(room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;EXCLUDE;ALONE;OPTIONS;LINKS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${ROOM_SOURCES})
  foreach(pattern ${ROOM_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  add_library(trainctl_${name} STATIC)
  foreach(pattern ${ROOM_ALONE})
    set(alone ${sources})
    list(FILTER alone INCLUDE REGEX ${pattern})
    list(FILTER sources EXCLUDE REGEX ${pattern})
    target_sources(trainctl_${name} PRIVATE ${alone})
  endforeach()
  unity_sources(trainctl_${name} ${sources})
  target_include_directories(trainctl_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(trainctl_${name} PRIVATE ${ROOM_OPTIONS})
  target_link_libraries(trainctl_${name} PUBLIC ${ROOM_LINKS})
endfunction()

# The optimisation of code whose speed nobody notices: the command line, the launcher, and tests. Release compiles it in
# about 60 % of the time that -O3 takes; other build types keep their own level.
set(TRAINCTL_LIGHT_OPTIMISATION $<$<CONFIG:Release>:-O1>)

# room_tests(<folder> LINKS <libraries> [LABEL <label>] [EXCLUDE <files>] [SOURCES <more files>]): tests/<folder>/*.cpp as one
# doctest program, with one CTest test per case. tests/a/b becomes test_a_b. The default label is the folder's name. A case that
# calls skip_test (tests/skip.h) is Skipped. No ';' in a case's name: doctest_discover_tests would split it into two names.
function(room_tests folder)
  cmake_parse_arguments(ROOM "" "LABEL" "EXCLUDE;LINKS;SOURCES" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  if(NOT ROOM_LABEL)
    set(ROOM_LABEL ${name})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*.cpp)
  if(ROOM_EXCLUDE)
    list(REMOVE_ITEM sources ${ROOM_EXCLUDE})
  endif()
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} $<TARGET_OBJECTS:test_main>)
  unity_sources(test_${name} ${sources})
  foreach(source ${ROOM_SOURCES})
    target_sources(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/${source})
  endforeach()
  target_link_libraries(test_${name} PRIVATE ${ROOM_LINKS} doctest::doctest)
  target_compile_options(test_${name} PRIVATE ${TRAINCTL_LIGHT_OPTIMISATION})
  doctest_discover_tests(test_${name} TEST_PREFIX "${name}: "
    PROPERTIES TIMEOUT 300 LABELS "${ROOM_LABEL}" ENVIRONMENT "OMP_NUM_THREADS=1" SKIP_RETURN_CODE 77)
endfunction()
