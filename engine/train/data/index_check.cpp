// See the header.
#include "engine/train/data/index_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/model/index_uses.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/elements.h"
#include "engine/train/data/mnist.h"
#include "engine/train/data/open_source.h"
#include "engine/train/data/source_set.h"
#include "engine/train/data/token_set.h"

namespace trainctl {
namespace {

/// An integer of the set that is out of range.
struct Stray {
  int64_t value = 0;
  std::string where;  ///< "sample 17 has the label 12"
};

/// Tokens that are read before a run: a second or less. Kernels check the rest as they meet it, and all that follows a
/// token that is ignored.
constexpr int64_t kMostTokensRead = int64_t{1} << 27;
/// The same of samples in files.
constexpr int64_t kMostSamplesRead = 10'000;

/// In the first kMostSamplesRead samples, where the field comes from the source as it is. Named classes need no
/// reading.
std::optional<Stray> first_stray_of_source(const JobSpec& spec, const IndexUse& use) {
  const std::shared_ptr<const Source> source = open_source(spec.dataset, spec.seed);
  const std::vector<SourceField>& fields = source->fields();
  const auto field =
      std::find_if(fields.begin(), fields.end(), [&](const SourceField& f) { return f.name == use.input; });
  const auto at = static_cast<size_t>(field - fields.begin());
  if (field == fields.end() || field->encoding == Encoding::image) return {};
  if (!transforms_of(spec.dataset, fields, use.input).empty()) return {};
  const auto classes = static_cast<int64_t>(source->class_names().size());
  if (classes > 0 && use.input == "label") {
    if (classes <= use.below) return {};
    return Stray{classes - 1, fmt::format("the set has {} classes, so labels go up to {}", classes, classes - 1)};
  }
  std::vector<bool> wanted(fields.size());
  wanted[at] = true;
  std::vector<FieldBytes> bytes(fields.size());
  std::vector<int32_t> values;
  for (int64_t i = 0; i < std::min(source->size(), kMostSamplesRead); ++i) {
    try {
      source->read(i, wanted, bytes);
    } catch (const EnvError&) {
      return {};  // the run says so, or skips it
    }
    const auto count = static_cast<int64_t>(bytes[at].size()) / byte_size(field->type);
    values.resize(static_cast<size_t>(count));
    convert_elements(bytes[at].data(), field->type, count, DType::i32, values.data());
    for (const int32_t value : values)
      if (!use.accepts(value)) return Stray{value, fmt::format("{} has the {} {}", source->where(i), use.input, value)};
  }
  return {};
}

/// The first sample, in the set's order, with an element out of range.
std::optional<Stray> first_stray(const JobSpec& spec, const IndexUse& use) {
  if (spec.dataset.type == "tokens" || spec.dataset.type == "text") {
    const auto stray = TokenSet(spec.dataset).first_stray(use.below, kMostTokensRead);
    if (!stray || use.accepts(stray->token)) return {};
    return Stray{stray->token, fmt::format("{}: token {} of the file is {}", stray->file, stray->place, stray->token)};
  }
  if (spec.dataset.type == "mnist" && use.input == "label") {
    const std::vector<uint8_t> labels = read_mnist_labels(spec.dataset.paths.front(), spec.dataset.split);
    for (size_t i = 0; i < labels.size(); ++i)
      if (!use.accepts(labels[i])) return Stray{labels[i], fmt::format("sample {} has the label {}", i, labels[i])};
    return {};
  }
  if (spec.dataset.type != "mnist") return first_stray_of_source(spec, use);
  const std::unique_ptr<Dataset> set = open_dataset(spec.dataset, spec.seed);
  std::vector<int32_t> sample(static_cast<size_t>(set->fields()[static_cast<size_t>(set->find(use.input))].elements()));
  for (int64_t i = 0; i < set->size(); ++i) {
    set->read(use.input, i, sample.data());
    for (const int32_t value : sample)
      if (!use.accepts(value)) return Stray{value, fmt::format("sample {} has the element {}", i, value)};
  }
  return {};
}

std::string plural(const std::string& field) {
  return field == "label" ? "labels" : field == "data" ? "elements of the data" : "elements of " + field;
}

/// The field that decides, and what is wrong; nothing if all elements are in range.
std::optional<Diagnostic> fault(const JobSpec& spec, const IndexUse& use) {
  const std::string takes = fmt::format(", but {} takes 0 to {}", use.reader, use.below - 1);
  const DatasetSpec& set = spec.dataset;
  if (set.type == "random") {
    if (set.classes <= use.below) return {};
    return Diagnostic{{},
                      "dataset.classes",
                      fmt::format("{} are drawn from 0 to {}{}", plural(use.input), set.classes - 1, takes),
                      fmt::format("set dataset.classes: {}, or make the network take {}", use.below, set.classes)};
  }
  if (set.type == "clicks" && use.input == "ids") {
    if (set.vocab <= use.below) return {};
    return Diagnostic{{},
                      "dataset.vocab",
                      fmt::format("ids are drawn from 0 to {}{}", set.vocab - 1, takes),
                      fmt::format("set dataset.vocab: {}, or make the network take {}", use.below, set.vocab)};
  }
  if (set.type == "clicks") return {};  // a label is 0 or 1, and a loss has at least two classes
  if (set.type == "constant") {
    const double value = use.input == "label" ? set.label_value : set.value;
    if (use.accepts(static_cast<int64_t>(value))) return {};
    return Diagnostic{{},
                      use.input == "label" ? "dataset.label_value" : "dataset.value",
                      fmt::format("{} are {}{}", plural(use.input), value, takes),
                      "a value in that range, or make the network take more"};
  }
  const std::optional<Stray> stray = first_stray(spec, use);
  if (!stray) return {};
  return Diagnostic{{},
                    "dataset.path",
                    stray->where + takes,
                    stray->value < 0
                        ? (use.input == "label" ? "an index is never negative; for samples without a class: loss: {type: "
                                                  "softmax_cross_entropy, ignore_index: " +
                                                      std::to_string(stray->value) + "}"
                                                : "an index is never negative")
                        : fmt::format("make the network take at least {}, or use other data", stray->value + 1)};
}

}  // namespace

void require_indices_in_range(const PlannedJob& job) {
  std::vector<Diagnostic> faults;
  try {
    for (IndexUse use : index_uses(job.graph)) {
      for (const ServedTable& table : job.tables)
        if (table.field == use.input) use.below = table.rows;  // the graph has a window of it
      if (std::optional<Diagnostic> one = fault(job.spec, use)) faults.push_back(std::move(*one));
    }
    if (!faults.empty()) throw SpecError(std::move(faults));
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
}

}  // namespace trainctl
