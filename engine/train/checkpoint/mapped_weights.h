// Reads the tensors of a job from another tool's files, according to a name map. The constructor reads only headers;
// read() then reads only the elements of the box that it fills.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/box.h"
#include "engine/graph/dtype.h"
#include "engine/graph/packing.h"
#include "engine/planning/planned_job.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/name_map.h"
#include "engine/train/checkpoint/weight_files.h"

namespace trainctl {

/// Describes how the tensors of files and job correspond. "Theirs" are names in the files, "ours" names in the job.
struct WeightMatch {
  std::vector<std::string> ignored;   ///< theirs that the map says to ignore
  std::vector<std::string> tied;      ///< "lm_head.weight is transformer.wte.weight"
  std::vector<std::string> missing;   ///< ours that the files lack
  std::vector<std::string> extra;     ///< theirs that no tensor of the job uses
  std::vector<std::string> reshaped;  ///< ours of another shape, with the reason
  std::vector<std::string> unused;    ///< patterns of the map that no tensor of the job has

  bool fits() const { return missing.empty() && extra.empty() && reshaped.empty(); }
};

class MappedWeights {
 public:
  struct Variable {
    std::string name;
    bool is_parameter = true;  ///< false: a running statistic
    Shape shape{};
    Packing packing = Packing::none;  ///< read() rounds to the values of this storage
  };

  /// `variables` are the tensors that the files should have. Throws SpecError at the pattern whose order does not fit a
  /// tensor, or that gives one tensor of theirs to a second tensor of ours.
  MappedWeights(const std::vector<Variable>& variables, const LayerNumbers& layers, WeightFiles files, NameMap map);
  /// The same for all tensors of a job except those of adapters, which begin with initial values.
  MappedWeights(const PlannedJob& job, WeightFiles files, NameMap map);

  const std::string& path() const { return files_.path(); }
  const WeightMatch& match() const { return match_; }
  /// Throws EnvError with everything that does not fit; with `partial`, only if nothing fits. `remedy` ends the
  /// message.
  void require_fit(bool partial, const std::string& remedy) const;
  /// Throws EnvError if the job ties two tensors whose values differ in the files, or, with `partial`, lists them as
  /// extra. Reads those tensors.
  void require_equal_ties(bool partial);

  /// The tensors that the files have, in the order of the job.
  std::vector<Variable> variables() const;
  bool has(std::string_view name) const { return by_name_.contains(std::string(name)); }
  const Shape& shape(std::string_view name) const { return source_of(name).shape; }
  /// Fills `to`, contiguous and of box.shape. `dtype` is f32 or bf16, rounded to nearest even.
  void read(std::string_view name, const Box& box, DType dtype, void* to) const;
  /// Bytes of the files' tensors that the job uses.
  int64_t bytes() const;

 private:
  /// A tensor of the files, or consecutive rows of one.
  struct Rows {
    std::string name;
    int64_t first = 0;
    bool is_part = false;  ///< part of a fused tensor
  };
  struct Source {
    std::string name;
    bool is_parameter = true;
    Shape shape;
    MappedTensor mapped;
    AxisOrder order;
    AxisOrder::Sizes sizes{};
    std::vector<Rows> theirs{};
    Packing packing = Packing::none;
  };

  const Source& source_of(std::string_view name) const;
  void expect(const Variable& variable, const LayerNumbers& layers);
  void require_own_sources(const MappedTensor& mapped);
  void find(Source source);
  bool find_theirs(Source& source);
  std::string shape_defect(const Source& source) const;
  void add_left_over(const std::string& name);
  bool are_equal(const std::string& a, const std::string& b) const;
  std::string message() const;
  /// Reads values that are stored in packed form: reads whole blocks and rounds them.
  void read_rounded(const Source& source, const Box& box, float* to) const;
  void read_floats(const Source& source, const Box& box, float* to) const;
  void read_ordered(const Source& source, size_t first_part, const Box& box, float* to) const;

  WeightFiles files_;
  NameMap map_;
  std::vector<Source> sources_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, Shape> expected_;                     ///< shapes of theirs that the job expects
  std::set<std::string> used_;                                ///< theirs
  std::map<std::string, std::string> takers_;                 ///< by theirs: the first of ours that the map gives it
  std::vector<std::pair<std::string, std::string>> doubled_;  ///< theirs that the job ties, and the files have twice
  WeightMatch match_;
};

/// Writes the weights and running statistics of this rank that the files have into the arena. Everything else keeps its
/// initial values. `on_progress` is called after each part of a few MB, so that others see that the rank has not
/// stopped.
void load_weights(const Program& program, const MappedWeights& weights, Executor& executor,
                  const std::function<void()>& on_progress = {});

}  // namespace trainctl
