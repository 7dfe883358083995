// Pairs of answers to a prompt (dataset.type preference), in the forms that TRL accepts. A line of JSON Lines has
//
//   prompt, chosen, rejected   texts, or lists of messages, which the model's chat template renders
//   chosen, rejected           lists of messages that begin with the same messages: the prompt
//
// A sample is a row of `length` positions: the first half is the chosen answer, the second half the rejected
// answer, each after its prompt:
//
//   data       i32 [length]   the tokens, then 0
//   targets    i32 [length]   the next token where the answer writes it, otherwise kNoTrainedLabel
//   documents  i32 [length]   0 in the first half and length / 2 in the second, as attention and rotary read it
//   label      i32 []         0: the first answer is the chosen one
//
// An answer that is a text ends with the tokenizer's eos_token. What does not fit into half a row is cut off at its
// end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/document_index.h"
#include "engine/train/data/token_cache.h"

namespace trainctl {

class PreferenceSet final : public Dataset {
 public:
  /// Throws SpecError if a file, a pair or the tokenizer cannot be read. Tokenizes all answers, unless the host's cache
  /// has their tokens.
  explicit PreferenceSet(const DatasetSpec& spec);

  int64_t size() const override { return index_.size(); }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override;
  std::string where(int64_t sample) const override { return index_.where(sample); }

  /// Memory of the index and of tokens that could not be written to the cache.
  int64_t memory_bytes() const { return index_.memory_bytes() + tokens_.memory_bytes(); }
  /// Pairs with an answer that does not fit into half a row, and pairs with an answer that has no token there.
  struct Summary {
    int64_t truncated = 0, untrained = 0;
    std::string first_untrained = {};
  };
  Summary summarize() const;

  static DataShapes shapes_of(const DatasetSpec& spec);

 private:
  int64_t half_;
  DocumentIndex index_;
  TokenCache tokens_;  ///< document 2 i is the chosen answer of pair i, and 2 i + 1 the rejected one
  std::vector<SampleField> fields_;
};

}  // namespace trainctl
