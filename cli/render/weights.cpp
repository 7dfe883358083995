// The shard of each parameter that a rank has, its initial values, and its offset.
#include "cli/render/weights.h"

#include <algorithm>

#include "cli/text/table.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

std::string describe(const Init& init) {
  const std::string value = to_string(Value(init.value));
  switch (init.kind) {
    case Init::Kind::constant:
      return value;
    case Init::Kind::uniform:
      return "uniform(-" + value + ", " + value + ")";
    case Init::Kind::normal:
      return "normal(0, " + value + ")";
    case Init::Kind::row_norms:
      return "norms of the rows of its weight";
  }
  return "";
}

/// "[256:512, 0:784]"; "all" for the whole tensor.
std::string part(const Variable& variable) {
  if (variable.shape == variable.global_shape) return "all";
  std::vector<std::string> ranges;
  for (size_t dim = 0; dim < variable.shape.size(); ++dim) {
    const int64_t first = variable.offset[dim];
    ranges.push_back(std::to_string(first) + ":" + std::to_string(first + variable.shape[dim]));
  }
  return "[" + join(ranges) + "]";
}

std::string place(const Variable& variable, const Program& program) {
  if (variable.bucket < 0) return "arena + " + std::to_string(variable.arena_offset);
  const Bucket& bucket = program.buckets[static_cast<size_t>(variable.bucket)];
  return bucket.name + "[" + std::to_string(variable.bucket_element) + "]";
}

}  // namespace

std::string render_weights(const Program& program) {
  Table variables({"name", "shape", "local shard", ">bytes", "initial value", "stored in"});
  for (const Variable& variable : program.variables) {
    const int64_t bytes = num_elements(variable.shape) * byte_size(variable.dtype);
    variables.add({variable.name, to_string(variable.global_shape), part(variable), with_commas(bytes),
                   describe(variable.init), place(variable, program)});
  }
  const auto offset = [](int64_t at) { return at < 0 ? std::string("-") : std::to_string(at); };
  const bool copied = std::any_of(program.buckets.begin(), program.buckets.end(),
                                  [](const Bucket& bucket) { return bucket.has_compute_copy(); });
  std::vector<std::string> head = {"bucket", ">elements", "optimizer sharding", ">weights at", ">gradients at"};
  if (copied) head.push_back(">bf16 copy at");
  Table buckets(head);
  for (const Bucket& bucket : program.buckets) {
    const std::string sharding = bucket.level == 0
                                     ? "none"
                                     : "level " + std::to_string(bucket.level) + ", shard " +
                                           std::to_string(bucket.shard) + " of " + std::to_string(bucket.shards);
    std::vector<std::string> row = {bucket.name, with_commas(bucket.elements), sharding, offset(bucket.weights_offset),
                                    offset(bucket.gradients_offset)};
    if (copied) row.push_back(offset(bucket.compute_offset));
    buckets.add(std::move(row));
  }
  std::string text = "rank " + std::to_string(program.rank) + ", stage " + std::to_string(program.stage) + "\n";
  if (variables.empty()) return text + "  no parameters\n";
  text += variables.str();
  if (!buckets.empty()) text += "\n" + buckets.str();
  return text;
}

}  // namespace trainctl
