// Maps tensors of a job to tensors in the file of another tool, with the order of their elements. The file is described
// in engine/spec/name_map_file.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/source_pos.h"
#include "engine/graph/shape.h"
#include "engine/spec/job_spec.h"
#include "engine/train/checkpoint/axis_order.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {

/// The settings of a job's layers: whether there is a layer "h.0.attn", and the integer in its field "heads", which is
/// empty if the field is not set.
struct LayerNumbers {
  std::function<bool(std::string_view layer)> has;
  std::function<std::optional<int64_t>(std::string_view layer, std::string_view field)> number;
};
/// Returns the numbers of a job's layers. `spec` must outlive it.
LayerNumbers numbers_of(const JobSpec& spec);

/// A tensor of ours, and the tensors of theirs that it is made of.
struct MappedTensor {
  std::string ours;
  std::vector<std::string> theirs;
  std::optional<AxisOrder> order;  ///< empty: one of theirs, with the same elements in the same places
  /// 0: the order describes the whole of ours. Otherwise the size of its dim 0: the order describes each index of it,
  /// and `theirs` lists the tensors of index 0, then those of index 1, and so on.
  int64_t each = 0;
  std::vector<AxisOrder::Product> sizes;
  std::string pattern;  ///< for messages
  SourcePos pos;

  /// The part of ours that the order describes, given the shape of ours. Throws SpecError if dim 0 is not `each`.
  Shape ordered_shape(const Shape& ours) const;
  /// The number of tensors of theirs that the order joins.
  size_t ordered_parts() const { return theirs.size() / static_cast<size_t>(each > 0 ? each : 1); }
};

/// A tensor of theirs that is a part of a tensor of the file.
struct FusedPart {
  std::string whole;               ///< tensor of the file
  std::vector<std::string> parts;  ///< its parts, one after the other along dim 0
  size_t index = 0;                ///< in `parts`
};

/// A tensor that is written in addition to those of the job.
struct MappedConstant {
  std::string name;
  StoredType type;
  int64_t value;
};

class NameMap {
 public:
  /// The map in which every tensor of the job has the same name in the file.
  static NameMap same_names();
  /// Parses the text of a map; `file` is for messages. Throws SpecError with all that is wrong.
  static NameMap parse(std::string_view text, const std::string& file);

  NameMap(NameMap&&) noexcept;
  NameMap& operator=(NameMap&&) noexcept;
  ~NameMap();

  /// Empty if no pattern has this name. Throws SpecError if two of them have the same name, or if a size names a layer
  /// that does not exist.
  std::optional<MappedTensor> of_ours(const std::string& name, const LayerNumbers& layers) const;
  /// Patterns under `tensors` that match none of these names of ours: misspelt patterns, or patterns of another
  /// network.
  std::vector<std::string> unused(const std::vector<std::string>& ours) const;
  /// Returns the constants that accompany a tensor of ours after this number of training steps.
  std::vector<MappedConstant> constants_with(const std::string& ours, int64_t steps) const;
  /// Returns whether a name of theirs needs no counterpart in the job, because it is under `ignore` or `constants`.
  bool ignores(const std::string& theirs) const;
  /// Empty if the file has the tensor under its own name.
  std::optional<FusedPart> fused_with(const std::string& theirs) const;
  /// The other name of a tensor of theirs, if it is tied to one.
  std::optional<std::string> tied_to(const std::string& theirs) const;

  /// Removes `prefix` from the map's names if none of the `names` in the files begins with it: then the files are of
  /// the bare model. Returns whether it has.
  bool drop_prefix_unless_used(const std::vector<std::string>& names);

 private:
  struct Patterns;
  explicit NameMap(std::unique_ptr<Patterns> patterns);

  std::unique_ptr<Patterns> patterns_;  ///< null: the same names
};

}  // namespace trainctl
