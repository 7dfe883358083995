// See the header.
#include "cli/run/saves/start_weights.h"

#include <filesystem>

#include "cli/text/name_maps.h"
#include "engine/base/error.h"
#include "engine/model_folder/model_folder.h"

namespace trainctl {

MappedWeights start_weights(const PlannedJob& job) {
  const JobSpec& spec = job.spec;
  const WeightsSpec& weights = *spec.weights;
  if (!job.tables.empty())
    throw SpecError(spec.position("weights"), "weights", "is not supported with parallel.tables",
                    "import a checkpoint with `trainctl checkpoint import`, or remove parallel.tables");
  std::error_code error;
  if (!std::filesystem::exists(weights.from, error))
    throw SpecError(spec.position("weights.from"), "weights.from", weights.from + " does not exist",
                    "relative paths start at the folder of the job file");
  MappedWeights mapped(job, WeightFiles(weights.from), choose_map(weights.map, folder_of_weights(weights.from)));
  mapped.require_fit(weights.partial, "weights.partial: true loads the tensors that fit and initialises the others");
  return mapped;
}

void require_start_weights(const PlannedJob& job) {
  if (job.spec.weights) start_weights(job);
}

}  // namespace trainctl
