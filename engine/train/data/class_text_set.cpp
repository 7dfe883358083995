// Texts with a class (dataset.type text with label_field): a line of JSON Lines has a text and a whole number.
#include "engine/train/data/class_text_set.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/train/data/document_adapters.h"
#include "engine/train/data/document_set.h"
#include "engine/train/data/documents.h"
#include "engine/train/data/sources/file_list.h"

namespace trainctl {

DataShapes ClassTextSet::shapes_of(const DatasetSpec& spec) {
  DataShapes shapes = data_and_label({spec.length}, {}, true, true);
  shapes.fields.push_back({"mask", {spec.length}, true});
  if (spec.has_adapters()) shapes.fields.push_back({spec.adapter_field, {}, true});
  return shapes;
}

ClassTextSet::ClassTextSet(const DatasetSpec& spec)
    : length_(spec.length),
      has_labels_(spec.labels),
      text_field_(spec.json_field.empty() ? "text" : spec.json_field),
      label_field_(spec.label_field),
      tokenizer_(of_the_document_job("dataset.tokenizer", [&] { return open_tokenizer(spec.tokenizer); })),
      index_(of_the_document_job("dataset.path",
                                 [&] {
                                   std::vector<std::string> columns = columns_of_field(text_field_);
                                   for (std::string& column : columns_of_field(label_field_))
                                     columns.push_back(std::move(column));
                                   if (spec.has_adapters()) columns.push_back(spec.adapter_field);
                                   return DocumentIndex(list_table_files(spec.paths, "dataset.path"),
                                                        std::move(columns));
                                 })),
      fields_(as_loaded(shapes_of(spec))) {
  if (index_.size() == 0) throw SpecError({}, "dataset.path", "the files contain no texts");
  if (!index_.is_json(0) && has_labels_)
    throw SpecError({}, "dataset.path",
                    index_.where(0) + " is not JSON Lines, so it has no field '" + label_field_ + "'",
                    "write a line {\"text\": ..., \"label\": 0} for each text to a file *.jsonl");
  adapters_ = adapters_of_documents(spec, index_, {});
  const std::vector<int32_t> added = tokenizer_->encode("");
  if (added.size() >= 2) last_ = {added.back()};
}

ClassTextSet::Line ClassTextSet::line(int64_t sample) const {
  const auto fail = [&](const std::string& what) { throw EnvError(index_.where(sample) + ": " + what); };
  if (!has_labels_ && !index_.is_json(sample)) return {index_.read(sample)};
  const auto row = nlohmann::json::parse(index_.read(sample), nullptr, false);
  if (!row.is_object()) fail("expected a JSON object");
  const nlohmann::json* const text = find_document_field(row, text_field_);
  if (text == nullptr || !text->is_string())
    fail("has no text in the field '" + text_field_ + "'; name another with dataset.field");
  if (!has_labels_) return {text->get<std::string>()};
  const nlohmann::json* const found = find_document_field(row, label_field_);
  if (found == nullptr || !found->is_number_integer())
    fail("has no class in the field '" + label_field_ + "'; a class is a whole number, counted from 0");
  const auto label = found->get<int64_t>();
  if (label < std::numeric_limits<int32_t>::min() || label > std::numeric_limits<int32_t>::max())
    fail("has the class " + std::to_string(label) + ", which does not fit into 32 bits");
  return {text->get<std::string>(), static_cast<int32_t>(label)};
}

int32_t ClassTextSet::label(int64_t sample) const { return line(sample).label; }

void ClassTextSet::read(int64_t sample, ReadState& state, SampleOutputs to) const {
  const StageTimer timer(state.seconds, ReadStage::read);
  const Line line = this->line(sample);
  if (to[1] != nullptr) *static_cast<int32_t*>(to[1]) = line.label;
  if (!adapters_.empty() && to[3] != nullptr) *static_cast<int32_t*>(to[3]) = adapters_[static_cast<size_t>(sample)];
  if (to[0] == nullptr && to[2] == nullptr) return;
  std::vector<int32_t> tokens = tokenizer_->encode(line.text);
  const auto length = static_cast<size_t>(length_);
  if (tokens.size() > length) {
    tokens.resize(length);
    std::copy(last_.begin(), last_.end(), tokens.end() - static_cast<int64_t>(last_.size()));
  }
  for (size_t i = 0; i < length; ++i) {
    if (to[0] != nullptr) static_cast<int32_t*>(to[0])[i] = i < tokens.size() ? tokens[i] : 0;
    if (to[2] != nullptr) static_cast<int32_t*>(to[2])[i] = i < tokens.size() ? 1 : 0;
  }
}

}  // namespace trainctl
