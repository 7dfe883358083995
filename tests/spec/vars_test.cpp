// Vars, the arguments of modules, conditions and the index of a repeat.
#include <doctest/doctest.h>

#include <fstream>

#include "engine/base/error.h"
#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

const std::string kVarsData = "dataset: {type: random, shape: [8], label_dtype: f32}\n";

std::vector<std::string> vars_flat(const JobSpec& job) {
  std::vector<std::string> lines;
  for (const LayerSpec& layer : job.network) {
    std::string line = layer.name + " <-";
    for (const std::string& input : layer.inputs) line += " " + input;
    if (layer.attrs.has("units")) line += " units " + std::to_string(layer.attrs.integer("units"));
    lines.push_back(line);
  }
  return lines;
}

using Lines = std::vector<std::string>;

std::string first_vars_error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_job(text, "job.yaml", overrides);
  } catch (const SpecError& e) {
    const Diagnostic& d = e.diagnostics()[0];
    return std::to_string(d.pos.line) + ":" + std::to_string(d.pos.column) + ": " + d.message +
           (d.hint.empty() ? "" : " (" + d.hint + ")");
  }
  return "no error";
}

}  // namespace

TEST_CASE("an expression stands for a number in any field, and in lists and flow mappings without quotes") {
  const JobSpec job = parse_job(
      "vars: {d: 8, batch: '${2*8}', big: ${d > 4}}\n"
      "name: width_${d}\n"
      "dataset: {type: random, shape: [${d}, ${d//2}], batch: ${4*d}, label_dtype: f32, shuffle: ${not big}}\n"
      "network:\n"
      "  - {name: fc_${d}, type: dense, units: ${4*d}}\n"
      "  - type: dense\n"
      "    units: ${d//2}\n"
      "    init: {type: normal, std: ${1/d}}\n"
      "optimizer: {learning_rate: \"${0.1/d}\"}\n"
      "parallel: {max_memory: '${d}GB'}\n",
      "j");
  CHECK(job.name == "width_8");
  CHECK(job.dataset.shape == Ints{8, 4});
  CHECK(job.dataset.batch == 32);
  CHECK_FALSE(job.dataset.shuffle);
  CHECK(job.network[0].name == "fc_8");
  CHECK(job.network[0].attrs.integer("units") == 32);
  CHECK(job.network[1].attrs.integer("units") == 4);
  CHECK(job.network[1].attrs.number("init.std") == 0.125);
  CHECK(job.optimizer.learning_rate.base == 0.0125);
  CHECK(job.parallel.max_memory == 8'000'000'000);
}

TEST_CASE("an expression may be a key: stages by pattern depend on the number of layers") {
  const JobSpec job = parse_job("vars: {n: 4}\n" + kVarsData +
                                    "modules: {b: [{type: relu}]}\n"
                                    "network: [{module: b, name: h, repeat: ${n}}]\n"
                                    "parallel: {mode: data_parallel, stages: 2, stage_config: {'h.${n//2}.*': 1}}\n"
                                    "launch: {ranks: 2}\n",
                                "j");
  REQUIRE(job.parallel.stage_config.size() == 1);
  CHECK(job.parallel.stage_config[0].pattern == "h.2.*");
}

TEST_CASE("a var may use those before it, and is overridden by name") {
  const std::string text = "vars:\n  d: 4\n  ff: ${4*d}\n" + kVarsData + "network: [{type: dense, units: ${ff}}]\n";
  CHECK(parse_job(text, "j").network[0].attrs.integer("units") == 16);
  CHECK(parse_job(text, "j", {"vars.d=32"}).network[0].attrs.integer("units") == 128);
  CHECK(parse_job(text, "j", {"vars.ff=${d}"}).network[0].attrs.integer("units") == 4);
  CHECK(parse_job(text, "j", {"network.dense.units=${d + 1}"}).network[0].attrs.integer("units") == 5);
  CHECK(first_vars_error(text, {"vars.dd=3"}) ==
        "0:0: 'vars.dd=3': the job has no var with that name; did you mean "
        "'d'?");
}

TEST_CASE("a variable in quotes is text and not a number") {
  CHECK(first_vars_error("vars: {d: '8'}\n" + kVarsData + "network: [{type: dense, units: ${d}}]\n")
            .find("must be an integer") != std::string::npos);
  CHECK(parse_job("vars: {act: tanh}\n" + kVarsData + "network: [{type: ${act}}]\n", "j").network[0].type == "tanh");
}

TEST_CASE("an error in an expression is at its place in the value") {
  CHECK(first_vars_error("vars: {d: 4}\n" + kVarsData + "network:\n  - {name: e, type: dense, units: ${4*dd}}\n") ==
        "4:39: unknown name 'dd' (did you mean 'd'?)");
  CHECK(first_vars_error("vars: {d: 4}\n" + kVarsData + "network:\n  - {name: a${d}b${c}, type: relu}\n") ==
        "4:20: unknown name 'c' (defined names: d)");
  CHECK(first_vars_error("vars: {d: 4}\n" + kVarsData + "network:\n  - {name: \"a${d}b${c}\", type: relu}\n") ==
        "4:21: unknown name 'c' (defined names: d)");
  CHECK(first_vars_error("vars: {d: 4}\nname: ü ${d//0}\n") == "2:12: division by zero");
}

TEST_CASE("a command keeps its ${…}: they belong to its shell") {
  const JobSpec job = parse_job("command: [sh, -c, 'echo ${RANK}', ${X}]\nenv: {A: '${HOME}/a'}\n", "j");
  CHECK(job.command == std::vector<std::string>{"sh", "-c", "echo ${RANK}", "${X}"});
  CHECK(job.env.at("A") == "${HOME}/a");
  CHECK(parse_job(to_yaml(job), "j").command == job.command);
}

TEST_CASE("the resolved job has values in place of expressions, and reads as the same job") {
  const JobSpec job = parse_job("vars: {d: 8}\nname: cost $${d}\n" + kVarsData +
                                    "modules: {b: {args: {w: 2}, layers: [{type: dense, units: ${w*d}}]}}\n"
                                    "network: [{module: b, name: h, repeat: 2, index: i, with: {w: ${i+1}}}]\n",
                                "j");
  const std::string yaml = to_yaml(job);
  CHECK(yaml.find("vars") == std::string::npos);
  const JobSpec again = parse_job(yaml, "j");
  CHECK(again.name == "cost ${d}");
  CHECK(vars_flat(again) == vars_flat(job));
  CHECK(to_yaml(again) == yaml);
}

TEST_CASE("a module has arguments with defaults, which may use vars and earlier arguments") {
  const JobSpec job = parse_job("vars: {d: 8}\n" + kVarsData +
                                    "modules:\n"
                                    "  mlp:\n"
                                    "    args: {width: , hidden: ${4*width}, out: ${d}}\n"
                                    "    layers:\n"
                                    "      - {name: up, type: dense, units: ${hidden}}\n"
                                    "      - {name: down, type: dense, units: ${out}}\n"
                                    "network:\n"
                                    "  - {module: mlp, name: a, with: {width: 2}}\n"
                                    "  - {module: mlp, name: b, with: {width: ${d//2}, out: 3}}\n",
                                "j");
  CHECK(vars_flat(job) ==
        Lines{"a.up <- data units 8", "a.down <- a.up units 8", "b.up <- a.down units 16", "b.down <- b.up units 3"});
}

TEST_CASE("the index of a repeat is in reach of its arguments and of the module") {
  const JobSpec job = parse_job(kVarsData +
                                    "modules:\n"
                                    "  b: {args: {w: 1}, layers: [{name: 'fc${i}', type: dense, units: ${w + 10*i}}]}\n"
                                    "network: [{module: b, name: h, repeat: 3, index: i, with: {w: ${2*i + 1}}}]\n",
                                "j");
  CHECK(vars_flat(job) ==
        Lines{"h.0.fc0 <- data units 1", "h.1.fc1 <- h.0.fc0 units 13", "h.2.fc2 <- h.1.fc1 units 25"});
}

TEST_CASE("modules with arguments nest, and each sees only its own names") {
  const std::string inner = "  inner: {args: {w: 1}, layers: [{type: dense, units: ${w}}]}\n";
  const JobSpec job =
      parse_job(kVarsData + "modules:\n" + inner +
                    "  outer: {args: {n: 2, w: 7}, layers: [{module: inner, repeat: ${n}, with: {w: ${2*w}}}, "
                    "{module: inner}]}\n"
                    "network: [{module: outer, with: {n: 1}}]\n",
                "j");
  CHECK(vars_flat(job) ==
        Lines{"outer.inner.0.dense <- data units 14", "outer.inner_1.dense <- outer.inner.0.dense units 1"});
  CHECK(first_vars_error(kVarsData + "modules:\n  inner: [{type: dense, units: ${w}}]\n" +
                         "  outer: {args: {w: 7}, layers: [{module: inner}]}\nnetwork: [{module: outer}]\n")
            .starts_with("3:34: unknown name 'w'"));
}

TEST_CASE("a layer whose `if` is false is left out, and its readers read its input") {
  const std::string text =
      kVarsData +
      "modules:\n"
      "  block:\n"
      "    args: {width: 8, stride: 1}\n"
      "    layers:\n"
      "      - {name: fc, type: dense, units: ${8*width//8}}\n"
      "      - {name: down, type: dense, if: ${stride != 1 or width != 8}, inputs: input, units: ${width}}\n"
      "      - {name: norm, type: layer_norm, if: ${stride != 1 or width != 8}}\n"
      "      - {name: sum, type: add, inputs: [fc, norm]}\n"
      "network:\n"
      "  - {module: block, name: a}\n"
      "  - {module: block, name: b, with: {stride: 2}}\n";
  CHECK(vars_flat(parse_job(text, "j")) == Lines{"a.fc <- data units 8", "a.sum <- a.fc data", "b.fc <- a.sum units 8",
                                                 "b.down <- a.sum units 8", "b.norm <- b.down",
                                                 "b.sum <- b.fc b.norm"});
}

TEST_CASE("expressions of omitted layers are not evaluated") {
  const JobSpec job =
      parse_job("vars: {n: 0}\n" + kVarsData +
                    "network: [{type: relu}, {name: x, type: dense, if: ${n > 0}, units: ${8//n}}, {type: tanh}]\n",
                "j");
  CHECK(vars_flat(job) == Lines{"relu <- data", "tanh <- relu"});
}

TEST_CASE("a module may have several inputs by name, and in a repeat the first is the copy before") {
  const JobSpec job =
      parse_job(kVarsData +
                    "modules:\n"
                    "  join: {inputs: [x, memory], layers: [{type: relu}, {type: add, inputs: [relu, memory]}, "
                    "{type: mul, inputs: [add, x]}]}\n"
                    "network: [{type: tanh}, {module: join, name: j, repeat: 2, inputs: [tanh, data]}]\n",
                "j");
  CHECK(vars_flat(job) == Lines{"tanh <- data", "j.0.relu <- tanh", "j.0.add <- j.0.relu data",
                                "j.0.mul <- j.0.add tanh", "j.1.relu <- j.0.mul", "j.1.add <- j.1.relu data",
                                "j.1.mul <- j.1.add j.0.mul"});
}

TEST_CASE("an error that comes from an argument names the place in the module and its use") {
  const std::string text = kVarsData +
                           "modules:\n"
                           "  b: {args: {w: }, layers: [{type: dense, units: ${w - 4}}]}\n"
                           "network:\n"
                           "  - {module: b, with: {w: 8}}\n"
                           "  - {module: b, with: {w: 3}}\n";
  CHECK(first_vars_error(text) == "3:50: must be at least 1, not -1 (module 'b' is used in line 6 with w: 3)");
}

TEST_CASE("copies of large modules are limited in number") {
  std::string layers;
  for (int i = 0; i < 500; ++i) layers += "{type: relu, name: 'r${" + std::to_string(i) + "}'}, ";
  const std::string text = kVarsData + "modules:\n  a: [" + layers + "]\n" +
                           "  b: [{module: a, repeat: 100, index: i}]\n  c: [{module: b, repeat: 100, index: i}]\n" +
                           "network: [{module: c, repeat: 100, index: i}]\n";
  CHECK(first_vars_error(text).find("more than") != std::string::npos);
}
