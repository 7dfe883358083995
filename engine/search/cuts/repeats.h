// The blocks that a network repeats. Their layers get the same cuts, and a network with fewer of these blocks has the
// same plans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// The position of a layer among equal ones.
struct BlockPlace {
  std::string pattern;  ///< "h.*.fc", or the layer's name if it is in no block
  int run = -1;         ///< run of equal blocks that follow one another; -1: in none
  int block = 0;        ///< index of the block in its run, from 0
  friend bool operator==(const BlockPlace&, const BlockPlace&) = default;
};

struct Repeats {
  std::vector<BlockPlace> places;     ///< by layer of the network
  std::vector<int> blocks;            ///< by run: number of blocks
  std::vector<std::string> prefixes;  ///< by run: "h."
};

/// Finds the blocks that `repeat` makes: layers "h.0.fc", "h.1.fc", … of the same type and fields, whose inputs are at
/// the same places of their own block, of the previous block and of the rest. A run includes the first and the last
/// block.
Repeats find_repeats(const std::vector<LayerSpec>& network);
/// The same, without runs in which a strategy or a rule of recompute applies to some blocks and not to others.
Repeats find_repeats(const JobSpec& job);

/// A network with only some of the blocks of each run. The places are those of the whole network.
struct Folded {
  JobSpec job;
  Repeats repeats;        ///< repeats of job.network; `blocks` is that of the whole network
  std::vector<int> kept;  ///< by run: number of blocks in job.network
  bool is_folded() const { return kept != repeats.blocks; }
};
/// Keeps at most `most` blocks of each run.
Folded fold(const JobSpec& job, int most);
/// Keeps `kept` blocks of each run.
Folded fold(const JobSpec& job, Repeats repeats, std::vector<int> kept);

}  // namespace trainctl
