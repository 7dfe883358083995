// Finds faults in the samples of a job's sets before a run does.
#include "engine/train/data/sample_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/base/text.h"
#include "engine/model/index_uses.h"
#include "engine/planning/mixture.h"
#include "engine/planning/run_length.h"
#include "engine/spec/error_positions.h"
#include "engine/train/data/class_text_set.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/document_set.h"
#include "engine/train/data/drawn_shapes.h"
#include "engine/train/data/elements.h"
#include "engine/train/data/mixed_set.h"
#include "engine/train/data/mnist.h"
#include "engine/train/data/open_source.h"
#include "engine/train/data/preference_set.h"
#include "engine/train/data/source_set.h"
#include "engine/train/data/token_set.h"

namespace trainctl {
namespace {

/// The training set or the validation set of a job.
struct CheckedSet {
  const DatasetSpec& spec;
  uint64_t seed = 0;
  std::string section;  ///< section of the job: "dataset" or "validation.dataset"
};

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
/// Bytes of validation samples, after their transforms, that are read before a run.
constexpr int64_t kMostSampleBytes = int64_t{32} << 20;

/// In the first kMostSamplesRead samples, where the field comes from the source as it is. Named classes need no
/// reading.
std::optional<Stray> first_stray_of_source(const CheckedSet& set, const IndexUse& use) {
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
    return Stray{classes - 1,
                 fmt::format("the data set has {} classes, so labels range up to {}", classes, classes - 1)};
  }
  std::vector<bool> wanted(fields.size());
  wanted[at] = true;
  std::vector<FieldBytes> bytes(fields.size());
  std::vector<int32_t> values;
  for (int64_t i = 0; i < std::min(source->size(), kMostSamplesRead); ++i) {
    try {
      source->read(i, wanted, bytes);
    } catch (const EnvError&) {
      return {};  // The run reports the error, or skips the sample.
    }
    const auto count = static_cast<int64_t>(bytes[at].size()) / byte_size(field->type);
    values.resize(static_cast<size_t>(count));
    convert_elements(bytes[at].data(), field->type, count, DType::i32, values.data());
    for (const int32_t value : values)
      if (!use.accepts(value)) return Stray{value, fmt::format("{} has {} {}", source->where(i), use.input, value)};
  }
  return {};
}

/// The largest token of the tokenizer, if the network has no row for it. `documents` are below the row's length, and
/// adapters are checked as they are read.
std::optional<Stray> first_stray_of_documents(const DatasetSpec& spec, const IndexUse& use) {
  const int64_t largest =
      of_the_document_job("dataset.tokenizer", [&] { return open_tokenizer(spec.tokenizer); })->vocabulary_size() - 1;
  const bool has_tokens = use.input != "documents" && !(spec.has_adapters() && use.input == spec.adapter_field);
  if (!has_tokens || use.accepts(largest)) return {};
  return Stray{static_cast<int32_t>(largest), fmt::format("the tokenizer {} has token {}", spec.tokenizer, largest)};
}

std::optional<Stray> first_stray_of_class_texts(const DatasetSpec& spec, const IndexUse& use) {
  const ClassTextSet set(spec);
  if (use.input == "data") {
    const int64_t largest = set.tokenizer().vocabulary_size() - 1;
    if (use.accepts(largest)) return {};
    return Stray{static_cast<int32_t>(largest), fmt::format("the tokenizer {} has token {}", spec.tokenizer, largest)};
  }
  if (use.input != "label") return {};
  for (int64_t i = 0; i < std::min(set.size(), kMostSamplesRead); ++i)
    if (const int32_t label = set.label(i); !use.accepts(label))
      return Stray{label, fmt::format("{} has the class {}", set.where(i), label)};
  return {};
}

/// The first sample, in the set's order, with an element out of range.
std::optional<Stray> first_stray(const CheckedSet& checked, const IndexUse& use) {
  const DatasetSpec& spec = checked.spec;
  if (spec.has_documents() || spec.type == "preference") return first_stray_of_documents(spec, use);
  if (spec.has_class_texts()) return first_stray_of_class_texts(spec, use);
  if (spec.has_tokens()) {
    const auto stray = TokenSet(spec).first_stray(use.below, kMostTokensRead);
    if (!stray || use.accepts(stray->token)) return {};
    return Stray{stray->token, fmt::format("{}: token {} of the file is {}", stray->file, stray->place, stray->token)};
  }
  if (!spec.labels && use.input == "label") return {};
  if (spec.type == "mnist" && use.input == "label") {
    const std::vector<uint8_t> labels = read_mnist_labels(spec.paths.front(), spec.split);
    for (size_t i = 0; i < labels.size(); ++i)
      if (!use.accepts(labels[i])) return Stray{labels[i], fmt::format("sample {} has label {}", i, labels[i])};
    return {};
  }
  if (spec.type != "mnist") return first_stray_of_source(checked, use);
  const std::unique_ptr<Dataset> set = open_dataset(spec, checked.seed);
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
std::optional<Diagnostic> fault(const CheckedSet& checked, const IndexUse& use) {
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
  const std::optional<Stray> stray = first_stray(checked, use);
  if (!stray) return {};
  return Diagnostic{
      {},
      checked.section + ".path",
      stray->where + takes,
      stray->value < 0
          ? (use.input == "label" ? "an index cannot be negative; for samples without a class, set "
                                    "loss: {type: softmax_cross_entropy, ignore_index: " +
                                        std::to_string(stray->value) + "}"
                                  : "an index cannot be negative")
          : fmt::format("change the network to support at least {} ({}), or use other data", stray->value + 1,
                        use.input == "label" ? fmt::format("units: {} of its last layer", stray->value + 1)
                                             : fmt::format("vocab: {}", stray->value + 1))};
}

bool is_of_files(const DatasetSpec& set) {
  return set.type == "mnist" || set.has_source() || set.has_class_texts() || set.type == "preference";
}

/// The index that the loaded integers of a field break; nothing if they are all in range.
std::optional<Stray> stray_of(const std::vector<IndexUse>& uses, const SampleField& field,
                              const std::vector<std::byte>& loaded, const Dataset& set, int64_t sample,
                              std::string& reader) {
  const auto* values = reinterpret_cast<const int32_t*>(loaded.data());
  for (const IndexUse& use : uses) {
    if (use.input != field.name || !field.is_integer) continue;
    reader = fmt::format("{} supports 0 to {}", use.reader, use.below - 1);
    for (int64_t i = 0; i < field.elements(); ++i)
      if (!use.accepts(values[i]))
        return Stray{values[i], fmt::format("{} has {} {}", set.where(sample), field.name, values[i])};
  }
  return {};
}

std::string hint_for_unreadable(const std::string& what) {
  const std::string skip = ", or set dataset.on_error: skip to skip such samples";
  if (what.find("expected a number") == std::string::npos) return "repair the file" + skip;
  return "write a number there" + skip +
         "; a column of words needs a field of its own, whose numbers an embedding reads";
}

/// Reads samples as a validation does, and loads them as a device does: returns the first fault found.
std::optional<Diagnostic> first_unreadable(const CheckedSet& checked, const std::vector<IndexUse>& uses) {
  DatasetSpec spec = checked.spec;
  spec.cache = "none";
  const std::unique_ptr<Dataset> set = open_dataset(spec, checked.seed);
  std::vector<std::vector<std::byte>> read, loaded;
  std::vector<void*> to;
  int64_t sample_bytes = 0;
  for (const SampleField& field : set->fields()) {
    sample_bytes += field.bytes();
    to.push_back(read.emplace_back(static_cast<size_t>(field.bytes())).data());
    loaded.emplace_back(static_cast<size_t>(field.elements()) * sizeof(float));
  }
  const int64_t count = std::min(
      {set->size(), kMostSamplesRead, std::max<int64_t>(1, kMostSampleBytes / std::max<int64_t>(1, sample_bytes))});
  ReadState state;
  set->prepare(state);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sample = i * set->size() / count;
    try {
      state.rng = SampleRng(checked.seed, 0, sample);
      set->read(sample, state, to);
      for (size_t f = 0; f < to.size(); ++f) {
        const SampleField& field = set->fields()[f];
        load_field(field, read[f].data(), field.is_integer ? DType::i32 : DType::f32, loaded[f].data());
        std::string reader;
        if (const auto stray = stray_of(uses, field, loaded[f], *set, sample, reader))
          return Diagnostic{{}, checked.section + ".path", stray->where + ", but " + reader, "use other data"};
      }
    } catch (const EnvError& error) {
      return Diagnostic{{},
                        checked.section + ".path",
                        std::string("a sample cannot be read: ") + error.what(),
                        hint_for_unreadable(error.what())};
    }
  }
  return {};
}

/// "3 of 48 conversations train nothing"
std::string nothing_trained(int64_t count, int64_t all, const std::string& name) {
  return fmt::format("{} of {} {}{} train{} nothing", with_commas(count), with_commas(all), name, all == 1 ? "" : "s",
                     count == 1 ? "s" : "");
}

/// Empty if all documents train something.
std::string note_on_documents(const DatasetSpec& spec) {
  const DocumentSet::Summary found = DocumentSet(spec).summarize();
  if (found.untrained == 0) return "";
  std::vector<std::string> reasons;
  if (found.cut_off > 0)
    reasons.push_back(fmt::format("{} only behind the first {} tokens (dataset.length)", with_commas(found.cut_off),
                                  with_commas(spec.length)));
  if (const int64_t others = found.untrained - found.cut_off; others > 0 && spec.train_on == "assistant")
    reasons.push_back(with_commas(others) + " without an answer of an assistant");
  return nothing_trained(found.untrained, found.documents, spec.type == "chat" ? "conversation" : "document") +
         (reasons.empty() ? "" : " (" + join(reasons) + ")") + "; first: " + found.first_untrained;
}

std::string note_on_pairs(const DatasetSpec& spec) {
  const PreferenceSet set(spec);
  const PreferenceSet::Summary found = set.summarize();
  if (found.untrained == 0) return "";
  return nothing_trained(found.untrained, set.size(), "pair") +
         fmt::format(": an answer has no token among the first {} with its prompt (half of dataset.length); first: {}",
                     with_commas(spec.length / 2), found.first_untrained);
}

/// A validation reads other samples, but made sets draw them from the same range.
bool has_own_samples(const PlannedJob& job) {
  if (!job.validation) return false;
  if (job.validation->set.is_mix()) return true;
  return job.validation->set.has_tokens() || is_of_files(job.validation->set);
}

}  // namespace

namespace {

/// Adds a line for each source of a mixture: its share, and how often its samples are drawn.
void add_mixture_notes(const PlannedJob& job, std::vector<std::string>& notes) {
  const DatasetSpec& spec = job.spec.dataset;
  constexpr int64_t kMostSteps = 20'000'000;
  const int64_t steps = std::min(kMostSteps, total_steps(job.spec.train, steps_per_epoch(spec, job.data.samples)));
  Mixture mixture(spec, job.data.sources);
  const std::vector<double> first = mixture.shares(0), last = mixture.shares(std::max<int64_t>(0, steps - 1));
  const std::span<const int64_t> drawn = mixture.drawn_before(steps);
  for (size_t i = 0; i < mixture.size(); ++i) {
    const SourceHeader& source = mixture.sources()[i];
    std::string share = fmt::format("{:.1f} %", 100 * first[i]);
    if (std::abs(first[i] - last[i]) > 5e-4) share += fmt::format(" to {:.1f} %", 100 * last[i]);
    notes.push_back(fmt::format("mixture: {} gives {} of the samples: {} in {} steps, {:.2f} epochs of its {}",
                                source.name, share, with_commas(drawn[i]), with_commas(steps),
                                static_cast<double>(drawn[i]) / static_cast<double>(source.samples),
                                with_commas(source.samples)));
  }
}

/// The set itself, or the sources of a mixture.
std::vector<CheckedSet> checked_sets(const DatasetSpec& spec, uint64_t seed, const std::string& section) {
  if (!spec.is_mix()) return {{spec, seed, section}};
  std::vector<CheckedSet> sets;
  for (const DatasetSpec& source : spec.sources)
    sets.push_back({source, source_seed(seed, source.name), section + ".sources." + source.name});
  return sets;
}

}  // namespace

std::vector<std::string> notes_on_samples(const PlannedJob& job) {
  std::vector<std::string> notes;
  if (job.spec.dataset.has_mixture()) add_mixture_notes(job, notes);
  for (const std::string& note : job.data.notes) notes.push_back("dataset: " + note);
  const auto look_at = [&](const DatasetSpec& spec, const std::string& section) {
    std::string note;
    if (spec.has_documents()) note = note_on_documents(spec);
    if (spec.type == "preference") note = note_on_pairs(spec);
    if (!note.empty()) notes.push_back(section + ": " + note);
  };
  const auto look = [&](const DatasetSpec& spec, const char* section) {
    for (const CheckedSet& set : checked_sets(spec, job.spec.seed, section)) look_at(set.spec, set.section);
  };
  look(job.spec.dataset, "dataset");
  if (has_own_samples(job)) look(job.validation->set, "validation.dataset");
  return notes;
}

void require_intact_files(const PlannedJob& job) {
  try {
    check_files(job.spec.dataset);
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
  try {
    if (job.validation) check_files(job.validation->set);
  } catch (const SpecError& error) {
    throw with_validation_positions(error, job.spec);
  }
}

void require_sound_samples(const PlannedJob& job, ReadSamples read) {
  std::vector<CheckedSet> sets = checked_sets(job.spec.dataset, job.spec.seed, "dataset");
  const size_t training_sets = sets.size();
  if (has_own_samples(job))
    for (CheckedSet& set : checked_sets(job.validation->set, job.spec.seed, "validation.dataset"))
      sets.push_back(std::move(set));
  std::vector<IndexUse> uses = index_uses(job.graph);
  for (IndexUse& use : uses)
    for (const ServedTable& table : job.tables)
      if (table.field == use.input) use.below = table.rows;  // The graph contains only a window of the table.
  if (job.spec.dataset.type == "preference")
    for (IndexUse& use : uses)
      if (use.input == "targets") use.ignored = kNoTrainedLabel;
  std::vector<Diagnostic> faults;
  try {
    for (const CheckedSet& set : sets)
      for (const IndexUse& use : uses)
        if (std::optional<Diagnostic> one = fault(set, use)) {
          if (one->path.starts_with("dataset.") && set.section.starts_with("dataset.sources."))
            one->path = set.section + one->path.substr(one->path.rfind('.'));
          faults.push_back(std::move(*one));
        }
    for (size_t i = read == ReadSamples::all ? 0 : training_sets; i < sets.size() && faults.empty(); ++i)
      if (is_of_files(sets[i].spec))
        if (std::optional<Diagnostic> one = first_unreadable(sets[i], uses)) faults.push_back(std::move(*one));
    if (!faults.empty()) throw SpecError(std::move(faults));
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
}

}  // namespace trainctl
