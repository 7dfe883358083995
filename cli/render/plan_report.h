// The report of `trainctl plan` as text.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/fold.h"

namespace trainctl {

struct PlanStyle {
  bool full = false;    ///< every layer, redistribution and shard on a separate line; includes `layers` and `moves`
  bool layers = false;  ///< each layer's shape, costs, cuts and reasons
  bool moves = false;   ///< messages between layers and stages
  size_t width = 120;   ///< largest width of a line; 0: unlimited

  bool shows_layers() const { return full || layers; }
  bool shows_moves() const { return full || moves; }
};

/// The report's layers as render_plan lists them, with repeated blocks folded.
std::vector<FoldLine> folded_layers(const nlohmann::ordered_json& report);

/// Uses only the data of plan_report(), so the text and --json agree. Unless `full`, repetitions are folded into one
/// line that is true of everything that it stands for.
std::string render_plan(const nlohmann::ordered_json& report, const PlanStyle& style);

/// The network alone: output shape, parameters and operations per sample of each layer, with repeated blocks folded.
/// `report`: plan_report() of the job on one rank. Lines have at most `width` columns; 0: unlimited.
std::string render_model(const nlohmann::ordered_json& report, size_t width);

}  // namespace trainctl
