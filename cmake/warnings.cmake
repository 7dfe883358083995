# Warnings are errors, everywhere.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra> $<$<COMPILE_LANGUAGE:CXX>:-Wpedantic>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wshadow> $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
if(TRAINCTL_WITH_CUDA)  # nvcc generates host code that -Wpedantic rejects
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror;--expt-relaxed-constexpr;-Xcompiler=-fPIC>")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these inside inlined code of the standard library.
  set(quiet -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds -Wno-maybe-uninitialized
            -Wno-stringop-overread -Wno-dangling-pointer -Wno-free-nonheap-object -Wno-missing-field-initializers)
  if(TRAINCTL_UNITY)  # GCC tells a source from a header by the main file, which is the group in a unity build
    list(APPEND quiet -Wno-subobject-linkage)
  endif()
else()
  set(quiet -Wno-missing-field-initializers)
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${quiet}>")

if(TRAINCTL_SANITIZE)
  add_compile_options(-fsanitize=${TRAINCTL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TRAINCTL_SANITIZE})
  add_compile_definitions(TRAINCTL_SANITIZED)
  if(TRAINCTL_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)
  endif()
endif()
