// The way of the rows of an all_to_all whose members are on several hosts. Rows for other hosts are in the order of
// hosts, then of senders, then of receivers.
#include "engine/runtime/comm/host_rows.h"

#include <algorithm>

#include "engine/base/error.h"

namespace trainctl::comm {
namespace {

/// Offsets of a block's rows that are packed one after another.
class Packed {
 public:
  int64_t add(int64_t rows) {
    const int64_t at = end_;
    end_ += rows;
    return at;
  }

 private:
  int64_t end_ = 0;
};

class Stages {
 public:
  Stages(const HostPlace& at, int64_t count, const CountedRows& rows)
      : at_(at), here_(at.members[at.host]), block_(count / rows.row), rows_(rows) {
    for (const std::vector<int>& of_host : at.members) all_ += static_cast<int64_t>(of_host.size());
  }

  HostRows take() {
    count();
    inside();
    if (at_.place == 0) between();
    spread();
    return std::move(stages_);
  }

 private:
  int64_t rows(int from, int to) const {
    const int64_t n = rows_.elements(all_, from, to) / rows_.row;
    check(n >= 0 && n <= block_, "the rows of a block are inside it");
    return n;
  }
  int me() const { return here_[at_.place]; }
  /// Calls f(host) for each host but this one.
  template <class F>
  void for_other_hosts(const F& f) const {
    for (size_t host = 0; host < at_.members.size(); ++host)
      if (host != at_.host) f(host);
  }

  void count() {
    const size_t hosts = at_.members.size(), members = here_.size();
    stages_ = {RowStage(members), RowStage(hosts), RowStage(members)};
    for (size_t a = 0; a < members; ++a)
      for (size_t b = 0; b < members; ++b) add(stages_.inside, a, b, rows(here_[a], here_[b]));
    for (size_t from = 0; from < hosts; ++from)
      for (size_t to = 0; to < hosts; ++to)
        for (size_t s = 0; s < at_.members[from].size() && from != to; ++s)
          for (size_t r = 0; r < at_.members[to].size(); ++r) {
            const int64_t n = rows(at_.members[from][s], at_.members[to][r]);
            add(stages_.between, from, to, n);
            if (from == at_.host) add(stages_.inside, s, 0, n);
            if (to == at_.host) add(stages_.spread, 0, r, n);
          }
    for (RowStage* stage : {&stages_.inside, &stages_.between, &stages_.spread})
      stage->most = *std::max_element(stage->counts.begin(), stage->counts.end());
  }
  static void add(RowStage& stage, size_t from, size_t to, int64_t n) {
    stage.count(from, to) += static_cast<int32_t>(n);
  }

  /// A block for the leader has the leader's own rows, then those for other hosts.
  void inside() {
    RowStage& stage = stages_.inside;
    Packed for_leader;
    for (size_t b = 0; b < here_.size(); ++b) {
      const int64_t n = rows(me(), here_[b]), place = static_cast<int64_t>(b) * stage.most;
      stage.pack.push_back({here_[b] * block_, place, n});
      if (b == 0) for_leader.add(n);
      stage.unpack.push_back({place, here_[b] * block_, rows(here_[b], me())});
    }
    for_other_hosts([&](size_t host) {
      for (const int to : at_.members[host]) {
        const int64_t n = rows(me(), to);
        stage.pack.push_back({to * block_, for_leader.add(n), n});
      }
    });
  }

  void between() {
    RowStage& stage = stages_.between;
    const int64_t most_inside = stages_.inside.most, most_spread = stages_.spread.most;
    std::vector<Packed> of_senders(here_.size()), of_receivers(here_.size());
    for (size_t s = 0; s < here_.size(); ++s) of_senders[s].add(rows(here_[s], here_[0]));
    for_other_hosts([&](size_t host) {
      const auto of_host = static_cast<int64_t>(host) * stage.most;
      Packed leaving, arrived;
      for (size_t s = 0; s < here_.size(); ++s)
        for (const int to : at_.members[host]) {
          const int64_t n = rows(here_[s], to);
          stage.pack.push_back(
              {static_cast<int64_t>(s) * most_inside + of_senders[s].add(n), of_host + leaving.add(n), n});
        }
      for (const int from : at_.members[host])
        for (size_t r = 0; r < here_.size(); ++r) {
          const int64_t n = rows(from, here_[r]);
          stage.unpack.push_back(
              {of_host + arrived.add(n), static_cast<int64_t>(r) * most_spread + of_receivers[r].add(n), n});
        }
    });
  }

  void spread() {
    Packed received;
    for_other_hosts([&](size_t host) {
      for (const int from : at_.members[host]) {
        const int64_t n = rows(from, me());
        stages_.spread.unpack.push_back({received.add(n), from * block_, n});
      }
    });
  }

  const HostPlace at_;
  const std::vector<int>& here_;
  const int64_t block_;
  const CountedRows& rows_;
  int64_t all_ = 0;
  HostRows stages_;
};

}  // namespace

HostRows host_rows(const HostPlace& at, int64_t count, const CountedRows& rows) {
  return Stages(at, count, rows).take();
}

}  // namespace trainctl::comm
