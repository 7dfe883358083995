// Everything that the job file, its reference, the model and the compiler know about one metric: a number that is
// computed of the predictions and reported with the loss. A metric is in the folder of its op
// (top_k_correct/top_k_correct.cpp defines accuracy_metric) and is listed in its OpFamily.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/entry_types.h"
#include "engine/ops/op_def.h"

namespace trainctl {

/// The op reads (prediction, label) and computes [1], a sum of whole numbers over the rows. What is reported is that
/// sum over the global batch, divided by its rows. So it is the same number under every plan: f32 adds whole numbers
/// below 2^24 exactly.
struct MetricDef {
  const char* name;                ///< the `type` of a job file
  const char* doc;                 ///< without a full stop
  std::vector<Field> fields = {};  ///< become attrs of the op
  const OpDef* op;
  /// The name that is reported: "top_5".
  std::string (*reported_as)(const Attrs& fields);
};

/// Every metric, in the order of the reference.
std::span<const MetricDef* const> all_metrics();
/// Null if there is none of that name.
const MetricDef* find_metric(std::string_view name);

}  // namespace trainctl
