// Modules and repeats unrolled into one list of layers.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

const std::string kData = "dataset: {type: random, shape: [8], label_dtype: f32}\n";

std::vector<std::string> flat(const JobSpec& job) {
  std::vector<std::string> lines;
  for (const LayerSpec& layer : job.network) {
    std::string line = layer.name + " <-";
    for (const std::string& input : layer.inputs) line += " " + input;
    lines.push_back(line);
  }
  return lines;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("a repeated module is a chain of numbered copies, and its name is the output of the last") {
  const JobSpec job = parse_job(kData +
                                    "modules:\n"
                                    "  block:\n"
                                    "    - {name: fc, type: dense, units: 8}\n"
                                    "    - {name: sum, type: add, inputs: [fc, input]}\n"
                                    "network:\n"
                                    "  - {type: flatten}\n"
                                    "  - {module: block, name: h, repeat: 2}\n"
                                    "  - {name: out, type: relu}\n"
                                    "  - {name: skip, type: add, inputs: [h.0, h.1.fc]}\n"
                                    "  - {name: last, type: add, inputs: [h, data]}\n",
                                "job.yaml");
  CHECK(flat(job) == Lines{"flatten <- data", "h.0.fc <- flatten", "h.0.sum <- h.0.fc flatten", "h.1.fc <- h.0.sum",
                           "h.1.sum <- h.1.fc h.0.sum", "out <- h.1.sum", "skip <- h.0.sum h.1.fc",
                           "last <- h.1.sum data"});
  CHECK(job.network[3].path == "modules.block[0]");
  CHECK(job.position("modules.block[0].units").line == 4);
}

TEST_CASE("a module that is not repeated has no number, and without a name it is named like its module") {
  const JobSpec job = parse_job(
      kData + "modules: {b: [{type: relu}]}\nnetwork: [{module: b}, {module: b}, {module: b, name: z}]\n", "j");
  CHECK(flat(job) == Lines{"b.relu <- data", "b_1.relu <- b.relu", "z.relu <- b_1.relu"});
}

TEST_CASE("modules nest, and `input` inside a module is the module's input") {
  const JobSpec job =
      parse_job(kData +
                    "modules:\n"
                    "  inner: [{type: relu}, {type: add, inputs: [relu, input]}]\n"
                    "  outer: [{type: tanh}, {module: inner, name: i, repeat: 2}, {type: mul, inputs: [i, i.0.relu]}]\n"
                    "network: [{type: relu}, {type: sigmoid}, {module: outer, name: o, inputs: relu}]\n",
                "j");
  CHECK(flat(job) == Lines{"relu <- data", "sigmoid <- relu", "o.tanh <- relu", "o.i.0.relu <- o.tanh",
                           "o.i.0.add <- o.i.0.relu o.tanh", "o.i.1.relu <- o.i.0.add",
                           "o.i.1.add <- o.i.1.relu o.i.0.add", "o.mul <- o.i.1.add o.i.0.relu"});
}

TEST_CASE("a share inside a module refers to the same copy, else to the network") {
  const JobSpec job =
      parse_job(kData +
                    "modules:\n"
                    "  b: [{name: a, type: dense, units: 8}, {name: c, type: dense, units: 8, share: a},\n"
                    "      {name: d, type: dense, units: 8, share: top}]\n"
                    "network: [{name: top, type: dense, units: 8}, {module: b, name: h, repeat: 2}]\n",
                "j");
  CHECK(job.network[2].attrs.text("share") == "h.0.a");
  CHECK(job.network[5].attrs.text("share") == "h.1.a");
  CHECK(job.network[6].attrs.text("share") == "top");
}

TEST_CASE("patterns choose layers of modules") {
  const std::string text = kData +
                           "modules: {b: [{name: fc, type: dense, units: 8}]}\n"
                           "network: [{module: b, name: h, repeat: 3}]\n";
  CHECK_NOTHROW(parse_job(text + "parallel: {mode: data_parallel, recompute: ['h.*.fc', h.0.fc, 'h.?.fc']}\n", "j"));
  CHECK_THROWS_AS(parse_job(text + "parallel: {mode: data_parallel, recompute: ['h.*.fd']}\n", "j"), SpecError);
  CHECK_THROWS_AS(parse_job(text + "parallel: {mode: data_parallel, recompute: [h.3.fc]}\n", "j"), SpecError);
}

TEST_CASE("ten thousand layers are allowed, one more is not") {
  const std::string text = kData + "modules: {b: [{type: relu}]}\nnetwork: [{module: b, repeat: 10000}";
  CHECK(parse_job(text + "]\n", "j").network.size() == 10000);
  CHECK_THROWS_WITH_AS(parse_job(text + ", {type: relu}]\n", "j"), doctest::Contains("more than 10000 layers"),
                       SpecError);
}
