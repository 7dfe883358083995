// dump_job JOB.yaml FOLDER [OVERRIDE ...]: writes what another program needs to train a job of one rank:
//   job.json: network, loss, optimizer, seed, micro-batches, steps of the run
//   <parameter>.npy before the first step; data.npy and label.npy [steps, batch, …]
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/ops/optimizer_def.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/initial_weights.h"
#include "engine/spec/adapters.h"
#include "engine/spec/parse.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/order.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/trainer/trainer.h"
#include "tests/equivalence/jax/npy.h"

namespace trainctl {
namespace {

using Json = nlohmann::json;

Json attrs_json(const Attrs& attrs) {
  Json json = Json::object();
  for (const auto& [name, value] : attrs) std::visit([&](const auto& v) { json[name] = v; }, value);
  return json;
}

/// Null: no adapters.
Json lora_json(const JobSpec& spec) {
  if (!spec.adapters.lora) return nullptr;
  const LoraSpec& lora = *spec.adapters.lora;
  return {{"factor", adapter_factor(lora)}, {"dropout", lora.dropout}};
}

std::vector<std::string> frozen_parameters(const Graph& graph) {
  std::vector<std::string> names;
  for (const Tensor& tensor : graph.tensors)
    if (tensor.frozen) names.push_back(tensor.name);
  return names;
}

Json job_json(const PlannedJob& job, int64_t steps) {
  const JobSpec& spec = job.spec;
  Json layers = Json::array();
  for (const LayerSpec& layer : spec.network) {
    layers.push_back({{"name", layer.name},
                      {"type", layer.type},
                      {"inputs", layer.inputs},
                      {"outputs", layer.outputs},
                      {"attrs", attrs_json(layer.attrs)}});
  }
  const ScheduleSpec& rate = spec.optimizer.learning_rate;
  Json optimizer = attrs_json(Optimizer(spec.optimizer.type, spec.optimizer.attrs).settings);
  optimizer["type"] = spec.optimizer.type;
  optimizer["learning_rate"] = {{"type", rate.type},
                                {"base", rate.base},
                                {"warmup_steps", rate.warmup_steps},
                                {"total_steps", rate.total_steps},
                                {"min", rate.min},
                                {"step_size", rate.step_size},
                                {"gamma", rate.gamma}};
  optimizer["clip_norm"] = spec.optimizer.clip_norm;
  optimizer["groups"] = Json::array();
  for (const ParameterGroup& group : spec.optimizer.groups) {
    optimizer["groups"].push_back({{"patterns", group.patterns},
                                   {"settings", attrs_json(group.attrs)},
                                   {"learning_rate_scale", group.learning_rate_scale}});
  }
  return {{"network", layers},
          {"loss", spec.loss->type},
          {"loss_attrs", attrs_json(spec.loss->attrs)},
          {"loss_input", spec.loss->input},
          {"seed", spec.seed},
          {"micro_batches", spec.parallel.micro_batches},
          {"steps", steps},
          {"lora", lora_json(spec)},
          {"frozen", frozen_parameters(job.graph)},
          {"optimizer", optimizer}};
}

void dump_weights(const Program& program, uint64_t seed, const std::string& folder) {
  for (const Variable& variable : program.variables) {
    std::vector<float> values(static_cast<size_t>(num_elements(variable.global_shape)));
    initial_values(variable.name, variable.init, seed, 0, static_cast<int64_t>(values.size()), values.data());
    write_npy(folder + "/" + variable.name + ".npy", "<f4", variable.global_shape, values.data());
  }
}

/// Writes the batches of all steps; returns the number of steps.
int64_t dump_batches(const JobSpec& spec, const std::string& folder) {
  const auto set = open_dataset(spec.dataset, spec.seed);
  SampleOrder order(spec.dataset, set->size(), spec.seed);
  const int64_t steps = total_steps(spec.train, order.steps_per_epoch());
  for (const SampleField& field : set->fields()) {
    const int64_t elements = field.elements();
    std::vector<float> values(static_cast<size_t>(steps * spec.dataset.batch * elements));
    float* at = values.data();
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t sample : order.batch(step / order.steps_per_epoch(), step % order.steps_per_epoch())) {
        set->read(field.name, sample, at);
        at += elements;
      }
    }
    Shape shape = field.shape;
    shape.insert(shape.begin(), {steps, spec.dataset.batch});
    write_npy(folder + "/" + field.name + ".npy", field.is_integer ? "<i4" : "<f4", shape, values.data());
  }
  return steps;
}

void dump_job(const std::string& job_file, const std::string& folder, const std::vector<std::string>& overrides) {
  const PlannedJob job = plan_job(load_job(job_file, overrides));
  dump_weights(compile_all(job)[0], job.spec.seed, folder);
  const int64_t steps = dump_batches(job.spec, folder);
  std::ofstream file(folder + "/job.json");
  if (!(file << job_json(job, steps).dump(1)).flush()) throw EnvError("cannot write " + folder + "/job.json");
}

}  // namespace
}  // namespace trainctl

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: dump_job JOB.yaml FOLDER [OVERRIDE ...]\n", stderr);
    return 2;
  }
  try {
    trainctl::dump_job(argv[1], argv[2], {argv + 3, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dump_job: %s\n", error.what());
    return 1;
  }
  return 0;
}
