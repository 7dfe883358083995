// Names of the processes of a job. Workers have the first ranks, and the servers of parameter_server follow:
//
//   rank    0       1       2         3            of 2 workers and 2 servers
//   name    rank 0  rank 1  server 0  server 1
//   folder  rank.0  rank.1  server.0  server.1
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace trainctl {

struct RankNames {
  int workers = std::numeric_limits<int>::max();

  bool is_server(int rank) const { return rank >= workers; }
  std::string name(int rank) const;
  std::string folder(int rank) const;
  /// Formats ranks without a noun: "0-2,5", "server 1", "0,1, servers 0,1".
  std::string numbers(const std::vector<int>& ascending) const;
  /// Formats ranks: "rank 3", "ranks 0-2,5", "ranks 0,1, servers 0,1".
  std::string names(const std::vector<int>& ascending) const;
};

/// Formats numbers of processes: "8 ranks", "4 workers and 2 servers".
std::string processes_text(int ranks, int servers);

}  // namespace trainctl
