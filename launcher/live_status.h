// Current state of a run, as its launcher sees it: for the progress line, `trainctl ps` and `attach`.
//
//   {"state": "running", "attempt": 0, "max_restarts": 2, "epoch": 3, "epochs": 10, "step": 101, "steps": 440,
//    "loss": 1.2031, "metrics": {"accuracy": 0.9934}, "samples_per_second": 20431.5, "tokens_per_second": 0.0,
//    "share_of_peak": 0.41, "memory_bytes": 325261721, "gpu_memory_bytes": 0, "seconds_left": 245.3, "slowest": 3,
//    "pids": [812, …], "gpus": [0, …], "ranks": [["0-5,7", "training"], ["6", "waiting in …"]]}
//
// A loss that is nan or infinite is null, followed by "not_finite": "nan", "inf" or "-inf".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/rank_names.h"

namespace trainctl {

/// Metrics that a step reports in addition to its loss: names and values.
using Metrics = std::vector<std::pair<std::string, double>>;

/// Ranks in the same state.
struct RankGroup {
  std::string ranks;  ///< "0-5,7"
  std::string doing;  ///< "training", "waiting in all_reduce grad.0 for 3"
  friend bool operator==(const RankGroup&, const RankGroup&) = default;
};

struct LiveStatus {
  std::string state = "starting";  ///< starting | running | stopping | restarting
  int attempt = 0, max_restarts = 0;
  // Jobs with a network only; zero for others, and until the first step is done.
  int64_t epoch = 0, epochs = 0;
  int64_t step = 0, steps = 0;  ///< over the whole run; steps 0: unknown
  std::optional<float> loss;
  Metrics metrics;
  double samples_per_second = 0;
  double tokens_per_second = 0;        ///< 0: samples are not sequences of tokens
  double share_of_peak = 0;            ///< share of the devices' peak rate in matrix products; 0: unknown
  int64_t memory_bytes = 0;            ///< resident memory of the largest rank on this host; 0: unknown
  int64_t gpu_memory_bytes = 0;        ///< used memory of the fullest GPU; 0: unknown, or no GPUs
  std::optional<double> seconds_left;  ///< estimated time until the last step
  std::optional<int> slowest;          ///< rank that the others wait for, if any
  std::vector<RankGroup> ranks;        ///< the largest group first
  std::vector<int> pids;               ///< by rank, each the leader of a process group; 0: on another host
  std::vector<int> gpus;               ///< by rank, as the driver numbers them; empty: CPUs, or the program chooses
  friend bool operator==(const LiveStatus&, const LiveStatus&) = default;
};

std::string to_json(const LiveStatus& status);
/// Fields that are missing or have another type keep their defaults; nullopt if the text is not an object.
std::optional<LiveStatus> parse_live_status(std::string_view json);

/// Write and read the two fields of a loss; nullopt: none.
void put_loss(nlohmann::ordered_json& json, float loss);
std::optional<float> loss_of(const nlohmann::ordered_json& json);
/// Write and read the field of the metrics, if there are any.
void put_metrics(nlohmann::ordered_json& json, const Metrics& metrics);
Metrics metrics_of(const nlohmann::ordered_json& json);
/// "accuracy 0.9934"
std::string metric_text(const Metrics::value_type& metric);

/// One text per rank -> groups of ranks with the same text.
std::vector<RankGroup> group_ranks(const std::vector<std::string>& doing, const RankNames& names = {});

/// 0, 1, 2, 5 -> "0-2,5".
std::string format_ranks(const std::vector<int>& ascending);

}  // namespace trainctl
