// Nodes of attention whose ranks exchange keys and values, because they share the rows of the sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/row_order.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// The axes that cut the rows of such a node, major first; empty for all other nodes.
Axes exchange_axes(const Graph& graph, const Plan& plan, const Node& node);

/// True if its ranks share rows, or rows are stored in an order that its kernels do not know (ops/row_order.h).
bool exchanges_keys(const Graph& graph, const Plan& plan, const Node& node);

/// True if all ranks of a ring have the same amount of computation for each block: rows are balanced (or all keys are
/// seen), and each row sees its own key. Their programs then differ only in numbers and in which calls are idle.
bool has_balanced_ring(const Node& node);

/// Tells how many keys of a key piece the queries of a query piece see, according to their positions.
enum class Sight : uint8_t { none, some, all };

/// Counts how much each rank of a ring sees of its block in each step. In step s rank i has the block of rank i - s.
class RingSights {
 public:
  /// `rows`: number of rows of the whole sequence; `ways`: number of ranks of the ring.
  RingSights(const Node& node, int64_t rows, int64_t ways);

  /// Pieces of a rank's rows.
  size_t pieces() const { return static_cast<size_t>(order_.piece > 0 ? 2 * order_.groups : 1); }
  Sight of(int64_t index, size_t queries, int64_t step, size_t keys) const;
  /// All sights of a rank. Ranks with equal sights have the same calls.
  std::vector<Sight> of_rank(int64_t index) const;

 private:
  /// The position of the first row of a piece of a rank.
  int64_t position(int64_t index, size_t piece) const;
  int64_t piece_rows() const { return rows_ / ways_ / static_cast<int64_t>(pieces()); }

  bool is_causal_;
  int64_t window_, rows_, ways_;
  RowOrder order_;
};

/// Returns a number for each rank in stage. Ranks with equal numbers see the same keys in all rings that are not
/// balanced, so they have the same attention calls. Empty if there is no such ring.
std::vector<int> uneven_rings(const Graph& graph, const Plan& plan);

/// Returns the rank in stage that sees the most keys in these rings; 0 if there are none.
int busiest_in_rings(const Graph& graph, const Plan& plan);

}  // namespace trainctl
