// Layers with several outputs.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/spec/warnings.h"

using namespace trainctl;

namespace {

const std::string kOutputsData = "dataset: {type: random, shape: [12], label_dtype: f32}\n";

std::string first_error(const std::string& text) {
  try {
    parse_job(kOutputsData + text, "job.yaml");
  } catch (const SpecError& e) {
    const Diagnostic& d = e.diagnostics()[0];
    return std::to_string(d.pos.line) + ":" + std::to_string(d.pos.column) + ": " + d.message +
           (d.hint.empty() ? "" : " (" + d.hint + ")");
  }
  return "no error";
}

}  // namespace

TEST_CASE("several outputs are named by number, or by the field `outputs`") {
  const JobSpec job = parse_job(kOutputsData +
                                    "network:\n"
                                    "  - {name: s, type: split, parts: 3}\n"
                                    "  - {name: a, type: add, inputs: [s.0, s.2]}\n"
                                    "  - {name: t, type: split, sizes: [1, 3], outputs: [small, large]}\n"
                                    "  - {name: b, type: relu, inputs: t.large}\n"
                                    "  - {name: c, type: concat, inputs: [b, t.small]}\n"
                                    "loss: mse\nprint: [s.1, t.small]\n",
                                "j");
  CHECK(job.network[0].output_names() == std::vector<std::string>{"s.0", "s.1", "s.2"});
  CHECK(job.network[1].inputs == std::vector<std::string>{"s.0", "s.2"});
  CHECK(job.network[3].inputs == std::vector<std::string>{"t.large"});
  CHECK(job.print.tensors == std::vector<std::string>{"s.1", "t.small"});
  CHECK(warnings(job).empty());
  const JobSpec again = parse_job(to_yaml(job), "j");
  CHECK(again.network[2].outputs == job.network[2].outputs);
  CHECK(to_yaml(again) == to_yaml(job));
}

TEST_CASE("inside and outside of modules outputs have the names of their layers") {
  const JobSpec job = parse_job(kOutputsData +
                                    "modules:\n"
                                    "  qkv: [{type: split, name: cut, parts: 3, outputs: [q, k, v]}]\n"
                                    "  use: [{type: split, name: cut, parts: 2}, {type: add, inputs: [cut.0, cut.1]}]\n"
                                    "network:\n"
                                    "  - {module: qkv}\n"
                                    "  - {type: add, inputs: [qkv.q, qkv.cut.v]}\n"
                                    "  - {module: use, name: u, repeat: 2}\n"
                                    "  - {type: mul, inputs: [u.0.cut.0, u.0.cut.1]}\n",
                                "j");
  CHECK(job.network[1].inputs == std::vector<std::string>{"qkv.cut.q", "qkv.cut.v"});
  CHECK(job.network[5].inputs == std::vector<std::string>{"u.1.cut.0", "u.1.cut.1"});
  CHECK(job.network[6].inputs == std::vector<std::string>{"u.0.cut.0", "u.0.cut.1"});
}

TEST_CASE("the name of a layer with several outputs is not an output") {
  const std::string split = "network:\n  - {name: s, type: split, parts: 2, outputs: [a, b]}\n";
  CHECK(first_error(split + "  - {type: relu, inputs: [s]}\n") == "4:27: 's' has 2 outputs (name one: s.a, s.b)");
  CHECK(first_error(split + "  - {type: relu}\n") == "4:12: 's' has 2 outputs (name one or more: inputs: [s.a, s.b])");
  CHECK(first_error(split + "  - {type: relu, inputs: s.c}\n") ==
        "4:26: there is no earlier layer 's.c' (did you mean 's.a'?)");
  CHECK(first_error(split + "print: [s]\n") == "4:9: 's' has 2 outputs (name one: s.a, s.b)");
  CHECK(first_error(split + "loss: mse\n") == "4:7: 's' has 2 outputs (name one: s.a, s.b)");
  CHECK(first_error(split + "loss: {type: mse, input: s}\n") == "4:26: 's' has 2 outputs (name one: s.a, s.b)");
  CHECK(first_error(split + "loss: {type: mse, input: s.a}\nparallel: {mode: data_parallel, recompute: [s.a]}\n") ==
        "5:45: 's.a' is an output of layer 's' (name the layer: 's')");
}

TEST_CASE("names of outputs are as many as the outputs, each once") {
  CHECK(first_error("network: [{name: s, type: split, parts: 2, outputs: [a, b, c]}]\n") ==
        "2:53: split has 2 outputs, but 'outputs' lists 3");
  CHECK(first_error("network: [{type: relu, outputs: [a]}]\n") ==
        "2:33: relu has one output, which is named after the layer, but 'outputs' lists 1");
  CHECK(first_error("network: [{name: s, type: split, parts: 2, outputs: [a, a]}]\n") ==
        "2:57: the name 'a' is used twice");
  CHECK(first_error("network: [{name: s, type: split, parts: 2, outputs: [1, 0]}]\n")
            .find("is not a valid name of output 0") != std::string::npos);
}

TEST_CASE("a split has either parts or sizes") {
  CHECK(first_error("network: [{name: s, type: split}]\n").find("split needs 'parts' or 'sizes'") != std::string::npos);
  CHECK(first_error("network: [{name: s, type: split, parts: 2, sizes: [6, 6]}]\n").find("not both") !=
        std::string::npos);
  CHECK(first_error("network: [{name: s, type: split, sizes: [12]}]\n").find("at least 2 sizes") != std::string::npos);
}
