// Loads the weights that a job starts from (`weights`).
#include "cli/run/saves/start_weights.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/text/name_maps.h"
#include "engine/base/error.h"
#include "engine/model_folder/model_folder.h"
#include "engine/spec/adapters.h"
#include "engine/train/checkpoint/initial_norms.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/checkpoint/start_adapters.h"

namespace trainctl {

namespace {

NameMap start_map(const JobSpec& spec) { return choose_map(spec.weights->map, folder_of_weights(spec.weights->from)); }

void require_path(const JobSpec& spec, const std::string& field, const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return;
  // "meta-llama/Llama-3-8B" is the name of a repository, and its folder is not there either.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const bool is_repository = !std::filesystem::exists(folder, error) &&
                             folder.parent_path() == std::filesystem::absolute(spec.file, error).parent_path();
  const std::string repository = (folder.filename() / std::filesystem::path(path).filename()).string();
  throw SpecError(
      spec.position(field), field, path + " does not exist",
      "paths are relative to the job file" + (is_repository ? "; download a Hugging Face model first: hf download " +
                                                                  repository + " --local-dir " + repository
                                                            : std::string()));
}

/// The adapters of adapters.lora.from; empty if the job starts from none.
std::vector<StartAdapters> start_adapters(const PlannedJob& job) {
  const std::optional<LoraSpec>& lora = job.spec.adapters.lora;
  if (!lora || lora->from.empty()) return {};
  require_path(job.spec, "adapters.lora.from", lora->from);
  std::vector<StartAdapters> adapters;
  const std::vector<std::string>& names = job.spec.adapters.names;
  for (const std::string& name : names.empty() ? std::vector<std::string>{""} : names)
    adapters.emplace_back(job, start_map(job.spec), name);
  return adapters;
}

}  // namespace

MappedWeights start_weights(const PlannedJob& job) {
  const JobSpec& spec = job.spec;
  if (!job.tables.empty())
    throw SpecError(spec.position("weights"), "weights", "is not supported with parallel.tables",
                    "import a checkpoint with `trainctl checkpoint import`, or remove parallel.tables");
  require_path(spec, "weights.from", spec.weights->from);
  MappedWeights mapped{job, WeightFiles(spec.weights->from), start_map(spec)};  // a file of another kind is named first
  mapped.require_fit(spec.weights->partial,
                     "weights.partial: true loads the tensors that fit and initializes the others");
  return mapped;
}

void require_start_weights(const PlannedJob& job, bool reads_ties) {
  if (!job.spec.weights) return;
  MappedWeights weights = start_weights(job);
  if (reads_ties) weights.require_equal_ties(job.spec.weights->partial);
  start_adapters(job);
}

std::optional<StoredBase> base_of(const PlannedJob& job) {
  if (!saves_without_base(job.spec)) return {};
  StoredBase base{.from = job.spec.weights->from, .fingerprint = WeightFiles(job.spec.weights->from).fingerprint()};
  for (const VariablePlan& variable : job.plan.variables)
    if (const Tensor& tensor = job.graph.tensors[variable.tensor]; tensor.is_base)
      base.tensors.emplace_back(tensor.name, unpacked_shape(variable.global_shape, tensor.packing));
  return base;
}

void require_base(const WeightFiles& weights, const StoredBase& base, const std::string& checkpoint) {
  if (const std::string found = weights.fingerprint(); found != base.fingerprint)
    throw EnvError(
        fmt::format("{} is not the base that {} was trained with: its fingerprint is {}, expected {}; restore "
                    "the weights that were in {}, or set weights.from to a copy of them",
                    weights.path(), checkpoint, found, base.fingerprint, base.from));
}

void load_checkpoint(const PlannedJob& job, const Program& program, PieceReader& reader, Executor& executor,
                     WeightsRead read, const std::function<void()>& on_progress) {
  if (reader.manifest().base) load_weights(program, start_weights(job), executor, on_progress);
  restore(program, reader, executor, read, on_progress);
}

void load_start(const PlannedJob& job, const Program& program, Executor& executor,
                const std::function<void()>& on_progress) {
  const MappedWeights weights = start_weights(job);
  load_weights(program, weights, executor, on_progress);
  init_row_norms(program, weights, executor, on_progress);
  for (const StartAdapters& adapters : start_adapters(job)) adapters.load(program, executor);
}

}  // namespace trainctl
