// Creates NCCL communicators for the groups of a whole job.
#include "engine/runtime/comm/nccl_splits.h"

#include <algorithm>
#include <numeric>

#include "engine/base/error.h"

namespace trainctl {
namespace {

/// Encodes groups as integers: for each group its size, is_channel, and its ranks.
std::vector<int32_t> encode(const std::vector<NcclGroup>& groups) {
  std::vector<int32_t> numbers;
  for (const NcclGroup& group : groups) {
    numbers.push_back(static_cast<int32_t>(group.ranks.size()));
    numbers.push_back(group.is_channel ? 1 : 0);
    numbers.insert(numbers.end(), group.ranks.begin(), group.ranks.end());
  }
  return numbers;
}

void decode(const int32_t* at, const int32_t* end, std::set<NcclGroup>& groups) {
  while (at<end&& * at> 0) {
    const int size = at[0];
    groups.insert({{at + 2, at + 2 + size}, at[1] == 1});
    at += 2 + size;
  }
}

bool is_world(const std::vector<int>& ranks, int num_ranks) {
  if (static_cast<int>(ranks.size()) != num_ranks) return false;
  for (int i = 0; i < num_ranks; ++i) {
    if (ranks[static_cast<size_t>(i)] != i) return false;
  }
  return true;
}

}  // namespace

std::vector<NcclGroup> groups_of(const Program& program, int num_ranks) {
  std::set<NcclGroup> groups;
  for (const Instruction& i : program.instructions) {
    if (i.opcode == Opcode::collective) {
      const std::vector<int>& ranks = program.groups[static_cast<size_t>(i.group)];
      if (!is_world(ranks, num_ranks)) groups.insert({ranks, false});
    }
    if (i.opcode == Opcode::send) groups.insert({{program.rank, i.peer}, true});
    if (i.opcode == Opcode::recv) groups.insert({{i.peer, program.rank}, true});
  }
  return {groups.begin(), groups.end()};
}

std::vector<NcclGroup> gather_groups(const std::vector<NcclGroup>& mine, Communicator& ranks) {
  std::vector<int> world(static_cast<size_t>(ranks.num_ranks()));
  std::iota(world.begin(), world.end(), 0);
  const int all = ranks.open_group(world);

  std::vector<int32_t> numbers = encode(mine);
  const auto length = static_cast<int32_t>(numbers.size());
  std::vector<int32_t> lengths(world.size());
  ranks.all_gather(all, &length, lengths.data(), 1, DType::i32);
  const int32_t most = *std::max_element(lengths.begin(), lengths.end());
  if (most == 0) return {};
  numbers.resize(static_cast<size_t>(most));
  std::vector<int32_t> gathered(world.size() * static_cast<size_t>(most));
  ranks.all_gather(all, numbers.data(), gathered.data(), most, DType::i32);

  std::set<NcclGroup> groups;
  for (size_t r = 0; r < world.size(); ++r) {
    const int32_t* first = gathered.data() + r * static_cast<size_t>(most);
    decode(first, first + lengths[r], groups);
  }
  return {groups.begin(), groups.end()};
}

std::vector<std::vector<NcclGroup>> split_rounds(const std::vector<NcclGroup>& groups) {
  std::vector<std::vector<NcclGroup>> rounds;
  std::vector<std::set<int>> busy;  // by round: the ranks that are already in a group of that round
  for (const NcclGroup& group : groups) {
    const auto is_free = [&](const std::set<int>& ranks) {
      return std::none_of(group.ranks.begin(), group.ranks.end(), [&](int rank) { return ranks.contains(rank); });
    };
    const auto round = static_cast<size_t>(std::find_if(busy.begin(), busy.end(), is_free) - busy.begin());
    if (round == rounds.size()) {
      rounds.emplace_back();
      busy.emplace_back();
    }
    rounds[round].push_back(group);
    busy[round].insert(group.ranks.begin(), group.ranks.end());
  }
  return rounds;
}

}  // namespace trainctl
