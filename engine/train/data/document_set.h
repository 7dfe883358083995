// Rows of documents: conversations (dataset.type chat) or texts (type text with a tokenizer), whose tokens are in the
// host's cache (token_cache.h).
//
//   document        the tokens t0 t1 t2 t3, some of which are trained
//   in a row        data t0 t1 t2, label t1 t2 t3, where a label that is not trained is kNoTrainedLabel
//   pack: false     a document per row; the rest of the row is filled with token 0, whose labels are not trained
//   pack: true      documents of any lengths share a row; `documents` has, at each position, the position in the row
//                   at which its document begins, as attention and rotary read it
//   adapters.field  the number of the document's adapter: one per row, or with pack one per position
//   fim             a document becomes <prefix> t0 <suffix> t3 <middle> t1 t2, or
//                   <prefix> <suffix> t3 <middle> t0 t1 t2,
//                   cut again in each pass. Which documents do depends on the seed alone.
//
// A conversation that is longer than a row is truncated; a longer text continues in the next rows. A document for
// which dataset.filter is false has no tokens in the cache, and is in no row.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/document_index.h"
#include "engine/train/data/token_cache.h"

namespace trainctl {

/// The label of a position that is not trained: the loss's ignore_index in such a job.
inline constexpr int32_t kNoTrainedLabel = -100;

/// Positions [begin, begin + count) of a document. Position i has token i as data and token i + 1 as label.
struct DocumentPart {
  int64_t document = 0;
  int32_t begin = 0, count = 0;
  int32_t added = 0;  ///< tokens that mark the parts of a document for fill-in-the-middle

  int64_t positions() const { return count + added; }
};

/// Packs parts into rows of `length` positions. The longest parts come first, each into the row with the smallest
/// sufficient room. The resulting rows, and the parts of each row, are in the order of the documents.
std::vector<std::vector<DocumentPart>> pack_rows(const std::vector<DocumentPart>& parts, int64_t length);
/// Puts each part into the row of the part before it, or into a new row if there is too little room.
std::vector<std::vector<DocumentPart>> pack_in_order(const std::vector<DocumentPart>& parts, int64_t length);
/// Puts parts one after another, and cuts those that cross the end of a row. Only the last row has room left.
std::vector<std::vector<DocumentPart>> concatenate(const std::vector<DocumentPart>& parts, int64_t length);

/// The tokens of fill-in-the-middle.
struct FimTokens {
  int32_t prefix = 0, suffix = 0, middle = 0;
  int32_t front = 0, back = 0;  ///< tokens that the tokenizer puts around each text, which stay where they are
};

/// The cuts of one document: tokens [0, first) are the prefix, [first, second) the middle.
struct FimCuts {
  int64_t first = 0, second = 0;
  bool suffix_first = false;
};

/// Rearranges the tokens for fill-in-the-middle. The first `front` and the last `back` tokens stay in place, and the
/// cuts count from `front`.
std::vector<int32_t> rearranged(std::span<const int32_t> tokens, const FimTokens& marks, const FimCuts& cuts);

class DocumentSet final : public Dataset {
 public:
  /// Throws SpecError if a file, a document or the tokenizer cannot be read. Tokenizes all documents, unless the host's
  /// cache has their tokens. `seed` chooses the documents that are rearranged for fill-in-the-middle.
  explicit DocumentSet(const DatasetSpec& spec, uint64_t seed = 0);

  int64_t size() const override;
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override;
  std::string where(int64_t sample) const override;
  /// The mean length of the documents of each row.
  std::vector<int32_t> lengths() const override;
  double tokens_per_sample() const override;
  /// Lines about the effect of the job's fields on the documents: "2 of 10 documents are left out by dataset.filter".
  /// Empty if the job uses none of these fields.
  std::vector<std::string> notes() const;

  /// Bytes of the index, and of tokens that could not be written to the cache.
  int64_t memory_bytes() const;
  const TokenCache& tokens() const { return tokens_; }
  /// Counts over all rows and documents.
  struct Summary {
    int64_t documents = 0, rows = 0, positions = 0, trained = 0;
    int64_t truncated = 0;             ///< documents that are longer than a row
    int64_t untrained_rows = 0;        ///< rows that train nothing
    int64_t untrained = 0;             ///< documents that train nothing
    int64_t cut_off = 0;               ///< untrained documents with a trained token after the end of the row
    std::string first_untrained = {};  ///< where the first of these documents is
  };
  Summary summarize() const;

  static DataShapes shapes_of(const DatasetSpec& spec);

 private:
  std::vector<DocumentPart> parts_of_row(int64_t row) const;
  std::vector<bool> find_used(const DatasetSpec& spec);
  std::vector<DocumentPart> make_parts(const std::vector<bool>& used) const;
  bool is_rearranged(int64_t document) const;
  int32_t adapter_of(int64_t document) const { return adapters_[static_cast<size_t>(document)]; }
  /// Reads the positions of a part of a rearranged document.
  void read_rearranged(const DocumentPart& part, ReadState& state, int32_t* data, int32_t* label) const;

  int64_t length_;
  bool packs_, splits_;  ///< splits_: long documents continue in other rows
  DocumentIndex index_;
  TokenCache tokens_;
  std::vector<std::vector<DocumentPart>> rows_;  ///< empty: row i has document i
  std::vector<int32_t> adapters_;                ///< one per document; empty: the set has none
  std::vector<SampleField> fields_;
  std::string packing_, filter_;
  bool deduplicates_ = false;
  int64_t filtered_ = 0, duplicates_ = 0;
  double fim_ = 0, fim_spm_ = 0;
  uint64_t fim_key_ = 0;
  FimTokens fim_tokens_;
};

}  // namespace trainctl
