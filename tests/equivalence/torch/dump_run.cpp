// dump_run JOB.yaml FOLDER: trains a job on one rank and writes all that PyTorch needs to do the same:
//   job.json (network, loss, optimizer), <parameter>.npy before the first step,
//   data.npy and label.npy [steps, batch, …], losses.npy [steps]
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/runtime/initial_weights.h"
#include "engine/spec/parse.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/order.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/torch/npy.h"

namespace trainctl {
namespace {

using Json = nlohmann::json;

Json attrs_json(const Attrs& attrs) {
  Json json = Json::object();
  for (const auto& [name, value] : attrs) std::visit([&](const auto& v) { json[name] = v; }, value);
  return json;
}

Json job_json(const JobSpec& spec) {
  Json layers = Json::array();
  for (const LayerSpec& layer : spec.network) {
    layers.push_back(
        {{"name", layer.name}, {"type", layer.type}, {"inputs", layer.inputs}, {"attrs", attrs_json(layer.attrs)}});
  }
  Json optimizer = attrs_json(spec.optimizer.attrs);
  optimizer["type"] = spec.optimizer.type;
  optimizer["learning_rate"] = spec.optimizer.learning_rate.base;
  optimizer["clip_norm"] = spec.optimizer.clip_norm;
  return {{"network", layers}, {"loss", spec.loss->type}, {"loss_input", spec.loss->input}, {"optimizer", optimizer}};
}

void dump_weights(const Program& program, uint64_t seed, const std::string& folder) {
  for (const Variable& variable : program.variables) {
    std::vector<float> values(static_cast<size_t>(num_elements(variable.global_shape)));
    initial_values(variable.name, variable.init, seed, 0, static_cast<int64_t>(values.size()), values.data());
    write_npy(folder + "/" + variable.name + ".npy", "<f4", variable.global_shape, values.data());
  }
}

void dump_batches(const JobSpec& spec, int64_t steps, const std::string& folder) {
  const auto set = open_dataset(spec.dataset, spec.seed);
  SampleOrder order(spec.dataset, set->size(), spec.seed);
  for (const DataTensor which : {DataTensor::data, DataTensor::label}) {
    const bool data = which == DataTensor::data;
    const int64_t elements = set->elements(which);
    std::vector<float> values(static_cast<size_t>(steps * spec.dataset.batch * elements));
    float* at = values.data();
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t sample : order.batch(step / order.steps_per_epoch(), step % order.steps_per_epoch())) {
        set->read(which, sample, at);
        at += elements;
      }
    }
    Shape shape = data ? set->shapes().data : set->shapes().label;
    shape.insert(shape.begin(), {steps, spec.dataset.batch});
    const bool integer = data ? set->shapes().data_is_integer : set->shapes().label_is_integer;
    write_npy(folder + "/" + std::string(to_string(which)) + ".npy", integer ? "<i4" : "<f4", shape, values.data());
  }
}

void dump_run(const std::string& job_file, const std::string& folder) {
  const RunResult run = run_job(plan_job(load_job(job_file)));
  const JobSpec& spec = run.job.spec;
  const auto steps = static_cast<int64_t>(run.losses.size());
  std::FILE* file = std::fopen((folder + "/job.json").c_str(), "w");
  if (file == nullptr) throw EnvError("cannot write " + folder + "/job.json");
  std::fputs(job_json(spec).dump(1).c_str(), file);
  std::fclose(file);
  dump_weights(run.programs[0], spec.seed, folder);
  dump_batches(spec, steps, folder);
  write_npy(folder + "/losses.npy", "<f4", {steps}, run.losses.data());
}

}  // namespace
}  // namespace trainctl

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: dump_run JOB.yaml FOLDER\n", stderr);
    return 2;
  }
  try {
    trainctl::dump_run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dump_run: %s\n", error.what());
    return 1;
  }
  return 0;
}
