// Chooses the order of a sample's documents if ranks share its rows (ops/row_order.h).
//
// In causal attention the cost of a row is the number of rows before it in its document, itself included. A rank has
// the rows at fixed positions, so its work depends on which documents are there. Attention stays within a document, so
// the order of the documents changes no result. A sample's documents are therefore put into an order in which all ranks
// have about the same work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops/row_order.h"

namespace trainctl {

/// The work of each rank, as the number of keys that its rows attend to, for consecutive documents with these numbers
/// of rows.
std::vector<int64_t> work_of_ranks(std::span<const int64_t> lengths, const RowOrder& order);

/// A permutation of the documents that brings the work of the busiest rank near the mean, or as near as a short search
/// finds. It depends only on the arguments, so all ranks that share a sample find the same one.
std::vector<int32_t> balanced_documents(std::span<const int64_t> lengths, const RowOrder& order);

/// Puts the rows of a sample into the order of balanced_documents().
class DocumentOrder {
 public:
  /// `documents` has, for each row, the index of its document's first row. If the values are not of this form, the rows
  /// keep their order.
  DocumentOrder(std::span<const int32_t> documents, const RowOrder& order);

  /// Puts the rows of a field, each of `row_bytes` bytes, into the new order. `scratch` has room for all rows.
  void permute(std::byte* rows, int64_t row_bytes, std::byte* scratch) const;
  /// The same for the field `documents` itself, whose values are adapted to the new positions.
  void permute_documents(std::span<int32_t> documents) const;

 private:
  struct Moved {
    int64_t from = 0, to = 0, rows = 0;
  };
  std::vector<Moved> documents_;  ///< in the new order
};

}  // namespace trainctl
