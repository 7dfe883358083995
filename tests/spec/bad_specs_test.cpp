// Jobs that the parser must refuse by itself. Jobs whose errors need shapes or a plan are in tests/bad_specs/plan.
#include "engine/spec/parse.h"
#include "tests/bad_specs/bad_jobs.h"

using namespace trainctl;

TEST_CASE("every bad job gets exactly the errors it asks for, where they are") {
  check_bad_jobs(TRAINCTL_SOURCE_DIR "/tests/bad_specs", 100,
                 [](const std::string& file, const std::vector<std::string>& overrides) { load_job(file, overrides); });
}
