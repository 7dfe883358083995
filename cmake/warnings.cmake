# Warnings are errors, everywhere.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these inside the standard library's own inlined code.
  add_compile_options(-Wno-restrict -Wno-stringop-overflow -Wno-array-bounds -Wno-maybe-uninitialized
                      -Wno-stringop-overread -Wno-dangling-pointer -Wno-missing-field-initializers)
else()
  add_compile_options(-Wno-missing-field-initializers)
endif()

if(TRAINCTL_SANITIZE)
  add_compile_options(-fsanitize=${TRAINCTL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TRAINCTL_SANITIZE})
  if(TRAINCTL_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)
  endif()
endif()
