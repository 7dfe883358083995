// Reads a problem of the ASPLOS 2025 / EuroSys 2025 contest on intra-operator parallelism
// (https://github.com/google/iopddl), plain or as gzip:
//
//   {"problem": {"name": "A",
//                "nodes": {"intervals": [[first, end], ...], "costs": [[cost, ...], ...], "usages": [[bytes, ...],
//                ...]}, "edges": {"nodes": [[node, node], ...], "costs": [[cost, ...], ...]}, "usage_limit": bytes}}
//
// An edge has a cost for each pair of its nodes' strategies, the last node's fastest.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/search/limited_sum.h"

namespace trainctl {

/// A cost from which on the contest's problems mean "not allowed".
inline constexpr int64_t kNotAllowed = 1'000'000'000'000'000'000;

struct ContestProblem {
  std::string name;
  size_t nodes = 0;
  size_t edges = 0;
  int64_t limit = -1;  ///< -1: none
  LimitedTables tables;
};

/// `file` is for messages. SpecError at the line and column of what is wrong.
ContestProblem read_contest_problem(std::span<const uint8_t> bytes, const std::string& file);

}  // namespace trainctl
