// Rules about dataset.type: mix.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/base/text.h"
#include "engine/spec/batch_transforms.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {
namespace {

/// Checks that shares name sources of the mixture, and that at least one share is above 0.
void shares_name_sources(RuleContext& r, const std::string& path, const std::vector<SourceShare>& shares) {
  double sum = 0;
  for (const SourceShare& share : shares) {
    sum += share.share;
    if (!has_source_called(r.job.dataset, share.source))
      r.wrong(path + "." + share.source, "there is no source '" + share.source + "'",
              did_you_mean(share.source, source_names(r.job.dataset)));
  }
  if (!shares.empty() && !(sum > 0)) r.wrong(path, "has no share above 0");
}

}  // namespace

void mixture_is_consistent(RuleContext& r) {
  const DatasetSpec& mix = r.job.dataset;
  if (!mix.is_mix() || !r.fine({"dataset"})) return;
  const auto not_of_a_mix = [&](const char* field, bool is_set, const char* hint) {
    if (is_set) r.wrong(std::string("dataset.") + field, "cannot be used for a mixture", hint);
  };
  not_of_a_mix("shuffle", !mix.shuffle, "set it in dataset.sources");
  not_of_a_mix("shuffle_block", mix.shuffle_block > 0, "set it in dataset.sources");
  not_of_a_mix("repeat", mix.repeat != 1, "remove it: sources are repeated by their shares");
  not_of_a_mix("drop_last", !mix.drop_last, "remove it: every batch of a mixture is full");
  if (r.job.is_asynchronous())
    r.wrong("dataset.type", "a mixture cannot be used with asynchronous servers", "set another parallel.mode");
  shares_name_sources(r, "dataset.mix", mix.mix);
  for (size_t i = 0; i < mix.mix_schedule.size(); ++i) {
    const ShareChange& change = mix.mix_schedule[i];
    shares_name_sources(r, change.path + ".mix", change.shares);
    if (i > 0 && change.step < mix.mix_schedule[i - 1].step + mix.mix_schedule[i - 1].ramp)
      r.wrong(change.path + ".step", "step " + number(change.step) + " is before the end of the previous change",
              "steps ascend, and a ramp ends before the next one begins");
  }
  std::set<std::string> names;
  for (const DatasetSpec& source : mix.sources) {
    if (!names.insert(source.name).second)
      r.wrong("dataset.sources." + source.name, "there are two sources '" + source.name + "'");
    for (const TransformSpec& transform : source.transforms)
      if (is_of_batch(transform))
        r.wrong(transform.path, transform.name + " mixes rows of a batch, which cannot be used in a mixture",
                "remove it");
  }
}

}  // namespace trainctl::rules
