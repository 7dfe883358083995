// Notes on the samples of a job: the shares of a mixture, and documents and pairs that train nothing.
#include "engine/train/data/sample_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/text.h"
#include "engine/planning/mixture.h"
#include "engine/planning/run_length.h"
#include "engine/train/data/checked_sets.h"
#include "engine/train/data/document_set.h"
#include "engine/train/data/preference_set.h"

namespace trainctl {
namespace {

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
    reasons.push_back(fmt::format("{} only after the first {} tokens (dataset.length)", with_commas(found.cut_off),
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

}  // namespace trainctl
