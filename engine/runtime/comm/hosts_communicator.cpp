// Communicator of ranks on several hosts, from two others: one within this host, and one between all ranks. Blocks
// between hosts are in host order, each host with as many places as the largest one has members, so that each host
// sends and receives the same amount; places without a member hold zeros.
#include "engine/runtime/comm/hosts_communicator.h"

#include <algorithm>
#include <cstring>

#include "engine/runtime/comm/host_rows.h"

namespace trainctl {
namespace {

/// A group, host by host.
struct HostsGroup {
  std::vector<int> ranks;
  std::vector<std::vector<int>> members;  ///< members per host: indices in `ranks`
  int host = 0, place = 0;                ///< this rank is ranks[members[host][place]]
  int places = 0;                         ///< largest number of members of a host
  int within = -1,
      between = -1;  ///< numbers of the two groups; between: of leaders, and of a group with one rank per host
  bool leads() const { return place == 0; }
  bool one_host() const { return members.size() == 1; }
  int num_hosts() const { return static_cast<int>(members.size()); }
  const std::vector<int>& here() const { return members[static_cast<size_t>(host)]; }
};

class HostsCommunicator : public Communicator {
 public:
  HostsCommunicator(std::unique_ptr<Communicator> within, std::unique_ptr<Communicator> between,
                    std::vector<int> host_of)
      : within_(std::move(within)), between_(std::move(between)), host_of_(std::move(host_of)) {}

  int rank() const override { return within_->rank(); }
  int num_ranks() const override { return within_->num_ranks(); }
  int open_group(const std::vector<int>& ranks) override;
  void register_arena(void* base, int64_t bytes) override {
    within_->register_arena(base, bytes);
    between_->register_arena(base, bytes);
  }

  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override;
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override;
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override;
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override;
  void all_to_all_rows(int group, const void* in, void* out, int64_t count, DType dtype,
                       const CountedRows& rows) override;
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override;
  void barrier(int group) override;

  int64_t send(int peer, const void* data, int64_t bytes) override { return to(peer).send(peer, data, bytes); }
  void wait_send(int peer, int64_t sequence) override { to(peer).wait_send(peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override { to(peer).recv(peer, data, bytes); }
  void recv_sum(int peer, float* sum, int64_t count) override { to(peer).recv_sum(peer, sum, count); }

  void set_position(RankPosition position) override {
    within_->set_position(position);
    between_->set_position(position);
  }
  RankPosition position_of(int rank) const override { return within_->position_of(rank); }
  std::optional<CommError> hopeless(const std::string& call, const std::vector<int>& missing,
                                    bool late) const override {
    return within_->hopeless(call, missing, late);
  }

 private:
  HostsGroup& group(int number) {
    check(number >= 0 && static_cast<size_t>(number) < groups_.size(), "a group must be opened before it is used");
    return groups_[static_cast<size_t>(number)];
  }
  Communicator& to(int peer) {
    check(peer >= 0 && peer < num_ranks(), "a message must go to another rank of the job");
    return host_of(peer) == host_of(rank()) ? *within_ : *between_;
  }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  std::byte* scratch(int number, int64_t bytes) {
    std::vector<std::byte>& memory = scratch_[number];
    if (static_cast<int64_t>(memory.size()) < bytes) memory.resize(static_cast<size_t>(bytes));
    return memory.data();
  }

  const std::unique_ptr<Communicator> within_, between_;
  const std::vector<int> host_of_;
  std::vector<HostsGroup> groups_;
  std::vector<std::byte> scratch_[4];
};

/// Divides the group among hosts, and opens its groups within this host and, for a leader, between the leaders.
int HostsCommunicator::open_group(const std::vector<int>& ranks) {
  for (size_t i = 0; i < groups_.size(); ++i)
    if (groups_[i].ranks == ranks) return static_cast<int>(i);
  HostsGroup group;
  group.ranks = ranks;
  std::vector<int> hosts, leaders, local;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int host = host_of(ranks[i]);
    const auto found = std::find(hosts.begin(), hosts.end(), host);
    const auto index = static_cast<size_t>(found - hosts.begin());
    if (found == hosts.end()) {
      hosts.push_back(host);
      leaders.push_back(ranks[i]);
      group.members.emplace_back();
    }
    if (ranks[i] == rank()) {
      group.host = static_cast<int>(index);
      group.place = static_cast<int>(group.members[index].size());
    }
    group.members[index].push_back(static_cast<int>(i));
    if (host == host_of(rank())) local.push_back(ranks[i]);
    group.places = std::max(group.places, static_cast<int>(group.members[index].size()));
  }
  group.within = within_->open_group(local);
  if (!group.one_host() && group.leads()) group.between = between_->open_group(leaders);
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

void HostsCommunicator::all_reduce(int number, const void* in, void* out, int64_t count, DType dtype) {
  const HostsGroup& g = group(number);
  within_->all_reduce(g.within, in, out, count, dtype);
  if (g.one_host()) return;
  if (g.leads()) between_->all_reduce(g.between, out, out, count, dtype);
  within_->broadcast(g.within, out, out, count, dtype, 0);
}

/// Gathers the blocks of each host, then exchanges the blocks of hosts between leaders, and spreads the result.
void HostsCommunicator::all_gather(int number, const void* in, void* out, int64_t count, DType dtype) {
  const HostsGroup& g = group(number);
  if (g.one_host()) return within_->all_gather(g.within, in, out, count, dtype);
  const int64_t block = count * byte_size(dtype), of_host = g.places * block;
  std::byte* all = scratch(0, g.num_hosts() * of_host);
  std::byte* mine = all + g.host * of_host;
  within_->all_gather(g.within, in, mine, count, dtype);
  if (g.leads()) between_->all_gather(g.between, mine, all, g.places * count, dtype);
  within_->broadcast(g.within, all, all, g.num_hosts() * g.places * count, dtype, 0);
  for (size_t host = 0; host < g.members.size(); ++host)
    for (size_t place = 0; place < g.members[host].size(); ++place)
      std::memcpy(static_cast<std::byte*>(out) + g.members[host][place] * block,
                  all + static_cast<int64_t>(host) * of_host + static_cast<int64_t>(place) * block,
                  static_cast<size_t>(block));
}

/// Sums all blocks within each host, then sums and divides them between the leaders. Each member takes its own block.
void HostsCommunicator::reduce_scatter(int number, const void* in, void* out, int64_t count, DType dtype) {
  const HostsGroup& g = group(number);
  if (g.one_host()) return within_->reduce_scatter(g.within, in, out, count, dtype);
  const int64_t block = count * byte_size(dtype), of_host = g.places * block;
  std::byte* all = scratch(0, g.num_hosts() * of_host);
  std::memset(all, 0, static_cast<size_t>(g.num_hosts() * of_host));
  for (size_t host = 0; host < g.members.size(); ++host)
    for (size_t place = 0; place < g.members[host].size(); ++place)
      std::memcpy(all + static_cast<int64_t>(host) * of_host + static_cast<int64_t>(place) * block,
                  static_cast<const std::byte*>(in) + g.members[host][place] * block, static_cast<size_t>(block));
  within_->all_reduce(g.within, all, all, g.num_hosts() * g.places * count, dtype);
  std::byte* mine = all + g.host * of_host;
  if (g.leads()) between_->reduce_scatter(g.between, all, mine, g.places * count, dtype);
  within_->broadcast(g.within, mine, mine, g.places * count, dtype, 0);
  std::memcpy(out, mine + g.place * block, static_cast<size_t>(block));
}

/// See host_rows.h.
void HostsCommunicator::all_to_all_rows(int number, const void* in, void* out, int64_t count, DType dtype,
                                        const CountedRows& rows) {
  const HostsGroup& g = group(number);
  if (g.one_host()) return within_->all_to_all_rows(g.within, in, out, count, dtype, rows);
  if (g.places == 1) return between_->all_to_all_rows(g.between, in, out, count, dtype, rows);
  const comm::HostRows stages =
      comm::host_rows({g.members, static_cast<size_t>(g.host), static_cast<size_t>(g.place)}, count, rows);
  const int64_t row = rows.row * byte_size(dtype);
  const auto copy = [row](const std::vector<comm::RowCopy>& copies, const void* from, void* to) {
    for (const comm::RowCopy& c : copies)
      std::memcpy(static_cast<std::byte*>(to) + c.to * row, static_cast<const std::byte*>(from) + c.from * row,
                  static_cast<size_t>(c.rows * row));
  };
  const auto exchange = [&](Communicator& over, int of_group, const comm::RowStage& stage, void* from, void* to) {
    over.all_to_all_rows(of_group, from, to, stage.most * rows.row, dtype, {rows.row, stage.counts.data()});
  };

  std::byte *const packed = scratch(0, stages.inside.rows() * row), *const here =
                                                                        scratch(1, stages.inside.rows() * row);
  copy(stages.inside.pack, in, packed);
  exchange(*within_, g.within, stages.inside, packed, here);
  copy(stages.inside.unpack, here, out);

  std::byte* const for_members = scratch(2, stages.spread.rows() * row);
  if (g.leads()) {
    std::byte *const leaving = scratch(0, stages.between.rows() * row), *const arrived =
                                                                            scratch(3, stages.between.rows() * row);
    copy(stages.between.pack, here, leaving);
    exchange(*between_, g.between, stages.between, leaving, arrived);
    copy(stages.between.unpack, arrived, for_members);
  }
  std::byte* const received = scratch(0, stages.spread.rows() * row);
  exchange(*within_, g.within, stages.spread, for_members, received);
  copy(stages.spread.unpack, received, out);
}

/// The leader sends to each host what its members have for that host's members.
void HostsCommunicator::all_to_all(int number, const void* in, void* out, int64_t count, DType dtype) {
  const HostsGroup& g = group(number);
  if (g.one_host()) return within_->all_to_all(g.within, in, out, count, dtype);
  const auto p = static_cast<int64_t>(g.ranks.size());
  const int64_t block = count * byte_size(dtype), places = g.places, pair = places * places * block;
  const auto hosts = static_cast<int64_t>(g.num_hosts());
  std::byte* from_here = scratch(0, static_cast<int64_t>(g.here().size()) * p * block);
  within_->all_gather(g.within, in, from_here, p * count, dtype);
  std::byte* received = scratch(1, hosts * pair);  // [host of the sender][its place][place of the receiver]
  if (g.leads()) {
    std::byte* sent = scratch(2, hosts * pair);  // [host of the receiver][place of the sender][place of the receiver]
    std::memset(sent, 0, static_cast<size_t>(hosts * pair));
    for (int64_t host = 0; host < hosts; ++host)
      for (size_t from = 0; from < g.here().size(); ++from)
        for (size_t to = 0; to < g.members[static_cast<size_t>(host)].size(); ++to)
          std::memcpy(sent + host * pair + (static_cast<int64_t>(from) * places + static_cast<int64_t>(to)) * block,
                      from_here + (static_cast<int64_t>(from) * p + g.members[static_cast<size_t>(host)][to]) * block,
                      static_cast<size_t>(block));
    between_->all_to_all(g.between, sent, received, places * places * count, dtype);
  }
  within_->broadcast(g.within, received, received, hosts * places * places * count, dtype, 0);
  for (int64_t host = 0; host < hosts; ++host)
    for (size_t from = 0; from < g.members[static_cast<size_t>(host)].size(); ++from)
      std::memcpy(static_cast<std::byte*>(out) + g.members[static_cast<size_t>(host)][from] * block,
                  received + host * pair + (static_cast<int64_t>(from) * places + g.place) * block,
                  static_cast<size_t>(block));
}

void HostsCommunicator::broadcast(int number, const void* in, void* out, int64_t count, DType dtype, int root) {
  const HostsGroup& g = group(number);
  check(root >= 0 && static_cast<size_t>(root) < g.ranks.size(), "the root must be in the group");
  if (g.one_host()) return within_->broadcast(g.within, in, out, count, dtype, root);
  int root_host = 0, root_place = 0;
  for (size_t host = 0; host < g.members.size(); ++host)
    for (size_t place = 0; place < g.members[host].size(); ++place)
      if (g.members[host][place] == root) {
        root_host = static_cast<int>(host);
        root_place = static_cast<int>(place);
      }
  if (g.host == root_host) within_->broadcast(g.within, in, out, count, dtype, root_place);
  if (g.leads()) between_->broadcast(g.between, out, out, count, dtype, root_host);
  if (g.host != root_host) within_->broadcast(g.within, out, out, count, dtype, 0);
}

void HostsCommunicator::barrier(int number) {
  const HostsGroup& g = group(number);
  within_->barrier(g.within);
  if (g.one_host()) return;
  if (g.leads()) between_->barrier(g.between);
  within_->barrier(g.within);
}

}  // namespace

std::unique_ptr<Communicator> make_hosts_communicator(std::unique_ptr<Communicator> within,
                                                      std::unique_ptr<Communicator> between, std::vector<int> host_of) {
  check(static_cast<int>(host_of.size()) == within->num_ranks() && within->num_ranks() == between->num_ranks(),
        "all ranks of the job have a host");
  return std::make_unique<HostsCommunicator>(std::move(within), std::move(between), std::move(host_of));
}

}  // namespace trainctl
