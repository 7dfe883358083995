// The cost of a choice of axes: the kernels of every node, cut as chosen, and the redistribution of every tensor
// from the layout it is made in to each layout it is read in, forward and backward.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/axes/units.h"
#include "engine/plan/layout.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

/// Axes per factor of a layer.
using FactorAxes = std::vector<Axes>;

class Traffic {
 public:
  /// Work done once per step (sums of parameter gradients, weights shared by layers that want them in different
  /// layouts) counts 1/micro_batches here, and only the part of it that does not overlap with other work. It has no
  /// latency, because it is done in large buckets.
  Traffic(const Graph& graph, const Units& units, const Mesh& mesh, const CostModel& cost, int micro_batches,
          double once_per_step_part = 1);

  /// A unit that was never set, or is unset again, costs nothing; nor do the tensors that it makes or reads.
  void set(int unit, const FactorAxes& axes);
  /// Numbers of a unit's axes, for a unit that is set to the same axes often.
  struct Coded {
    std::vector<uint64_t> codes;  ///< one per factor: the number of its axes
    std::vector<int> ways;        ///< number of parts that they give
  };
  Coded coded(const FactorAxes& axes);
  void set(int unit, const Coded& axes);
  void unset(int unit) { is_set_[unit] = false; }
  /// Seconds per micro-batch of the units' kernels and of every tensor that their nodes make or read.
  double around(const std::vector<int>& units);
  /// Seconds per micro-batch of all units. Each tensor counts once.
  double total();

  /// The terms of total(), for a search over them: the seconds of a unit's kernels, and the seconds of redistributing a
  /// tensor between the units that make and read it.
  double unit_seconds(int unit) const { return work_seconds(unit); }
  double tensor_seconds(TensorId tensor) { return moved(tensors_[static_cast<size_t>(tensor)]).seconds; }
  /// The bytes that a rank sends per micro-batch for a tensor. Bytes that are sent once per step count 1/micro_batches.
  double tensor_bytes(TensorId tensor) { return moved(tensors_[static_cast<size_t>(tensor)]).bytes; }
  /// True for parameters and their gradients, which move once per step.
  bool moves_once_per_step(TensorId tensor) const;
  /// The units that make or read the tensor, ascending and without repetition.
  std::vector<int> units_of(TensorId tensor) const;
  /// Units that produce or read a tensor that this one produces or reads; may contain repetitions.
  std::vector<int> units_beside(int unit) const;
  /// Appends everything except axes that `around({unit})` depends on, with other units as distances from this one.
  void describe(int unit, std::string& out) const;
  /// Appends everything except axes that the tensor's seconds depend on; its units by their numbers in
  /// `number_of_unit`.
  void describe(TensorId tensor, const std::vector<int>& number_of_unit, std::string& out) const;
  /// Number of uses of a tensor. Uses are numbered: first the units that make it, then the units that read it.
  size_t num_uses(TensorId tensor) const;
  /// The layout in which a use has the tensor, by a number.
  struct UseLayout {
    size_t use = 0;
    int layout = -1;
    friend auto operator<=>(const UseLayout&, const UseLayout&) = default;
  };
  /// The part of this unit's axes that the tensor's seconds depend on.
  std::vector<UseLayout> layouts_at(TensorId tensor, int unit);
  /// Seconds of a tensor with a given layout number for each use. A use with -1 is left out, like the uses of a unit
  /// that is not set.
  double tensor_seconds(TensorId tensor, const std::vector<int>& layouts);

 private:
  struct Use {
    int unit = -1;
    std::vector<int> dims;    ///< the factor that cuts each dim, or -1
    std::vector<int> summed;  ///< factors over which it is partial
    bool once_per_step = false;
    friend bool operator==(const Use&, const Use&) = default;
  };
  /// A tensor with several sources is the sum of a term from each. Terms made in the same layout are added before they
  /// are moved (place_sums).
  struct TensorUses {
    std::vector<Use> sources;
    std::vector<Use> targets;
    uint64_t shape_class = 0;
  };
  struct NodeWork {
    double seconds = 0;
    std::vector<int> factors;
    /// Statistics that its ranks exchange if one of these is cut (Rule::inner).
    std::vector<int> inner = {};
    int64_t statistics_bytes = 0;  ///< bytes of statistics of the whole op; 0: none, or counted at another node
    /// Bytes of all blocks of a rank (InnerSum::block), by number of parts.
    std::map<int, int64_t> block_bytes = {};
    /// The factor of causal attention's rows: if it is cut by position, all wait for the rank with the last rows. -1:
    /// it has none, or its ranks balance their rows.
    int causal_rows = -1;
  };

  template <class NumberOf>
  static void describe(const TensorUses& tensor, NumberOf number_of, std::string& out);
  void add_work(const Graph& graph);
  void add_tensor(const Graph& graph, TensorId tensor, const std::vector<NodeId>& consumers);
  void add_gradient_sums(const Graph& graph);
  void join_terms(const Graph& graph);
  Use made_by(const Graph& graph, TensorId tensor) const;
  double work_seconds(int unit) const;
  double inner_sum_seconds(int unit, const NodeWork& work) const;
  struct Moved {
    double seconds = 0, bytes = 0;
  };
  Moved moved(const TensorUses& tensor);
  uint64_t number_of(const Axes& axes);
  /// Writes the layout of a use as words: the number of the axes of each dim, then the axes of the partial sum, one bit
  /// each.
  void pack(const Use& use, std::vector<uint64_t>& out) const;
  Layout unpack(const std::vector<uint64_t>& packed) const;
  /// Returns the number of a packed layout. Equal layouts have equal numbers.
  int layout_number(const std::vector<uint64_t>& packed);
  const Moved& move(const TensorUses& tensor, bool once_per_step, int from, int to);
  struct PackedHash {
    size_t operator()(const std::vector<uint64_t>& packed) const;
  };

  const Units& units_;
  const Mesh& mesh_;
  CostModel cost_;
  CostModel bucketed_;                                 ///< without latency
  double once_per_step_weight_, once_per_step_share_;  ///< factors of once-per-step work: on seconds, on bytes
  std::vector<TensorUses> tensors_;
  std::vector<std::vector<size_t>> touched_;  ///< by unit: its tensors
  std::vector<std::vector<NodeWork>> work_;   ///< by unit: its nodes
  static constexpr uint64_t kNotCut = 0;
  std::vector<Axes> axes_lists_ = {{}};  ///< by number
  std::map<Axes, uint64_t> axes_numbers_ = {{{}, kNotCut}};
  std::vector<Coded> coded_;  ///< by unit
  std::vector<bool> is_set_;
  std::vector<std::pair<Shape, DType>> shapes_;
  std::unordered_map<std::vector<uint64_t>, int, PackedHash> layout_numbers_;
  std::vector<const std::vector<uint64_t>*> layouts_;  ///< packed, by number
  std::unordered_map<uint64_t, Moved> known_;          ///< by shape class, whether once per step, and layouts
  std::vector<uint32_t> seen_;  ///< by tensor: the number of the last call of around() that counted it
  uint32_t calls_ = 0;
  std::vector<uint64_t> from_, to_;                  ///< scratch memory, like all members below
  std::vector<uint64_t> counted_, counted_sources_;  ///< packed layouts of one tensor, one after another
};

}  // namespace trainctl
