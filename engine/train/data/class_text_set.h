// Texts with a class (dataset.type text with label_field): a line of JSON Lines has a text and a whole number.
//
//   data   i32 [length]   the tokens with those that the tokenizer adds, then 0; a longer text is truncated before the
//                         token that the tokenizer adds at its end
//   label  i32 []         the class; 0 if the set has no labels (dataset.labels)
//   mask   i32 [length]   1 for tokens, 0 after them, as attention reads it
//   adapters.field  i32 []   the number of the text's adapter, if the job has several
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/text/tokenizer.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/document_index.h"

namespace trainctl {

class ClassTextSet final : public Dataset {
 public:
  /// Throws SpecError if a file or the tokenizer cannot be read.
  explicit ClassTextSet(const DatasetSpec& spec);

  int64_t size() const override { return index_.size(); }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override;
  void expect(int64_t sample) const override { index_.expect(sample); }
  std::string where(int64_t sample) const override { return index_.where(sample); }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  int64_t memory_bytes() const { return index_.memory_bytes(); }
  /// The class of the sample. Throws EnvError, with the place of the line, if the line has no class.
  int32_t label(int64_t sample) const;

  static DataShapes shapes_of(const DatasetSpec& spec);

 private:
  struct Line {
    std::string text;
    int32_t label = 0;
  };
  Line line(int64_t sample) const;

  int64_t length_;
  bool has_labels_;
  std::string text_field_, label_field_;
  std::unique_ptr<Tokenizer> tokenizer_;
  DocumentIndex index_;
  std::vector<SampleField> fields_;
  std::vector<int32_t> adapters_;  ///< one per text (adapters.field); empty: the set has none
  std::vector<int32_t> last_;      ///< the token that the tokenizer adds at the end of a text, if any
};

}  // namespace trainctl
