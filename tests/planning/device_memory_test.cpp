// The memory that a plan promises to GPU ranks besides the arena.
#include <doctest/doctest.h>

#include <string>

#include "engine/planning/compile_job.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

/// Bytes of the data set that a GPU keeps, of 64 images of 8 x 8.
int64_t kept_bytes(const std::string& folder, const std::string& transforms) {
  const std::string text = R"(
dataset: {type: mnist, path: )" +
                           folder + ", batch: 8, label_dtype: f32, transforms: {data: [" + transforms + R"(], label: [{one_hot: 10}]}}
network:
  - {name: flat, type: flatten}
  - {name: out, type: dense, units: 10}
loss: softmax_cross_entropy
launch: {device: cuda}
)";
  return compile(plan_job(parse_job(text, "job.yaml")), 0).memory.data_set;
}

}  // namespace

TEST_CASE("a plan keeps a data set on the GPU unless transforms or mixtures of samples are random") {
  const ScratchFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({64, 8, 8}));
  folder.write("train-labels-idx1-ubyte", idx_bytes({64}));
  CHECK(kept_bytes(folder.path(), "to_float") > 64 * 8 * 8);
  CHECK(kept_bytes(folder.path(), "horizontal_flip, to_float") == 0);
  CHECK(kept_bytes(folder.path(), "to_float, {mixup: {alpha: 0.2}}") == 0);
}
