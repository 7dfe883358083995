// The communication of a plan in the report of `trainctl plan`: redistributions, totals of a step, the calls of each
// class of ranks, and the process groups that these refer to.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/compile/rank_classes.h"

namespace trainctl {

/// The process groups that the report's rows refer to. A row refers to a kind of group by its index in this table.
class GroupTable {
 public:
  explicit GroupTable(const RankClasses& classes) : classes_(classes), ids_(classes.groups.size(), -1) {}

  /// The groups of this kind that contain ranks of these classes.
  int id(const GroupKind& kind, const std::vector<size_t>& of_classes);
  /// All groups of the kind that a collective of the class runs over.
  int id(size_t of_class, const Instruction& collective);

  nlohmann::ordered_json rows() const { return rows_; }

 private:
  const RankClasses& classes_;
  std::vector<int> ids_;  ///< by index in RankClasses::groups; -1: not requested yet
  std::map<std::string, int> places_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

/// Redistributions and transfers of one micro-batch: the same step over several groups is one row.
nlohmann::ordered_json redistributions_json(const RankClasses& classes, GroupTable& table);

/// Calls and bytes of a step over all ranks; a collective counts once, at the first rank of its group. Copies between a
/// rank and its host count as groups of one rank.
nlohmann::ordered_json communication_totals(const RankClasses& classes);

/// A class's collectives, sends and recvs in order.
nlohmann::ordered_json calls_json(const RankClasses& classes, size_t of_class, GroupTable& table);

}  // namespace trainctl
