// Overrides on the command line: `a.b=c`.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

const std::string kOverridesJob =
    "dataset: {type: random, shape: [8], label_dtype: f32}\n"
    "network:\n  - {name: fc, type: dense, units: 4}\n  - {name: act.1, type: relu}\n"
    "parallel:\n  mode: semi_auto_parallel\n  strategies: {'f*': [[1, 1], [1, 1]]}\n";

JobSpec with(const std::vector<std::string>& overrides) { return parse_job(kOverridesJob, "job.yaml", overrides); }

std::string overrides_error_of(const std::string& one) {
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

TEST_CASE("an override goes through a shorthand, which becomes its mapping") {
  const JobSpec job = with({"optimizer.learning_rate=0.25", "optimizer.learning_rate.type=cosine", "loss=mse",
                            "loss.input=fc", "parallel.optimizer_shard=1", "parallel.optimizer_shard.min_kb=3"});
  CHECK(job.optimizer.learning_rate.type == "cosine");
  CHECK(job.optimizer.learning_rate.base == 0.25);
  CHECK(job.loss->type == "mse");
  CHECK(job.loss->input == "fc");
  CHECK(job.parallel.optimizer_shard.level == 1);
  CHECK(job.parallel.optimizer_shard.min_kb == 3);
  const PrintSpec print = with({"print=[fc]", "print.every=3"}).print;
  CHECK(print.tensors == std::vector<std::string>{"fc"});
  CHECK(print.every == 3);
  CHECK(with({"optimizer.learning_rate={type: cosine}", "optimizer.learning_rate=0.5"}).optimizer.learning_rate.type ==
        "constant");
}

TEST_CASE("an override reaches a layer by the name that the parser gives it") {
  const std::string job =
      "dataset: {type: random, shape: [8]}\nnetwork:\n  - {type: dense, units: 4}\n  - {type: dense, units: 4}\n";
  CHECK(parse_job(job, "job.yaml", {"network.dense_1.units=6"}).network[1].attrs.integer("units") == 6);
  CHECK(parse_job(job, "job.yaml", {"network.dense.units=6"}).network[0].attrs.integer("units") == 6);
}

TEST_CASE("an override of a layer inside a used module is an error that says to set the module's") {
  const std::string job =
      "dataset: {type: random, shape: [8]}\nmodules: {block: [{name: fc, type: dense, units: 8}]}\n"
      "network: [{module: block, name: h, repeat: 2}]\n";
  CHECK(parse_job(job, "job.yaml", {"modules.block.fc.units=4", "network.h.repeat=1"}).network.size() == 1);
  try {
    parse_job(job, "job.yaml", {"network.h.1.fc.units=4"});
    FAIL("accepted");
  } catch (const SpecError& e) {
    CHECK(std::string(e.what()).find("is a use of the module 'block'; set its layers in the module, for all uses: "
                                     "modules.block.fc.units=") != std::string::npos);
  }
}

TEST_CASE("an override reaches a transform by its name") {
  const std::string job =
      "dataset: {type: mnist, path: data, transforms: [{resize: [28, 28]}, hwc2chw]}\n"
      "network: [{type: dense, units: 8}]\n";
  const JobSpec set = parse_job(job, "job.yaml", {"dataset.transforms.resize=[14, 14]"});
  CHECK(set.dataset.transforms[0].attrs.ints("size") == Ints{14, 14});
}

TEST_CASE("an override without a value is an error, null is the default") {
  for (const char* field : {"train.epochs", "name", "launch.log_dir", "loss", "optimizer", "env.A", "print"}) {
    CAPTURE(field);
    CHECK(overrides_error_of(std::string(field) + "=").find("has an empty value") != std::string::npos);
    CHECK(overrides_error_of(std::string(field) + "=  ").find("has an empty value") != std::string::npos);
  }
  CHECK(overrides_error_of("optimizer={type: adam, eps: }").find("has an empty value") != std::string::npos);
  CHECK(overrides_error_of("train.checkpoint={every_steps:100}").find("write 'every_steps: 100', with a space") !=
        std::string::npos);
  CHECK(overrides_error_of("env.A=").find("\"env.A=''\"") != std::string::npos);
  CHECK(with({"env.A=''"}).env.at("A").empty());
  CHECK(overrides_error_of("name=''").find("not empty") != std::string::npos);
  for (const char* none : {"null", "~", "NULL", " null "}) {
    CAPTURE(none);
    CHECK(with({"train.epochs=7", std::string("train.epochs=") + none}).train.epochs == TrainSpec{}.epochs);
  }
  CHECK(with({"optimizer={type: adam, eps: null}"}).optimizer.type == "adam");
}

TEST_CASE("a field in the wrong section is answered with its own") {
  CHECK(overrides_error_of("ranks=4").find("did you mean 'launch.ranks'?") != std::string::npos);
  CHECK(overrides_error_of("train.batch=4").find("did you mean 'dataset.batch'?") != std::string::npos);
}

TEST_CASE("the later of two overrides wins") { CHECK(with({"seed=3", "seed=4"}).seed == 4); }

TEST_CASE("the error for an override that cannot be applied says which and why") {
  CHECK(overrides_error_of("launch.ranks") ==
        "command line: 'launch.ranks' is not an override (write field=value, e.g. parallel.stages=2)");
  CHECK(overrides_error_of("=3").find("does not name a field") != std::string::npos);
  CHECK(overrides_error_of("launch..ranks=3").find("empty name") != std::string::npos);
  CHECK(overrides_error_of("launch.=3").find("ends in '.'") != std::string::npos);
  CHECK(overrides_error_of("network[9].units=3").find("network has 2 items") != std::string::npos);
  CHECK(overrides_error_of("network[-1].units=3").find("network has 2 items") != std::string::npos);
  CHECK(overrides_error_of("network[x].units=3").find("no index") != std::string::npos);
  CHECK(overrides_error_of("seed[0]=3").find("not a list") != std::string::npos);
  CHECK(overrides_error_of("parallel.mode.x=3").find("parallel.mode is 'semi_auto_parallel', which has no fields") !=
        std::string::npos);
  CHECK(overrides_error_of("print[0]=fc").find("print[0]=fc': print is not set; set the whole list: print=[...]") !=
        std::string::npos);
  CHECK(overrides_error_of("seed=[").find("cannot be read: this is not YAML") != std::string::npos);
  CHECK(overrides_error_of("seed=x").starts_with("command line: seed: must be an integer, not 'x'"));
}
