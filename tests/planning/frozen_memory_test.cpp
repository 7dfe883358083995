// The memory that frozen weights take in a plan.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/planning/compile_job.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

/// A job with the shape of Llama 3 8B, 4,096 tokens, and adapters of rank 16.
Memory memory_of_8b(const std::string& frozen_type) {
  const JobSpec spec = job_spec(
      "llama",
      {"vars={layers: 32, heads: 32, kv_heads: 8, d: 4096, hidden: 14336, length: 4096, vocab: 128256}",
       "dataset.batch=1", "dataset.samples=8", "precision=bf16", "launch.device=cuda", "parallel.recompute=['h.*']",
       "weights={from: base, map: llama}", "train.frozen_type=" + frozen_type,
       "adapters={lora: {layers: ['h.*.qkv', 'h.*.proj', 'h.*.gate', 'h.*.up', 'h.*.down'], rank: 16, alpha: 32}}"});
  return compile(plan_job(spec), 0).memory;
}

constexpr double kGiB = 1024.0 * 1024 * 1024;

}  // namespace

TEST_CASE("adapters beside 8 billion weights in 4 bits take less than 12 GiB, and in 16 bits what the weights need") {
  const Memory in_4 = memory_of_8b("nf4"), in_16 = memory_of_8b("same");
  constexpr double kInBlocks = 32 * (4096.0 * 6144 + 4096.0 * 4096 + 3 * 4096.0 * 14336);  // elements
  CHECK(static_cast<double>(in_4.total()) < 12 * kGiB);
  CHECK(static_cast<double>(in_16.weights - in_4.weights) ==
        doctest::Approx(kInBlocks * (16 - 4.5) / 8).epsilon(0.001));
  // An unpacked weight exists around its product.
  CHECK(in_4.activations > in_16.activations);
  CHECK(static_cast<double>(in_4.activations - in_16.activations) < 0.5 * kGiB);
}
