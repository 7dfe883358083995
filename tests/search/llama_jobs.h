// Llama-shaped jobs for tests of the search: dense or with experts, of any length, and what their plans take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/machine/machine.h"

namespace trainctl {

/// Factor that the search's own errors and the rule that prefers a simple plan may cost.
inline constexpr double kSlack = 1.006;

struct LlamaShape {
  int blocks = 8, units = 2048, hidden = 8192, heads = 16, kv_heads = 4, length = 4096, vocab = 32000, batch = 8;
  int ranks = 4, experts = 0, window = 0;
};

/// The text of the job, for GPUs. `experts` is the number of experts of each block, of which a token uses two; 0: the
/// job is dense. `window` is the window of attention; 0: there is none.
std::string llama(const LlamaShape& shape);

struct Outcome {
  double seconds = 0;
  int64_t memory = 0;
  std::string plan = {};  ///< name of the plan that a search found
};

/// Plans the job with all fields of the plan given; nothing if the plan is not legal.
std::optional<Outcome> outcome_of(const std::string& text, const std::vector<std::string>& settings);
/// The plan that auto_parallel finds; nothing if there is none.
std::optional<Outcome> found_for(const std::string& text, std::vector<std::string> settings);

/// An integer in an environment variable; `otherwise` if it is not set.
int from_environment(const char* name, int otherwise);

/// A machine in a file that a job can name, as a user would do it.
class MachineFile {
 public:
  explicit MachineFile(const Machine& machine);
  ~MachineFile();
  MachineFile(const MachineFile&) = delete;
  std::string setting() const { return "launch.machine=" + path_; }

 private:
  std::string path_;
};

}  // namespace trainctl
