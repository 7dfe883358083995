// Rows of documents: conversations (dataset.type chat) or texts (type text with a tokenizer), whose tokens are in the
// host's cache (token_cache.h).
//
//   document        the tokens t0 t1 t2 t3, of which some are trained
//   in a row        data t0 t1 t2, label t1 t2 t3, where a label that is not trained is kNoTrainedLabel
//   pack: false     a document per row; the rest of the row is filled with token 0, whose labels are not trained
//   pack: true      documents of any lengths share a row; `documents` has, at each position, the position in the row
//                   at which its document begins, as attention and rotary read it
//
// A conversation that is longer than a row is truncated; a longer text is continued in further rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/document_index.h"
#include "engine/train/data/token_cache.h"

namespace trainctl {

/// The label of a position that is not trained: the loss's ignore_index in such a job.
inline constexpr int32_t kNoTrainedLabel = -100;

/// Positions [begin, begin + count) of a document, of which position i has token i as data and token i + 1 as label.
struct RowPart {
  int64_t document = 0;
  int32_t begin = 0, count = 0;
};

/// Packs parts into rows of `length` positions: the longest first, each into the row with the least room that has
/// enough. Rows, and the parts of a row, are in the order of the documents.
std::vector<std::vector<RowPart>> pack_rows(const std::vector<RowPart>& parts, int64_t length);

class DocumentSet final : public Dataset {
 public:
  /// SpecError if a file, a document or the tokenizer cannot be read. Tokenizes all documents, unless the host's cache
  /// has their tokens.
  explicit DocumentSet(const DatasetSpec& spec);

  int64_t size() const override;
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override;
  std::string where(int64_t sample) const override;

  /// Memory of the index and of tokens that could not be written to the cache.
  int64_t memory_bytes() const;
  const TokenCache& tokens() const { return tokens_; }
  /// Contents of all rows.
  struct Summary {
    int64_t documents = 0, rows = 0, positions = 0, trained = 0;
    int64_t truncated = 0;             ///< documents that are longer than a row
    int64_t untrained_rows = 0;        ///< rows that train nothing
    int64_t untrained = 0;             ///< documents that train nothing
    int64_t cut_off = 0;               ///< untrained documents with a trained token behind the end of the row
    std::string first_untrained = {};  ///< where the first of these documents is
  };
  Summary summarize() const;

  static DataShapes shapes_of(const DatasetSpec& spec);

 private:
  std::vector<RowPart> parts_of_row(int64_t row) const;

  int64_t length_;
  bool packs_, splits_;  ///< splits_: long documents continue in other rows
  DocumentIndex index_;
  TokenCache tokens_;
  std::vector<std::vector<RowPart>> rows_;  ///< empty: row i has document i
  std::vector<SampleField> fields_;
};

}  // namespace trainctl
