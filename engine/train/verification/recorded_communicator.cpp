// A Communicator that passes all calls on and records what a rank sends and receives.
#include "engine/train/verification/recorded_communicator.h"

#include <map>
#include <utility>

#include "engine/base/text.h"

namespace trainctl {
namespace {

RecordedCall recorded_collective(Collective kind, const std::vector<int>& ranks, int64_t bytes) {
  std::vector<std::string> members;
  for (const int rank : ranks) members.push_back(std::to_string(rank));
  return {std::string(to_string(kind)) + " over {" + join(members) + "}", bytes};
}

RecordedCall recorded_message(bool is_send, int peer, int64_t bytes) {
  return {(is_send ? "send to " : "recv from ") + std::to_string(peer), bytes};
}

class RecordedCommunicator final : public Communicator {
 public:
  RecordedCommunicator(std::unique_ptr<Communicator> recorded, std::vector<RecordedCall>& calls, int64_t& arena_bytes)
      : recorded_(std::move(recorded)), calls_(calls), arena_bytes_(arena_bytes) {}

  int rank() const override { return recorded_->rank(); }
  int num_ranks() const override { return recorded_->num_ranks(); }
  int open_group(const std::vector<int>& ranks) override {
    const int group = recorded_->open_group(ranks);
    groups_[group] = ranks;
    return group;
  }
  void register_arena(void* base, int64_t bytes) override {
    arena_bytes_ = bytes;
    recorded_->register_arena(base, bytes);
  }

  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override {
    add(Collective::all_reduce, group, count * byte_size(dtype));
    recorded_->all_reduce(group, in, out, count, dtype);
  }
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override {
    add(Collective::all_gather, group, members(group) * count * byte_size(dtype));
    recorded_->all_gather(group, in, out, count, dtype);
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    add(Collective::reduce_scatter, group, members(group) * count * byte_size(dtype));
    recorded_->reduce_scatter(group, in, out, count, dtype);
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    add(Collective::all_to_all, group, members(group) * count * byte_size(dtype));
    recorded_->all_to_all(group, in, out, count, dtype);
  }
  /// Records the call with the largest number of bytes that it may move, which is the number in the plan's report.
  void all_to_all_rows(int group, const void* in, void* out, int64_t count, DType dtype,
                       const CountedRows& rows) override {
    add(Collective::all_to_all, group, members(group) * count * byte_size(dtype));
    recorded_->all_to_all_rows(group, in, out, count, dtype, rows);
  }
  void exchanged_tokens(int64_t bytes) override { recorded_->exchanged_tokens(bytes); }
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override {
    add(Collective::broadcast, group, count * byte_size(dtype));
    recorded_->broadcast(group, in, out, count, dtype, root);
  }
  void barrier(int group) override { recorded_->barrier(group); }

  int64_t send(int peer, const void* data, int64_t bytes) override {
    calls_.push_back(recorded_message(true, peer, bytes));
    return recorded_->send(peer, data, bytes);
  }
  void wait_send(int peer, int64_t sequence) override { recorded_->wait_send(peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override {
    calls_.push_back(recorded_message(false, peer, bytes));
    recorded_->recv(peer, data, bytes);
  }
  void recv_sum(int peer, float* sum, int64_t count) override {
    calls_.push_back(recorded_message(false, peer, count * static_cast<int64_t>(sizeof(float))));
    recorded_->recv_sum(peer, sum, count);
  }
  bool has_message(int peer) override { return recorded_->has_message(peer); }
  void drop_messages(int peer) override { recorded_->drop_messages(peer); }
  uint32_t mail() const override { return recorded_->mail(); }
  void wait_for_mail(uint32_t seen, double seconds) override { recorded_->wait_for_mail(seen, seconds); }

  void set_position(RankPosition position) override { recorded_->set_position(position); }
  RankPosition position_of(int rank) const override { return recorded_->position_of(rank); }
  std::optional<CommError> hopeless(const std::string& call, const std::vector<int>& missing,
                                    bool late) const override {
    return recorded_->hopeless(call, missing, late);
  }

 private:
  int64_t members(int group) const { return static_cast<int64_t>(groups_.at(group).size()); }
  void add(Collective kind, int group, int64_t bytes) {
    calls_.push_back(recorded_collective(kind, groups_.at(group), bytes));
  }

  const std::unique_ptr<Communicator> recorded_;
  std::vector<RecordedCall>& calls_;
  int64_t& arena_bytes_;
  std::map<int, std::vector<int>> groups_;
};

}  // namespace

std::string to_string(const RecordedCall& call) { return call.text + " of " + with_commas(call.bytes) + " bytes"; }

std::vector<RecordedCall> planned_calls(const Program& program) {
  std::vector<RecordedCall> calls;
  for (const Instruction& code : program.instructions) {
    if (code.opcode == Opcode::collective)
      calls.push_back(
          recorded_collective(code.collective, program.groups[static_cast<size_t>(code.group)], code.bytes()));
    if (code.opcode == Opcode::send) calls.push_back(recorded_message(true, code.peer, code.inputs[0].bytes()));
    if (code.opcode == Opcode::recv) calls.push_back(recorded_message(false, code.peer, code.outputs[0].bytes()));
  }
  return calls;
}

std::unique_ptr<Communicator> make_recorded_communicator(std::unique_ptr<Communicator> recorded,
                                                         std::vector<RecordedCall>& calls, int64_t& arena_bytes) {
  return std::make_unique<RecordedCommunicator>(std::move(recorded), calls, arena_bytes);
}

}  // namespace trainctl
