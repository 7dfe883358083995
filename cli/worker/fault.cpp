// See fault.h.
#include "cli/worker/fault.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr const char* kVariable = "TRAINCTL_TEST_FAULT";

/// Leaves out the first collective of one step.
class SkippingCommunicator : public Communicator {
 public:
  SkippingCommunicator(Communicator& inner, int64_t step) : inner_(inner), step_(step) {}

  int rank() const override { return inner_.rank(); }
  int num_ranks() const override { return inner_.num_ranks(); }
  int open_group(const std::vector<int>& ranks) override { return inner_.open_group(ranks); }
  void register_arena(void* base, int64_t bytes) override { inner_.register_arena(base, bytes); }

  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override {
    if (!skip()) inner_.all_reduce(group, in, out, count, dtype);
  }
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override {
    if (!skip()) inner_.all_gather(group, in, out, count, dtype);
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    if (!skip()) inner_.reduce_scatter(group, in, out, count, dtype);
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    if (!skip()) inner_.all_to_all(group, in, out, count, dtype);
  }
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override {
    if (!skip()) inner_.broadcast(group, in, out, count, dtype, root);
  }
  void barrier(int group) override {
    if (!skip()) inner_.barrier(group);
  }

  int64_t send(int peer, const void* data, int64_t bytes) override { return inner_.send(peer, data, bytes); }
  void wait_send(int peer, int64_t sequence) override { inner_.wait_send(peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override { inner_.recv(peer, data, bytes); }

  void set_position(RankPosition position) override {
    position_ = position;
    inner_.set_position(position);
  }
  RankPosition position_of(int rank) const override { return inner_.position_of(rank); }
  std::optional<CommError> hopeless(const std::string& call, const std::vector<int>& missing,
                                    bool late) const override {
    return inner_.hopeless(call, missing, late);
  }

 private:
  bool skip() {
    if (skipped_ || position_.step != step_) return false;
    skipped_ = true;
    return true;
  }

  Communicator& inner_;
  int64_t step_;
  RankPosition position_;
  bool skipped_ = false;
};

/// The number before `end`, which is taken off with it.
std::optional<int64_t> take_number(std::string_view& text, char end) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop == text.data() + text.size() || *stop != end) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(stop - text.data()) + 1);
  return value;
}

}  // namespace

std::optional<Fault> Fault::of_environment(int rank) {
  const char* order = std::getenv(kVariable);
  if (order == nullptr) return std::nullopt;
  std::string_view text = order;
  const auto of_rank = take_number(text, ':');
  const auto step = take_number(text, ':');
  Fault fault;
  fault.step_ = step.value_or(0);
  if (text.starts_with("exit")) {
    fault.what_ = What::exit;
    fault.code_ = std::atoi(text.data() + 4);
  } else if (text == "skip") {
    fault.what_ = What::skip;
  } else if (text != "hang" || !of_rank || !step) {
    throw EnvError(std::string(kVariable) + " is " + order + ", expected RANK:STEP:exitCODE, :hang or :skip");
  }
  return of_rank == rank ? std::optional(fault) : std::nullopt;
}

void Fault::strike(int64_t step) const {
  if (step != step_) return;
  if (what_ == What::exit) _exit(code_);
  while (what_ == What::hang) pause();
}

std::unique_ptr<Communicator> Fault::skipping(Communicator& inner) const {
  if (what_ != What::skip) return nullptr;
  return std::make_unique<SkippingCommunicator>(inner, step_);
}

}  // namespace trainctl
