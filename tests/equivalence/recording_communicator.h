// A Communicator that passes all calls on and records them in the words of the plan's report:
// "all_reduce 1024 [0, 1]", "send 64 to 2", "recv 64 from 0".
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/text.h"
#include "engine/plan/traffic/cost_model.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

class RecordingCommunicator final : public Communicator {
 public:
  explicit RecordingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  std::vector<std::string> calls;
  int64_t arena_bytes = 0;
  bool recording = true;

  int rank() const override { return inner_->rank(); }
  int num_ranks() const override { return inner_->num_ranks(); }
  int open_group(const std::vector<int>& ranks) override {
    const int id = inner_->open_group(ranks);
    groups_[id] = ranks;
    return id;
  }
  void register_arena(void* base, int64_t bytes) override {
    arena_bytes = bytes;
    inner_->register_arena(base, bytes);
  }
  void all_reduce(int g, const void* in, void* out, int64_t n, DType t) override {
    collective(Collective::all_reduce, g, n * byte_size(t));
    inner_->all_reduce(g, in, out, n, t);
  }
  void all_gather(int g, const void* in, void* out, int64_t n, DType t) override {
    collective(Collective::all_gather, g, members(g) * n * byte_size(t));
    inner_->all_gather(g, in, out, n, t);
  }
  void reduce_scatter(int g, const void* in, void* out, int64_t n, DType t) override {
    collective(Collective::reduce_scatter, g, members(g) * n * byte_size(t));
    inner_->reduce_scatter(g, in, out, n, t);
  }
  void all_to_all(int g, const void* in, void* out, int64_t n, DType t) override {
    collective(Collective::all_to_all, g, members(g) * n * byte_size(t));
    inner_->all_to_all(g, in, out, n, t);
  }
  /// The report has the most that such a call moves.
  void all_to_all_rows(int g, const void* in, void* out, int64_t n, DType t, const CountedRows& rows) override {
    collective(Collective::all_to_all, g, members(g) * n * byte_size(t));
    inner_->all_to_all_rows(g, in, out, n, t, rows);
  }
  void broadcast(int g, const void* in, void* out, int64_t n, DType t, int root) override {
    collective(Collective::broadcast, g, n * byte_size(t));
    inner_->broadcast(g, in, out, n, t, root);
  }
  void barrier(int g) override { inner_->barrier(g); }
  int64_t send(int peer, const void* data, int64_t bytes) override {
    if (recording) calls.push_back("send " + std::to_string(bytes) + " to " + std::to_string(peer));
    return inner_->send(peer, data, bytes);
  }
  void wait_send(int peer, int64_t sequence) override { inner_->wait_send(peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override {
    if (recording) calls.push_back("recv " + std::to_string(bytes) + " from " + std::to_string(peer));
    inner_->recv(peer, data, bytes);
  }
  void recv_sum(int peer, float* sum, int64_t count) override {
    if (recording) calls.push_back("recv " + std::to_string(count * 4) + " from " + std::to_string(peer));
    inner_->recv_sum(peer, sum, count);
  }
  void set_position(RankPosition position) override { inner_->set_position(position); }
  RankPosition position_of(int rank) const override { return inner_->position_of(rank); }

 private:
  int64_t members(int g) const { return static_cast<int64_t>(groups_.at(g).size()); }
  void collective(Collective kind, int g, int64_t bytes) {
    if (!recording) return;
    const std::vector<int>& ranks = groups_.at(g);
    calls.push_back(std::string(to_string(kind)) + " " + std::to_string(bytes) + " " +
                    format_list({ranks.begin(), ranks.end()}));
  }

  std::unique_ptr<Communicator> inner_;
  std::map<int, std::vector<int>> groups_;
};

}  // namespace trainctl
