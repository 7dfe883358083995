// Any number of ranks, and tensors larger than any machine: what can be planned, and how the rest is refused.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/plan/axes/shard_limits.h"
#include "tests/compile/jobs.h"
#include "tests/compile/sketch.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;
using Words = std::vector<std::string>;

namespace {

std::string spec_error(const std::string& text, const std::vector<std::string>& overrides) {
  try {
    const Job j = job(parse_job(text, "job.yaml", overrides));
    for (int stage = 0; stage < j.plan.num_stages; ++stage)
      (void)compile(j.graph, j.plan, CostModel(), stage * j.plan.mesh.size());
  } catch (const SpecError& error) {
    const Diagnostic& first = error.diagnostics().front();
    CHECK_FALSE(first.path.empty());  // a value given on the command line has no other position
    return std::to_string(first.pos.line) + ":" + std::to_string(first.pos.column) + ": " + first.path + ": " +
           first.message + " (" + first.hint + ")";
  }
  return "";
}

}  // namespace

TEST_CASE("any number of ranks that the field allows is planned and compiled, or is an error with a position") {
  // 2^16 has the most axes, 65,521 is the largest prime, 30,030 and 46,656 have axes of several sizes.
  int compiled = 0, refused = 0;
  for (const int ranks : {1, 2, 97, 4096, 16384, 30030, 32768, 46656, 65521, 65535, 65536, 65537, 100000}) {
    for (const std::string mode : {"data_parallel", "semi_auto_parallel", "hybrid_parallel", "stand_alone"}) {
      for (const std::string batch : {"65536", "48", "1000"}) {
        for (const std::string stages : {"1", "2"}) {
          const Words overrides = {"parallel.mode=" + mode, "launch.ranks=" + std::to_string(ranks),
                                   "dataset.batch=" + batch, "parallel.stages=" + stages};
          std::string said;
          for (const std::string& o : overrides) said += o + " ";
          CAPTURE(said);
          try {
            const std::string error = spec_error(job_text("norms"), overrides);
            ++(error.empty() ? compiled : refused);
          } catch (const std::exception& other) {
            FAIL_CHECK("not an error in the job: " << other.what());
          }
        }
      }
    }
  }
  MESSAGE(compiled << " compiled, " << refused << " refused");
  CHECK(compiled > 50);
  CHECK(refused > 50);
}

TEST_CASE("a contraction that is cut 65,536 ways is summed and scattered") {
  const Job j = job(parse_job(R"(
dataset: {type: random, shape: [65536], label_dtype: f32, label_shape: [2], batch: 65536}
network:
  - {name: a, type: dense, units: 2, bias: false}
  - {name: act, type: relu}
loss: mse
optimizer: {type: sgd, learning_rate: 0.1}
parallel: {mode: semi_auto_parallel, strategies: {a: [[1, 65536], [1, 65536]], act: [[65536, 1]]}}
launch: {ranks: 65536}
)",
                              "job.yaml", {}));
  CHECK(j.plan.mesh.num_axes() == 16);
  const Program p = compile(j.graph, j.plan, CostModel(), 40000);
  std::vector<Collective> forward;
  for (const Instruction* i : collectives(p, Purpose::redistribute))
    if (i->phase == Phase::forward) forward.push_back(i->collective);
  CHECK(forward == std::vector<Collective>{Collective::reduce_scatter});
}

namespace {

const std::string kLanguageModel = R"(
dataset: {type: random, shape: [1024], dtype: i32, label_shape: [1024], label_dtype: i32, classes: 50257, batch: 65536}
network:
  - {name: e, type: embedding, vocab: 50257, units: 768}
  - {name: head, type: dense, units: 50257, bias: false}
loss: softmax_cross_entropy
optimizer: {type: adamw, learning_rate: 0.001}
)";

}  // namespace

TEST_CASE("a whole tensor may be far larger than any machine: only the part on one rank is limited") {
  const Words data_parallel = {"parallel.mode=data_parallel", "launch.ranks=1024"};
  const Job j = job(parse_job(kLanguageModel, "job.yaml", data_parallel));
  const TensorId logits = j.graph.find_tensor("head").value();
  CHECK(num_elements(j.graph.tensors[logits].shape) == int64_t{65536} * 1024 * 50257);
  const Program p = compile(j.graph, j.plan, CostModel(), 1023);
  CHECK(p.arena_bytes > int64_t{64} * 1024 * 50257 * 4);
  CHECK(p.arena_bytes < int64_t{64} * 1024 * 50257 * 4 * 4);
}

TEST_CASE("too large a part of a tensor is refused at the layer, with the ranks and what to change") {
  const std::string two = spec_error(kLanguageModel, {"parallel.mode=data_parallel", "launch.ranks=2"});
  CHECK(two.starts_with("5:5: network: layer head: "));
  CHECK(two.find("head is [65536, 1024, 50257]; each of the ranks 0 to 1 would store [32768, 1024, 50257] of it, 6.1 "
                 "TiB, but a rank can store at most 4.0 TiB of one tensor") != std::string::npos);
  CHECK(two.find("increase launch.ranks") != std::string::npos);
  CHECK(spec_error(kLanguageModel, {"launch.ranks=1"}).find("rank 0 would store all of it, 12.3 TiB") !=
        std::string::npos);
}

TEST_CASE("an arena that is too large is refused at the layer of its largest tensor") {
  std::string text = "dataset: {type: random, shape: [1024], label_dtype: f32, label_shape: [1024], batch: 1048576}\n";
  text += "network:\n";
  for (int i = 0; i < 40; ++i) text += "  - {name: l" + std::to_string(i) + ", type: dense, units: 1048576}\n";
  text += "  - {name: last, type: dense, units: 1024}\nloss: mse\n";
  const std::string error = spec_error(text, {});
  CHECK(error.starts_with("3:5: layer l0: rank 0 would need "));
  CHECK(error.find("but a rank can use at most 64.0 TiB; the largest tensor is ") != std::string::npos);
  CHECK(error.find("4.0 TiB (reduce dataset.batch, or increase parallel.micro_batches") != std::string::npos);
  CHECK(kMaxArenaBytes == int64_t{64} << 40);
}
