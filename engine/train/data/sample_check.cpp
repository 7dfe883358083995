// Finds faults in the samples of a job's sets before a run does.
#include "engine/train/data/sample_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "engine/base/text.h"
#include "engine/model/index_uses.h"
#include "engine/spec/error_positions.h"
#include "engine/train/data/checked_sets.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/document_set.h"
#include "engine/train/data/elements.h"
#include "engine/train/data/index_range.h"
#include "engine/train/data/open_source.h"

namespace trainctl {
namespace {

/// Bytes of validation samples, after their transforms, that are read before a run.
constexpr int64_t kMostSampleBytes = int64_t{32} << 20;

/// "sample 17 has label 12, but fc supports 0 to 9", for the first integer of a loaded field that is out of range; ""
/// if there is none.
std::string out_of_range(const std::vector<IndexUse>& uses, const SampleField& field,
                         const std::vector<std::byte>& loaded, const Dataset& set, int64_t sample) {
  const auto* values = reinterpret_cast<const int32_t*>(loaded.data());
  for (const IndexUse& use : uses) {
    if (use.input != field.name || !field.is_integer) continue;
    for (int64_t i = 0; i < field.elements(); ++i)
      if (!use.accepts(values[i]))
        return fmt::format("{} has {} {}, but {} supports 0 to {}", set.where(sample), field.name, values[i],
                           use.reader, use.below - 1);
  }
  return "";
}

/// Shows how a table cell can be written that a person reads as a number but a program does not; "" for any other cell.
std::string hint_for_cell(const std::string& cell) {
  const std::string word = lower_case(cell);
  for (const char* flag : {"true", "false", "yes", "no", "t", "f", "y", "n"})
    if (word == flag) return "write 1 for true and 0 for false in this column";
  if (std::regex_match(cell, std::regex(R"([+-]?\d{1,3}([,' ]\d{3})+(\.\d+)?)")))
    return "write numbers without thousands separators: 1100";
  if (std::regex_match(cell, std::regex(R"([+-]?\d+,\d+)"))) return "write a decimal point: 0.5";
  if (std::regex_match(cell, std::regex(R"(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?|\d{1,2}:\d{2}(:\d{2})?)")))
    return "a date or time is not a number: write its parts (year, month, day) or the days since a day into columns of "
           "their own, or leave the column out of dataset.fields";
  if (std::regex_match(
          cell,
          std::regex(
              R"([^0-9a-zA-Z]{0,3} ?[+-]?\d+(\.\d+)? ?(%|[a-zA-Z]{1,3}|[^ -~]+)|[^0-9a-zA-Z.+-]{1,3} ?\d+(\.\d+)?)")))
    return "write the number alone, without its unit";
  return "";
}

std::string hint_for_unreadable(const CheckedSet& checked, const std::string& what) {
  if (!checked.spec.labels) {  // The files are those that trainctl predict answers for, so no sample may take the place
                               // of another.
    const std::vector<std::string>& paths = checked.spec.paths;
    std::error_code ignored;
    const bool is_folder = paths.size() == 1 && std::filesystem::is_directory(paths.front(), ignored);
    return "repair or remove it" +
           (is_folder ? "; trainctl data check " + paths.front() + " lists all such files" : std::string());
  }
  const std::string skip = ", or set dataset.on_error: skip to skip such samples";
  const size_t expected = what.find("expected a number");
  if (expected == std::string::npos) return "repair the file" + skip;
  if (const size_t found = what.find("found '", expected); found != std::string::npos) {
    const size_t begin = found + 7;
    const std::string hint = hint_for_cell(what.substr(begin, what.rfind('\'') - begin));
    if (!hint.empty()) return hint + skip;
  }
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
  constexpr int64_t kMostFromStore = 64;
  const int64_t count = std::min({set->size(), reads_store(spec) ? kMostFromStore : kMostSamplesRead,
                                  std::max<int64_t>(1, kMostSampleBytes / std::max<int64_t>(1, sample_bytes))});
  if (reads_store(spec))
    for (int64_t i = 0; i < count; ++i) set->expect(i * set->size() / count);
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
        if (const std::string fault = out_of_range(uses, field, loaded[f], *set, sample); !fault.empty())
          return Diagnostic{{}, checked.section + ".path", fault, "use other data"};
      }
    } catch (const EnvError& error) {
      return Diagnostic{{},
                        checked.section + ".path",
                        std::string("a sample cannot be read: ") + error.what(),
                        hint_for_unreadable(checked, error.what())};
    }
  }
  return {};
}

}  // namespace

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

/// Throws SpecError if an index in the samples is out of range, or a sample cannot be read.
void require_sound_samples(const PlannedJob& job, ReadSamples read) {
  std::vector<CheckedSet> sets = checked_sets(job.spec.dataset, job.spec.seed, "dataset");
  const size_t training_sets = sets.size();
  if (has_own_samples(job))
    for (CheckedSet& set : checked_sets(job.validation->set, job.spec.seed, "validation.dataset"))
      sets.push_back(std::move(set));
  std::vector<IndexUse> uses = index_uses(job.graph);
  for (IndexUse& use : uses)
    for (const ServedTable& table : job.tables)
      if (table.field == use.input) use.below = table.rows;  // the graph contains only a window of the table
  if (job.spec.dataset.type == "preference")
    for (IndexUse& use : uses)
      if (use.input == "targets") use.ignored = kNoTrainedLabel;
  std::vector<Diagnostic> faults;
  try {
    for (const CheckedSet& set : sets)
      for (const IndexUse& use : uses)
        if (std::optional<Diagnostic> one = index_out_of_range(set, use)) {
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
