// Finds integers in a data set that are out of range where the network uses them as an index: classes, tokens, ids.
#include "engine/train/data/index_range.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/train/data/class_text_set.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/document_set.h"
#include "engine/train/data/drawn_shapes.h"
#include "engine/train/data/elements.h"
#include "engine/train/data/mnist.h"
#include "engine/train/data/open_source.h"
#include "engine/train/data/source_set.h"
#include "engine/train/data/token_set.h"

namespace trainctl {
namespace {

/// An integer of the set that is out of range.
struct OutOfRange {
  int64_t value = 0;
  std::string where;  ///< "sample 17 has the label 12"
};

/// Most tokens that are read before a run, which takes a second or less. The kernels check all other tokens while the
/// run reads them, and all tokens after a token that is ignored.
constexpr int64_t kMostTokensRead = int64_t{1} << 27;

/// Returns the first integer out of range among the first kMostSamplesRead samples, if the field comes from the source
/// unchanged. Named classes need no reading.
std::optional<OutOfRange> first_in_source(const CheckedSet& set, const IndexUse& use) {
  const std::shared_ptr<const Source> source = open_source(set.spec, set.seed);
  const std::vector<SourceField>& fields = source->fields();
  const auto field =
      std::find_if(fields.begin(), fields.end(), [&](const SourceField& f) { return f.name == use.input; });
  const auto at = static_cast<size_t>(field - fields.begin());
  if (field == fields.end() || field->encoding == Encoding::image) return {};
  if (!transforms_of(set.spec, fields, use.input).empty()) return {};
  const auto classes = static_cast<int64_t>(source->class_names().size());
  if (classes > 0 && use.input == "label") {
    if (classes <= use.below) return {};
    return OutOfRange{classes - 1,
                      fmt::format("the data set has {} classes, so labels range up to {}", classes, classes - 1)};
  }
  std::vector<bool> wanted(fields.size());
  wanted[at] = true;
  std::vector<FieldBytes> bytes(fields.size());
  std::vector<int32_t> values;
  const bool is_remote = reads_store(set.spec);
  const int64_t samples = std::min(source->size(), is_remote ? kMostStoreSamplesRead : kMostSamplesRead);
  for (int64_t i = 0; is_remote && i < samples; ++i) source->expect(i);
  for (int64_t i = 0; i < samples; ++i) {
    try {
      source->read(i, wanted, bytes);
    } catch (const EnvError&) {
      return {};  // The run itself will report the error, or skip the sample.
    }
    const auto count = static_cast<int64_t>(bytes[at].size()) / byte_size(field->type);
    values.resize(static_cast<size_t>(count));
    convert_elements(bytes[at].data(), field->type, count, DType::i32, values.data());
    for (const int32_t value : values)
      if (!use.accepts(value))
        return OutOfRange{value, fmt::format("{} has {} {}", source->where(i), use.input, value)};
  }
  return {};
}

/// Returns the largest token of the tokenizer, if the network has no row for it. The field `documents` is always below
/// the row's length, and adapters are checked as they are read.
std::optional<OutOfRange> first_in_documents(const DatasetSpec& spec, const IndexUse& use) {
  const int64_t largest =
      of_the_document_job("dataset.tokenizer", [&] { return open_tokenizer(spec.tokenizer); })->vocabulary_size() - 1;
  const bool has_tokens = use.input != "documents" && !(spec.has_adapters() && use.input == spec.adapter_field);
  if (!has_tokens || use.accepts(largest)) return {};
  return OutOfRange{static_cast<int32_t>(largest),
                    fmt::format("the tokenizer {} has token {}", spec.tokenizer, largest)};
}

std::optional<OutOfRange> first_in_class_texts(const DatasetSpec& spec, const IndexUse& use) {
  const ClassTextSet set(spec);
  if (use.input == "data") {
    const int64_t largest = set.tokenizer().vocabulary_size() - 1;
    if (use.accepts(largest)) return {};
    return OutOfRange{static_cast<int32_t>(largest),
                      fmt::format("the tokenizer {} has token {}", spec.tokenizer, largest)};
  }
  if (use.input != "label") return {};
  for (int64_t i = 0; i < std::min(set.size(), kMostSamplesRead); ++i)
    if (const int32_t label = set.label(i); !use.accepts(label))
      return OutOfRange{label, fmt::format("{} has the class {}", set.where(i), label)};
  return {};
}

/// The first sample, in the set's order, with an element out of range.
std::optional<OutOfRange> first_out_of_range(const CheckedSet& checked, const IndexUse& use) {
  const DatasetSpec& spec = checked.spec;
  if (spec.has_documents() || spec.type == "preference") return first_in_documents(spec, use);
  if (spec.has_class_texts()) return first_in_class_texts(spec, use);
  if (spec.has_tokens()) {
    const auto found = TokenSet(spec).first_stray(use.below, kMostTokensRead);
    if (!found || use.accepts(found->token)) return {};
    return OutOfRange{found->token,
                      fmt::format("{}: token {} of the file is {}", found->file, found->place, found->token)};
  }
  if (!spec.labels && use.input == "label") return {};
  if (spec.type == "mnist" && use.input == "label") {
    const std::vector<uint8_t> labels = read_mnist_labels(spec.paths.front(), spec.split);
    for (size_t i = 0; i < labels.size(); ++i)
      if (!use.accepts(labels[i])) return OutOfRange{labels[i], fmt::format("sample {} has label {}", i, labels[i])};
    return {};
  }
  if (spec.type != "mnist") return first_in_source(checked, use);
  const std::unique_ptr<Dataset> set = open_dataset(spec, checked.seed);
  std::vector<int32_t> sample(static_cast<size_t>(set->fields()[static_cast<size_t>(set->find(use.input))].elements()));
  for (int64_t i = 0; i < set->size(); ++i) {
    set->read(use.input, i, sample.data());
    for (const int32_t value : sample)
      if (!use.accepts(value)) return OutOfRange{value, fmt::format("sample {} has the element {}", i, value)};
  }
  return {};
}

std::string plural(const std::string& field) {
  return field == "label" ? "labels" : field == "data" ? "elements of the data" : "elements of " + field;
}

}  // namespace

std::optional<Diagnostic> index_out_of_range(const CheckedSet& checked, const IndexUse& use) {
  const std::string takes = fmt::format(", but {} supports 0 to {}", use.reader, use.below - 1);
  const DatasetSpec& set = checked.spec;
  if (set.type == "random") {
    if (set.classes <= use.below) return {};
    return Diagnostic{
        {},
        "dataset.classes",
        fmt::format("{} are drawn from 0 to {}{}", plural(use.input), set.classes - 1, takes),
        fmt::format("set dataset.classes: {}, or change the network to support {}", use.below, set.classes)};
  }
  if (set.type == "clicks" && use.input == "ids") {
    if (set.vocab <= use.below) return {};
    return Diagnostic{{},
                      "dataset.vocab",
                      fmt::format("ids are drawn from 0 to {}{}", set.vocab - 1, takes),
                      fmt::format("set dataset.vocab: {}, or change the network to support {}", use.below, set.vocab)};
  }
  if (set.type == "clicks") return {};  // a label is 0 or 1, and a loss has at least two classes
  if (set.type == "shapes" && use.input == "label") {
    if (use.below >= kDrawnClasses) return {};
    return Diagnostic{{},
                      "dataset.type",
                      fmt::format("the labels of shapes are 0 to {}{}", kDrawnClasses - 1, takes),
                      fmt::format("let the network predict {} classes", kDrawnClasses)};
  }
  if (set.type == "preference" && use.input == "label") return {};  // always 0
  if (set.type == "constant") {
    const double value = use.input == "label" ? set.label_value : set.value;
    if (use.accepts(static_cast<int64_t>(value))) return {};
    return Diagnostic{{},
                      use.input == "label" ? "dataset.label_value" : "dataset.value",
                      fmt::format("{} are {}{}", plural(use.input), value, takes),
                      "use a value in that range, or change the network to support more"};
  }
  const std::optional<OutOfRange> found = first_out_of_range(checked, use);
  if (!found) return {};
  return Diagnostic{
      {},
      checked.section + ".path",
      found->where + takes,
      found->value < 0
          ? (use.input == "label" ? "an index cannot be negative; for samples without a class, set "
                                    "loss: {type: softmax_cross_entropy, ignore_index: " +
                                        std::to_string(found->value) + "}"
                                  : "an index cannot be negative")
          : fmt::format("change the network to support at least {} ({}), or use other data", found->value + 1,
                        use.input == "label" ? fmt::format("units: {} of its last layer", found->value + 1)
                                             : fmt::format("vocab: {}", found->value + 1))};
}

}  // namespace trainctl
