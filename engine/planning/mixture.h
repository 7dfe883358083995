// Computes how many samples of each source of a mixture (dataset.type mix) each step draws.
//
//   credit[i] += share[i] * batch          before each step, in units of 2^-32 samples
//   counts[i]  = floor(credit[i])          then one more for the largest rests, until the batch is full
//   credit[i] -= counts[i]
//
// The counts depend only on the step, the shares and the sizes of the sources, never on ranks or workers. They are
// computed from the first step on, so a resumed run needs no stored state. A source that has reached its max_epochs
// has no share, and the others keep their proportions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/planning/data_header.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

class Mixture {
 public:
  /// Throws SpecError (dataset.mix_by) if shares by tokens are asked for and a source has none.
  Mixture(const DatasetSpec& spec, std::vector<SourceHeader> sources);

  size_t size() const { return sources_.size(); }
  const std::vector<SourceHeader>& sources() const { return sources_; }
  /// Samples of each source that the steps before `step` draw. Valid until the next call; steps count from 0. Throws
  /// SpecError (dataset.sources) if all sources have reached their max_epochs before.
  std::span<const int64_t> drawn_before(int64_t step);
  /// Samples of each source in the batch of a step. Throws the same errors as drawn_before.
  std::span<const int64_t> counts(int64_t step);
  /// The shares at a step as fractions of the samples, without the limits of max_epochs.
  std::vector<double> shares(int64_t step) const;
  /// The samples of a source that a run may draw; nothing: no limit.
  std::optional<int64_t> limit(size_t source) const;

 private:
  struct State {
    int64_t step = 0;  ///< the next step
    std::vector<int64_t> drawn, credit, counts;
  };

  void seek(int64_t step);
  void advance();
  std::vector<double> weights_at(int64_t step) const;
  std::vector<double> weights_of(const std::vector<SourceShare>& shares) const;

  std::vector<SourceHeader> sources_;
  std::vector<int64_t> limits_;
  std::vector<double> first_;  ///< weights of the sources before the first change by mix_schedule
  struct Change {
    int64_t step = 0, ramp = 0;
    std::vector<double> weights;
  };
  std::vector<Change> changes_;
  bool by_tokens_ = false;
  double power_ = 1;
  int64_t batch_ = 1;

  State at_;
  std::map<int64_t, State> kept_;            ///< states at some steps, to which seek() may return
  std::vector<int64_t> units_;               ///< the shares of units_step_, in 2^-32
  int64_t units_from_ = -1, units_to_ = -1;  ///< the steps that have these units
};

}  // namespace trainctl
