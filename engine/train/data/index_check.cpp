// See the header.
#include "engine/train/data/index_check.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "engine/model/index_uses.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/mnist.h"
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

/// The first sample, in the set's order, with an element out of range.
std::optional<Stray> first_stray(const JobSpec& spec, DataTensor which, const IndexUse& use) {
  if (spec.dataset.type == "tokens" || spec.dataset.type == "text") {
    const auto stray = TokenSet(spec.dataset).first_stray(use.below, kMostTokensRead);
    if (!stray || use.accepts(stray->token)) return {};
    return Stray{stray->token, fmt::format("{}: token {} of the file is {}", stray->file, stray->place, stray->token)};
  }
  if (which == DataTensor::label) {
    const std::vector<uint8_t> labels = read_mnist_labels(spec.dataset.paths.front(), spec.dataset.split);
    for (size_t i = 0; i < labels.size(); ++i)
      if (!use.accepts(labels[i])) return Stray{labels[i], fmt::format("sample {} has the label {}", i, labels[i])};
    return {};
  }
  const std::unique_ptr<Dataset> set = open_dataset(spec.dataset, spec.seed);
  std::vector<int32_t> sample(static_cast<size_t>(set->elements(which)));
  for (int64_t i = 0; i < set->size(); ++i) {
    set->read(which, i, sample.data());
    for (const int32_t value : sample)
      if (!use.accepts(value)) return Stray{value, fmt::format("sample {} has the element {}", i, value)};
  }
  return {};
}

std::string plural(DataTensor which) { return which == DataTensor::label ? "labels" : "elements of the data"; }

/// The field that decides, and what is wrong; nothing if all elements are in range.
std::optional<Diagnostic> fault(const JobSpec& spec, const IndexUse& use) {
  const DataTensor which = data_tensor(use.input);
  const std::string takes = fmt::format(", but {} takes 0 to {}", use.reader, use.below - 1);
  const DatasetSpec& set = spec.dataset;
  if (set.type == "random") {
    if (set.classes <= use.below) return {};
    return Diagnostic{{},
                      "dataset.classes",
                      fmt::format("{} are drawn from 0 to {}{}", plural(which), set.classes - 1, takes),
                      fmt::format("set dataset.classes: {}, or make the network take {}", use.below, set.classes)};
  }
  if (set.type == "constant") {
    const double value = which == DataTensor::label ? set.label_value : set.value;
    if (use.accepts(static_cast<int64_t>(value))) return {};
    return Diagnostic{{},
                      which == DataTensor::label ? "dataset.label_value" : "dataset.value",
                      fmt::format("{} are {}{}", plural(which), value, takes),
                      "a value in that range, or make the network take more"};
  }
  const std::optional<Stray> stray = first_stray(spec, which, use);
  if (!stray) return {};
  return Diagnostic{{},
                    "dataset.path",
                    stray->where + takes,
                    stray->value < 0
                        ? "an index is never negative"
                        : fmt::format("make the network take at least {}, or use other data", stray->value + 1)};
}

}  // namespace

void require_indices_in_range(const PlannedJob& job) {
  std::vector<Diagnostic> faults;
  try {
    for (const IndexUse& use : index_uses(job.graph))
      if (std::optional<Diagnostic> one = fault(job.spec, use)) faults.push_back(std::move(*one));
    if (!faults.empty()) throw SpecError(std::move(faults));
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
}

}  // namespace trainctl
