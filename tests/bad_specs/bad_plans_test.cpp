// tests/bad_specs/plan: jobs that read well, but whose shapes or plan cannot be.
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/spec/parse.h"
#include "tests/bad_specs/bad_jobs.h"

using namespace trainctl;

TEST_CASE("a job whose shapes or plan cannot be gets exactly the errors it asks for") {
  check_bad_jobs(TRAINCTL_SOURCE_DIR "/tests/bad_specs/plan", 20,
                 [](const std::string& file, const std::vector<std::string>& overrides) {
                   const JobSpec job = load_job(file, overrides);
                   const DataShapes data = data_and_label(job.dataset.shape, job.dataset.label_shape,
                                                          job.dataset.dtype == "i32", job.dataset.label_dtype == "i32");
                   make_plan(build_graph(job, data), job, CostModel());
                 });
}
