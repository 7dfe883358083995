// Overrides on the command line: `a.b=c`.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

const std::string kJob =
    "dataset: {type: random, shape: [8], label_dtype: f32}\n"
    "network:\n  - {name: fc, type: dense, units: 4}\n  - {name: act.1, type: relu}\n"
    "parallel:\n  mode: semi_auto_parallel\n  strategies: {'f*': [[1, 1], [1, 1]]}\n";

JobSpec with(const std::vector<std::string>& overrides) { return parse_job(kJob, "job.yaml", overrides); }

std::string error_of(const std::string& one) {
  try {
    with({one});
  } catch (const SpecError& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("an override sets a field, and creates missing sections") {
  const JobSpec job = with({"launch.ranks=4", "parallel.stages=2", "name=other", "optimizer.learning_rate.base=0.5"});
  CHECK(job.launch.ranks == 4);
  CHECK(job.parallel.stages == 2);
  CHECK(job.name == "other");
  CHECK(job.optimizer.learning_rate.base == 0.5);
  CHECK(job.parallel.mode == ParallelMode::semi_auto_parallel);
}

TEST_CASE("the value of an override is YAML") {
  const JobSpec job = with({"dataset.shape=[2, 3]", "optimizer={type: adam, eps: 1e-6}", "print=[fc]", "loss=mae"});
  CHECK(job.dataset.shape == Ints{2, 3});
  CHECK(job.optimizer.type == "adam");
  CHECK(job.optimizer.attrs.number("eps") == 1e-6);
  CHECK(job.print.tensors.size() == 1);
  CHECK(job.loss->type == "mae");
  CHECK(with({"parallel.strategies=null"}).parallel.strategies.empty());
}

TEST_CASE("items of lists go by index and by name, dots in a name included") {
  CHECK(with({"network[0].units=8"}).network[0].attrs.integer("units") == 8);
  CHECK(with({"network.fc.units=8"}).network[0].attrs.integer("units") == 8);
  CHECK(with({"network.act.1.type=tanh"}).network[1].type == "tanh");
  CHECK(with({"dataset.shape[0]=3"}).dataset.shape == Ints{3});
}

TEST_CASE("a key with dots or stars is taken whole") {
  CHECK(with({"parallel.strategies.f*=[[2, 1], [1, 1]]"}).parallel.strategies[0].cuts[0] == Ints{2, 1});
  const JobSpec job = with({"parallel.strategies.act.*=[[2, 1]]"});
  REQUIRE(job.parallel.strategies.size() == 2);
  CHECK(job.parallel.strategies[1].pattern == "act.*");
}

TEST_CASE("the later of two overrides wins") { CHECK(with({"seed=3", "seed=4"}).seed == 4); }

TEST_CASE("the error for an override that cannot be applied says which and why") {
  CHECK(error_of("launch.ranks") ==
        "command line: 'launch.ranks' is not an override (write field=value, e.g. parallel.stages=2)");
  CHECK(error_of("=3").find("names no field") != std::string::npos);
  CHECK(error_of("launch..ranks=3").find("empty name") != std::string::npos);
  CHECK(error_of("launch.=3").find("ends in '.'") != std::string::npos);
  CHECK(error_of("network[9].units=3").find("network has 2 items") != std::string::npos);
  CHECK(error_of("network[-1].units=3").find("network has 2 items") != std::string::npos);
  CHECK(error_of("network[x].units=3").find("no index") != std::string::npos);
  CHECK(error_of("seed[0]=3").find("not a list") != std::string::npos);
  CHECK(error_of("parallel.mode.x=3").find("parallel.mode is 'semi_auto_parallel', which has no fields") !=
        std::string::npos);
  CHECK(error_of("seed=[").find("cannot be read: this is not YAML") != std::string::npos);
  CHECK(error_of("seed=x") == "command line: seed: must be an integer, not 'x'");
}
