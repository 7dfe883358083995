// Rules about auxiliary_losses.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/text.h"
#include "engine/spec/fields.h"
#include "engine/spec/network.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {

void auxiliary_losses_add_up(RuleContext& r) {
  const std::vector<LossSpec>& losses = r.job.auxiliary_losses;
  if (losses.empty() || !r.fine({"auxiliary_losses", "loss"})) return;
  if (!r.job.loss) r.wrong("auxiliary_losses", "are added to a loss, but the job has none", "e.g. loss: mse");
  const auto count = static_cast<int64_t>(losses.size() + r.job.metrics.size());
  if (count > static_cast<int64_t>(kMaxMetrics))
    r.wrong("auxiliary_losses",
            "a job has at most " + number(kMaxMetrics) + " metrics and auxiliary losses, not " + number(count));
  const std::vector<std::string> fields = r.job.dataset.field_names();
  for (size_t i = 0; i < losses.size(); ++i) {
    const LossSpec& loss = losses[i];
    for (size_t j = 0; j < i; ++j)
      if (losses[j].name == loss.name)
        r.wrong(loss.path, "has the same name as " + losses[j].path + ", '" + loss.name + "'", "name: another");
    if (!is_sample_field_name(loss.name))
      r.wrong(loss.path + ".name", "'" + loss.name + "' is not a valid name for a loss",
              "use letters, digits, '_' and '-', but not input, loss or grad");
    if (loss.attrs.has("ignore_index"))
      r.wrong(loss.path + ".ignore_index", "is supported for the loss only, not for auxiliary losses", "remove it");
    if (loss.type == "dpo" || loss.type == "distillation")
      r.wrong(loss.path + ".type", loss.type + " cannot be an auxiliary loss", "use it as the loss");
    else if (find_type(loss_types(), loss.type)->has_label &&
             std::find(fields.begin(), fields.end(), loss.label) == fields.end())
      r.wrong(loss.path, "needs a sample field '" + loss.label + "', but the samples have only " + join(fields),
              "label: one of them");
  }
}

}  // namespace trainctl::rules
