// Decides which files of a run's folder a host may write: those that its own ranks write, and no others.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/rank_names.h"

namespace trainctl::hosts {

class FileOwners {
 public:
  /// `of_network`: the ranks train a network and write only files that are known here. A program may write
  /// other files too: each belongs to the host that wrote it first.
  FileOwners(RankNames names, bool of_network) : names_(names), of_network_(of_network) {}

  /// Returns whether the host with this number and these ranks may write the file `name`, relative to the run's folder.
  bool may_write(int host, const std::vector<int>& ranks, const std::string& name);

 private:
  const RankNames names_;
  const bool of_network_;
  std::map<std::string, int> first_writers_;  ///< files of a program outside its ranks' folders, and their hosts
};

}  // namespace trainctl::hosts
