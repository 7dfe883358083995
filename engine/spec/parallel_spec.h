// Settings of `parallel`: how the ranks share a job.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/spec/precision.h"

namespace trainctl {

enum class ParallelMode : uint8_t {
  stand_alone,
  data_parallel,
  semi_auto_parallel,
  auto_parallel,
  hybrid_parallel,
  parameter_server
};
enum class Schedule : uint8_t { gpipe, one_f_one_b, interleaved_1f1b, zero_bubble };
std::string_view to_string(ParallelMode mode);
std::string_view to_string(Schedule schedule);  ///< "gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"

/// parallel.strategies: a pattern and the cuts per dim of each input of the layers it matches.
struct StrategySpec {
  std::string pattern;
  std::vector<Ints> cuts;
  std::string path;
  std::string reason = {};  ///< reason that a search gives; empty: the user wrote it
};

struct StageRule {
  std::string pattern;
  int stage = 0;  ///< a virtual stage: chunk * stages + stage
  std::string path;
};

struct RecomputeRule {
  std::string pattern;
  std::string path;
};

struct OptimizerShardSpec {
  int level = 0;
  int64_t min_kb = 64;
  bool within_host = false;  ///< shards over the ranks of one host; each host stores the whole state
};

enum class SearchAlgorithm : uint8_t { recursive_programming, sharding_propagation, exhaustive };
enum class Effort : uint8_t { low, normal, high };
std::string_view to_string(SearchAlgorithm algorithm);
std::string_view to_string(Effort effort);

/// parallel.context_method: how ranks that share the rows of a sequence exchange keys and values.
enum class ContextMethod : uint8_t { automatic, gather, ring, ulysses };
std::string_view to_string(ContextMethod method);

/// parallel.expert_method: how tokens reach the ranks of their experts.
enum class ExpertMethod : uint8_t { automatic, gather, all_to_all };
std::string_view to_string(ExpertMethod method);

/// The memory that holds a part of a rank's state.
enum class StatePlace : uint8_t { device, host };
std::string_view to_string(StatePlace place);

struct OffloadRule {
  std::string pattern;
  std::string path;
};

/// parallel.offload: state and activations that ranks on GPUs keep in the memory of their host.
struct OffloadSpec {
  StatePlace optimizer = StatePlace::device;
  std::vector<OffloadRule> activations;  ///< layers whose tensors wait there for the backward pass
};

/// parallel.outer: the optimizer that updates the weights once every local_steps, from the mean difference of the
/// replicas' weights.
struct OuterSpec {
  double learning_rate = 0.9;
  double momentum = 0.7;
  bool nesterov = true;
  double round_growth = 0.25;  ///< a round has at most this share of the steps before it; 0: all have local_steps
  double local_rate = 0;       ///< factor on the job's learning rate in local steps; 0: chosen (local_rate_of)
  Precision precision = Precision::bf16;  ///< fp32 or bf16: of the differences that replicas exchange
};

/// parallel.search: how auto_parallel chooses what the job leaves open.
struct SearchSpec {
  SearchAlgorithm algorithm = SearchAlgorithm::recursive_programming;
  Effort effort = Effort::normal;
};

struct ParallelSpec {
  ParallelMode mode = ParallelMode::stand_alone;
  int stages = 1;
  int chunks = 1;  ///< chunks of layers per stage
  std::vector<StageRule> stage_config;
  int data = 0;     ///< ranks of a stage that share the batch; 0: those that tensor and context leave
  int tensor = 1;   ///< ranks that share the heads and hidden features
  int context = 1;  ///< ranks that share the rows of a sequence
  ContextMethod context_method = ContextMethod::automatic;
  int micro_batches = 1;
  /// data_parallel: micro-batches of each rank in a step, whose sum is micro_batches; empty: ranks share each
  /// micro-batch evenly.
  Ints rank_micro_batches;
  Schedule schedule = Schedule::one_f_one_b;
  std::vector<StrategySpec> strategies;
  int expert = 1;  ///< ranks over which the layers with experts and without a strategy share them
  ExpertMethod expert_method = ExpertMethod::automatic;
  std::vector<RecomputeRule> recompute;
  OptimizerShardSpec optimizer_shard;
  OffloadSpec offload;
  int64_t bucket_bytes = 0;  ///< bytes of gradients that one collective sums; 0: chosen
  bool full_batch = false;
  int head_pieces = 0;     ///< 0: as many as max_memory requires
  int64_t max_memory = 0;  ///< bytes per rank; 0: no limit
  SearchSpec search;       ///< auto_parallel
  int servers = 1;         ///< parameter_server, as are the fields below
  bool sync = true;
  int staleness = 4;       ///< asynchronous: rounds of batches that a worker may be ahead of the oldest unfinished one
  bool rebalance = false;  ///< asynchronous: a batch goes to whichever worker asks next
  std::vector<std::string> tables;  ///< names or globs of layers
  int64_t local_steps = 0;          ///< steps between two synchronizations of replicas; 0: ranks share every step
  int replicas = 0;                 ///< with local_steps: groups of ranks with weights of their own; 0: one per host
  OuterSpec outer;

  /// True if the job gives data, tensor or context, from which the cuts of layers without a strategy follow.
  bool has_sizes() const { return data > 0 || tensor > 1 || context > 1; }
};

}  // namespace trainctl
