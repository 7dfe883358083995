// A Communicator that counts the bytes of the calls which another one makes (engine/graph/exchanged_bytes.h).
#include "engine/runtime/comm/counted_communicator.h"

#include <map>
#include <vector>

#include "engine/graph/exchanged_bytes.h"

namespace trainctl {
namespace {

class CountedCommunicator : public Communicator {
 public:
  CountedCommunicator(std::unique_ptr<Communicator> counted, std::atomic<int64_t>& bytes, bool only_rows)
      : counted_(std::move(counted)), bytes_(bytes), only_rows_(only_rows) {}

  int rank() const override { return counted_->rank(); }
  int num_ranks() const override { return counted_->num_ranks(); }
  int open_group(const std::vector<int>& ranks) override {
    const int group = counted_->open_group(ranks);
    members_[group] = ranks.front() == rank() ? static_cast<int>(ranks.size()) : 0;
    return group;
  }
  void register_arena(void* base, int64_t bytes) override { counted_->register_arena(base, bytes); }

  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override {
    add(group, Collective::all_reduce, count, dtype);
    counted_->all_reduce(group, in, out, count, dtype);
  }
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override {
    add(group, Collective::all_gather, count, dtype);
    counted_->all_gather(group, in, out, count, dtype);
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    add(group, Collective::reduce_scatter, count, dtype);
    counted_->reduce_scatter(group, in, out, count, dtype);
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    add(group, Collective::all_to_all, count, dtype);
    counted_->all_to_all(group, in, out, count, dtype);
  }
  void all_to_all_rows(int group, const void* in, void* out, int64_t count, DType dtype,
                       const CountedRows& rows) override {
    const int64_t p = members_.at(group);
    for (int64_t from = 0; from < p; ++from)
      for (int64_t to = 0; to < p; ++to)
        if (from != to) bytes_ += rows.elements(p, from, to) * byte_size(dtype);
    counted_->all_to_all_rows(group, in, out, count, dtype, rows);
  }
  void exchanged_tokens(int64_t bytes) override {
    if (only_rows_) bytes_ += bytes;
  }
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override {
    add(group, Collective::broadcast, count, dtype);
    counted_->broadcast(group, in, out, count, dtype, root);
  }
  void barrier(int group) override { counted_->barrier(group); }

  int64_t send(int peer, const void* data, int64_t bytes) override {
    if (!only_rows_) bytes_ += bytes;
    return counted_->send(peer, data, bytes);
  }
  void wait_send(int peer, int64_t sequence) override { counted_->wait_send(peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override { counted_->recv(peer, data, bytes); }
  void recv_sum(int peer, float* sum, int64_t count) override { counted_->recv_sum(peer, sum, count); }

  bool has_message(int peer) override { return counted_->has_message(peer); }
  void drop_messages(int peer) override { counted_->drop_messages(peer); }
  uint32_t mail() const override { return counted_->mail(); }
  void wait_for_mail(uint32_t seen, double seconds) override { counted_->wait_for_mail(seen, seconds); }

  void set_position(RankPosition position) override { counted_->set_position(position); }
  RankPosition position_of(int rank) const override { return counted_->position_of(rank); }
  std::optional<CommError> hopeless(const std::string& call, const std::vector<int>& missing,
                                    bool late) const override {
    return counted_->hopeless(call, missing, late);
  }

 private:
  void add(int group, Collective kind, int64_t count, DType dtype) {
    if (only_rows_) return;
    if (const int members = members_.at(group); members > 1) bytes_ += exchanged_bytes(kind, members, count, dtype);
  }

  const std::unique_ptr<Communicator> counted_;
  std::atomic<int64_t>& bytes_;
  const bool only_rows_;
  std::map<int, int> members_;  ///< size of each group whose first rank is this one; 0 for other groups
};

}  // namespace

std::unique_ptr<Communicator> make_counted_communicator(std::unique_ptr<Communicator> counted,
                                                        std::atomic<int64_t>& bytes) {
  return std::make_unique<CountedCommunicator>(std::move(counted), bytes, false);
}

std::unique_ptr<Communicator> make_row_counting_communicator(std::unique_ptr<Communicator> counted,
                                                             std::atomic<int64_t>& bytes) {
  return std::make_unique<CountedCommunicator>(std::move(counted), bytes, true);
}

}  // namespace trainctl
