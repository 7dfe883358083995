// Blocks that a network repeats: their layers get the same cuts, and a network with fewer of them shows the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// Where a layer stands among equal ones.
struct BlockPlace {
  std::string pattern;  ///< "h.*.fc", or the layer's name if it is in no block
  int run = -1;         ///< run of equal blocks that follow one another; -1: in none
  int block = 0;        ///< index of the block in its run, from 0
  friend bool operator==(const BlockPlace&, const BlockPlace&) = default;
};

struct Repeats {
  std::vector<BlockPlace> places;          ///< by layer of the network
  std::vector<int> blocks;            ///< by run: number of blocks
  std::vector<std::string> prefixes;  ///< by run: "h."
};

/// Blocks are what `repeat` makes: layers "h.0.fc", "h.1.fc", … of the same type and fields, that read the same of
/// their own block, of the block before and of the rest. The first and the last block belong to the run too.
Repeats find_repeats(const std::vector<LayerSpec>& network);
/// The same, but for runs in which a strategy or rule of recompute means some blocks and not others.
Repeats find_repeats(const JobSpec& job);

/// The network with at most `most` blocks of each run, in the order of the whole; the places are still those of the
/// whole.
struct Folded {
  JobSpec job;
  Repeats repeats;        ///< repeats of job.network; `blocks` is that of the whole network
  std::vector<int> kept;  ///< by run: number of blocks in job.network
  bool is_folded() const { return kept != repeats.blocks; }
};
Folded fold(const JobSpec& job, int most);
/// With `kept` blocks of each run.
Folded fold(const JobSpec& job, Repeats repeats, std::vector<int> kept);

}  // namespace trainctl
