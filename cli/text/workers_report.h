// Report at the end of a run with asynchronous workers: the rate of each worker, and the staleness of updates.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/runtime/comm/batch_board.h"

namespace trainctl {

/// workers    rank 0 812 samples/s (40 steps), rank 1 799 samples/s (39 steps), …
/// staleness  0: 12 %, 1: 30 %, …          updates by the number of other updates that their weights lacked
std::string workers_report(const BatchBoard& board, int64_t batch);
/// Only the second line; empty without updates.
std::string staleness_report(const BatchBoard& board);

/// {"kind":"workers","steps":[40,39,…],"samples_per_second":[812.1,…],"staleness":[120,300,…]}: a line of
/// metrics.jsonl.
nlohmann::ordered_json workers_json(const BatchBoard& board, int64_t batch);

}  // namespace trainctl
