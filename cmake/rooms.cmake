# Levels of optimisation in release builds; other build types keep their own level. Code whose speed nobody notices is
# compiled with the light one, which takes about half of the time of -O2: the command line, the launcher, files, and tests.
set(TRAINCTL_LIGHT_OPTIMISATION $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Og>)
set(TRAINCTL_FULL_OPTIMISATION $<$<CONFIG:Release>:-O2>)

# CTest's TIMEOUT of every test, in seconds. It only ends a test that hangs: no test takes a tenth of it on two quiet cores.
set(TRAINCTL_HANG_SECONDS 3000)

# room(<name> SOURCES <globs> [EXCLUDE <patterns>] [ALONE <patterns>] [LIGHT] [FULL <patterns>] [OPTIONS <compile options>]
#      LINKS <libraries>): the static library trainctl_<name> of one room. Sources are globbed: to add an op or a pass, add its
# file. Sources that match ALONE join no group of a unity build. LIGHT compiles the room with the light optimisation, except for
# the sources that match FULL.
# Properties of single files (set_source_files_properties) must be set before this call, because unity builds read them.
function(room name)
  cmake_parse_arguments(ROOM "LIGHT" "" "SOURCES;EXCLUDE;ALONE;FULL;OPTIONS;LINKS" ${ARGN})
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
  if(ROOM_LIGHT)
    list(PREPEND ROOM_OPTIONS ${TRAINCTL_LIGHT_OPTIMISATION})
    set(full "")
    foreach(pattern ${ROOM_FULL})
      set(matching ${sources})
      list(FILTER matching INCLUDE REGEX ${pattern})
      list(FILTER sources EXCLUDE REGEX ${pattern})
      list(APPEND full ${matching})
    endforeach()
    unity_sources(trainctl_${name} SOURCES ${full} NAME full_ OPTIONS ${TRAINCTL_FULL_OPTIMISATION})
  endif()
  unity_sources(trainctl_${name} SOURCES ${sources})
  target_include_directories(trainctl_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(trainctl_${name} PRIVATE ${ROOM_OPTIONS})
  target_link_libraries(trainctl_${name} PUBLIC ${ROOM_LINKS})
endfunction()

# room_tests(<folder> LINKS <libraries> [LABEL <label>] [COST <seconds>] [EXCLUDE <files>] [ALONE <pattern>]
# [LEAVE_OUT <patterns>]): tests/<folder>/*.cpp as one doctest program, with one CTest test per case whose name matches none of
# the patterns. tests/a/b becomes test_a_b. The default label is the folder's name. COST: seconds of the slowest case; CTest starts
# all of the program's cases before tests of lower cost. Sources that match ALONE join no group of a unity build. A case that calls
# skip_test (tests/skip.h) is Skipped. No ';' in a case's name: doctest_discover_tests would split it into two names.
function(room_tests folder)
  cmake_parse_arguments(ROOM "" "LABEL;COST;ALONE" "EXCLUDE;LINKS;LEAVE_OUT" ${ARGN})
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
  if(ROOM_ALONE)
    set(alone ${sources})
    list(FILTER alone INCLUDE REGEX ${ROOM_ALONE})
    list(FILTER sources EXCLUDE REGEX ${ROOM_ALONE})
    target_sources(test_${name} PRIVATE ${alone})
  endif()
  unity_sources(test_${name} SOURCES ${sources})
  target_link_libraries(test_${name} PRIVATE ${ROOM_LINKS} doctest::doctest)
  target_compile_options(test_${name} PRIVATE ${TRAINCTL_LIGHT_OPTIMISATION})
  target_compile_definitions(test_${name} PRIVATE TRAINCTL_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  list(JOIN ROOM_LEAVE_OUT "," left_out)
  set(cost "")
  if(ROOM_COST)
    set(cost COST ${ROOM_COST})
  endif()
  doctest_discover_tests(test_${name} TEST_PREFIX "${name}: " TEST_SPEC "*" "--test-case-exclude=${left_out}"
    PROPERTIES ${cost} TIMEOUT ${TRAINCTL_HANG_SECONDS} LABELS "${ROOM_LABEL}" ENVIRONMENT "OMP_NUM_THREADS=1" SKIP_RETURN_CODE 77)
endfunction()

# family_tests(<program> NAME <rule> CASES <patterns> LABEL <label> [ENVIRONMENT <variables>] [APART <families>]): the test cases that walk the rows of
# every family of ops, as one CTest test per family, so that families run beside each other and a slow one is visible. `@family@` in the rule is
# its name. The slowest families, APART, have a second test for the first of the patterns.
function(family_tests program)
  cmake_parse_arguments(FAMILY "" "NAME;LABEL" "CASES;ENVIRONMENT;APART" ${ARGN})
  set(list ${PROJECT_SOURCE_DIR}/engine/ops/all_ops.def)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
  list(JOIN FAMILY_CASES "," cases)
  file(STRINGS ${list} lines REGEX "^OP_FAMILY")
  foreach(line ${lines})
    string(REGEX REPLACE "^OP_FAMILY\\(([a-z0-9_]+)\\)$" "\\1" family "${line}")
    file(STRINGS ${PROJECT_SOURCE_DIR}/engine/ops/${family}/${family}_cases.cpp rows REGEX "\\.(rows|kernels) =")
    if(NOT rows)  # the rows of other families run its ops
      continue()
    endif()
    string(CONFIGURE "${FAMILY_NAME}" test @ONLY)
    set(tests "${test}")
    if(family IN_LIST FAMILY_APART)
      list(GET FAMILY_CASES 0 first)
      add_test(NAME "${test} (${first})" COMMAND ${program} "--test-case=${first}")
      add_test(NAME "${test}" COMMAND ${program} "--test-case=${cases}" "--test-case-exclude=${first}")
      list(APPEND tests "${test} (${first})")
      set_tests_properties(${tests} PROPERTIES COST 250)
    else()
      add_test(NAME "${test}" COMMAND ${program} "--test-case=${cases}")
    endif()
    set_tests_properties(${tests} PROPERTIES TIMEOUT ${TRAINCTL_HANG_SECONDS} LABELS "${FAMILY_LABEL}" SKIP_RETURN_CODE 77
      ENVIRONMENT "OMP_NUM_THREADS=1;TRAINCTL_OP_CASES=${family};${FAMILY_ENVIRONMENT}")
  endforeach()
endfunction()
