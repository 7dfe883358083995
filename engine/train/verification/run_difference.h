// Finds where two runs diverge: first step, layer and tensor, from losses, fingerprints and printed tensors of both.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

/// A tensor at a step of two runs.
struct TensorDistance {
  int64_t step = 0;      ///< steps that were done before
  std::string kind;      ///< output, gradient, weight, state, or an optimizer state
  std::string name;      ///< "h.3.qkv.weight", or of an output the layer
  double distance = 0;   ///< |a - b| / |b|; of fingerprints an estimate
  bool differs = false;  ///< by more than the tolerance; without one, in a bit
};

struct RunDifference {
  std::vector<int64_t> steps;             ///< compared ones, ascending
  std::vector<TensorDistance> distances;  ///< by step, then in the order in which a step computes them
  std::vector<int64_t> loss_steps;        ///< logged by both
  std::optional<int64_t> first_loss;      ///< the first step with another loss
  double first_loss_distance = 0;
  std::vector<std::string> notes;  ///< parts that could not be compared, and why

  /// Null: nothing differs.
  const TensorDistance* first() const;
  bool is_equal() const { return first() == nullptr && !first_loss; }
  bool has_compared() const { return !steps.empty() || !loss_steps.empty(); }
};

/// `a`, `b`: folders of runs. `tolerance`: relative distances that do not count; 0: compares bits.
RunDifference compare_run_folders(const std::string& a, const std::string& b, double tolerance);

/// Compares the printed tensors of a run (print: {format: npy}) after `step` steps with a file in which another program
/// has saved tensors under the names of layers. `step` 0: the first printed one. Throws EnvError if the file or the
/// printed tensors cannot be read.
RunDifference compare_with_file(const std::string& run, const std::string& safetensors, int64_t step, double tolerance);

nlohmann::ordered_json to_json(const RunDifference& difference);

/// The name of the layer of a tensor: "h.3.qkv" of "h.3.qkv.weight".
std::string layer_of_tensor(const std::string& tensor, const std::vector<std::string>& layers);

}  // namespace trainctl
