// The order of a sample's documents, if ranks share its rows (ops/row_order.h).
//
// In causal attention a row costs as many keys as there are rows before it in its document, itself included. A rank has
// the rows at fixed positions, so its work depends on which documents are there. Attention is within documents, so
// their order changes no result, and a sample's documents are put in an order in which all ranks have about the same
// work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops/row_order.h"

namespace trainctl {

/// By rank: the number of keys that its rows see, for consecutive documents with these numbers of rows.
std::vector<int64_t> work_of_ranks(std::span<const int64_t> lengths, const RowOrder& order);

/// A permutation of the documents: the work of the rank that has most is near the mean, or as near as a short search
/// finds. Depends only on its arguments, so that all ranks that share a sample find the same.
std::vector<int32_t> balanced_documents(std::span<const int64_t> lengths, const RowOrder& order);

/// The rows of a sample in the order of balanced_documents().
class DocumentOrder {
 public:
  /// `documents`: for each row, the index of its document's first row. Rows keep their order if it is not that.
  DocumentOrder(std::span<const int32_t> documents, const RowOrder& order);

  /// Puts the rows of a field, each of `row_bytes`, in that order. `scratch` has room for them.
  void permute(std::byte* rows, int64_t row_bytes, std::byte* scratch) const;
  /// The same for the field of documents, whose values change with it.
  void permute_documents(std::span<int32_t> documents) const;

 private:
  struct Moved {
    int64_t from = 0, to = 0, rows = 0;
  };
  std::vector<Moved> documents_;  ///< in the new order
};

}  // namespace trainctl
