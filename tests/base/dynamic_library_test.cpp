// Libraries that are opened at first use.
#include "engine/base/dynamic_library.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/base/error.h"

using namespace trainctl;

TEST_CASE("the first existing library of a list of names is opened, and its functions can be called") {
  const DynamicLibrary math("the math library", {"libnowhere.so.9", "libm.so.6"});
  double (*cube_root)(double) = nullptr;
  math.bind(cube_root, "cbrt");
  CHECK(cube_root(27.0) == doctest::Approx(3.0));
  CHECK(math.path().find("libm.so.6") != std::string::npos);
  CHECK(math.has("cbrt"));
  CHECK_FALSE(math.has("cbrt_of_the_future"));
}

TEST_CASE("if no library can be opened, the error names all that were tried, and what to do") {
  CHECK_THROWS_WITH_AS(DynamicLibrary("NCCL", {"libnowhere.so.2", "libnowhere.so"}),
                       doctest::Contains("cannot open NCCL: libnowhere.so.2: cannot open shared object file"),
                       EnvError);
  CHECK_THROWS_WITH_AS(DynamicLibrary("NCCL", {"libnowhere.so.2", "libnowhere.so"}),
                       doctest::Contains("TRAINCTL_CUDA_LIBRARY_PATH"), EnvError);
}

TEST_CASE("the error for a missing function names it and the library's file") {
  const DynamicLibrary math("the math library", {"libm.so.6"});
  void (*missing)() = nullptr;
  CHECK_THROWS_WITH_AS(math.bind(missing, "cbrt_of_the_future"),
                       doctest::Contains("the math library has no cbrt_of_the_future"), EnvError);
}
