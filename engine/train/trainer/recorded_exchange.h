// The communicators of an audit on CPUs: one records what a rank exchanges in a step, the other gives it to the replay.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/dtype.h"
#include "engine/runtime/communicator.h"
#include "engine/train/files/digest.h"

namespace trainctl {

inline std::string digest_of_bytes(const void* data, int64_t bytes) {
  Digest digest;
  digest.add({static_cast<const uint8_t*>(data), static_cast<size_t>(bytes)});
  return digest.digits();
}

/// The rows of an all_to_all that member `me` of p gives, or receives, one block after another. f(offset, bytes) is
/// called with their places in the blocks.
template <class F>
void for_each_block_of_rows(int64_t p, int64_t me, int64_t count, DType dtype, const CountedRows& rows, bool gives,
                            const F& f) {
  for (int64_t other = 0; other < p; ++other) {
    const int64_t elements = gives ? rows.elements(p, me, other) : rows.elements(p, other, me);
    f(other * count * byte_size(dtype), elements * byte_size(dtype));
  }
}

inline std::vector<std::byte> packed_rows(const void* blocks, int64_t p, int64_t me, int64_t count, DType dtype,
                                          const CountedRows& rows, bool gives) {
  std::vector<std::byte> packed;
  for_each_block_of_rows(p, me, count, dtype, rows, gives, [&](int64_t at, int64_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(blocks) + at;
    packed.insert(packed.end(), begin, begin + bytes);
  });
  return packed;
}

/// A call of the communicator: what this rank gave, and what it received.
struct RecordedExchange {
  std::string call;   ///< "all_reduce"
  std::string given;  ///< digest; "" if nothing was given
  std::vector<std::byte> received;
};

/// Forwards calls to another communicator, and records them between record_to(list) and record_to(nullptr).
class RecordingExchange final : public Communicator {
 public:
  explicit RecordingExchange(Communicator& inner) : inner_(inner) {}
  void record_to(std::vector<RecordedExchange>* exchanges) { to_ = exchanges; }

  int rank() const override { return inner_.rank(); }
  int num_ranks() const override { return inner_.num_ranks(); }
  int open_group(const std::vector<int>& ranks) override {
    const int id = inner_.open_group(ranks);
    sizes_[id] = static_cast<int64_t>(ranks.size());
    places_[id] = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    return id;
  }
  void register_arena(void* base, int64_t bytes) override { inner_.register_arena(base, bytes); }
  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override {
    const int64_t bytes = count * byte_size(dtype);
    exchange("all_reduce", in, bytes, out, bytes, [&] { inner_.all_reduce(group, in, out, count, dtype); });
  }
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override {
    const int64_t bytes = count * byte_size(dtype);
    exchange("all_gather", in, bytes, out, sizes_.at(group) * bytes,
             [&] { inner_.all_gather(group, in, out, count, dtype); });
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    const int64_t bytes = count * byte_size(dtype);
    exchange("reduce_scatter", in, sizes_.at(group) * bytes, out, bytes,
             [&] { inner_.reduce_scatter(group, in, out, count, dtype); });
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    const int64_t bytes = sizes_.at(group) * count * byte_size(dtype);
    exchange("all_to_all", in, bytes, out, bytes, [&] { inner_.all_to_all(group, in, out, count, dtype); });
  }
  /// Only the rows are recorded: the rest of the blocks has no defined contents.
  void all_to_all_rows(int group, const void* in, void* out, int64_t count, DType dtype,
                       const CountedRows& rows) override {
    const int64_t p = sizes_.at(group), me = places_.at(group);
    std::string given;
    if (to_ != nullptr) {
      const std::vector<std::byte> sent = packed_rows(in, p, me, count, dtype, rows, true);
      given = digest_of_bytes(sent.data(), static_cast<int64_t>(sent.size()));
    }
    inner_.all_to_all_rows(group, in, out, count, dtype, rows);
    if (to_ != nullptr)
      to_->push_back({"all_to_all_rows", std::move(given), packed_rows(out, p, me, count, dtype, rows, false)});
  }
  void exchanged_tokens(int64_t bytes) override { inner_.exchanged_tokens(bytes); }
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override {
    exchange("broadcast", nullptr, 0, out, count * byte_size(dtype),
             [&] { inner_.broadcast(group, in, out, count, dtype, root); });
  }
  void barrier(int group) override { inner_.barrier(group); }
  int64_t send(int peer, const void* data, int64_t bytes) override {
    if (to_ != nullptr) to_->push_back({"send", digest_of_bytes(data, bytes), {}});
    return inner_.send(peer, data, bytes);
  }
  void wait_send(int peer, int64_t sequence) override { inner_.wait_send(peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override {
    exchange("recv", nullptr, 0, data, bytes, [&] { inner_.recv(peer, data, bytes); });
  }
  void recv_sum(int peer, float* sum, int64_t count) override {
    const auto bytes = count * static_cast<int64_t>(sizeof(float));
    exchange("recv_sum", sum, bytes, sum, bytes, [&] { inner_.recv_sum(peer, sum, count); });
  }
  bool has_message(int peer) override { return inner_.has_message(peer); }
  void drop_messages(int peer) override { inner_.drop_messages(peer); }
  uint32_t mail() const override { return inner_.mail(); }
  void wait_for_mail(uint32_t seen, double seconds) override { inner_.wait_for_mail(seen, seconds); }
  void set_position(RankPosition position) override { inner_.set_position(position); }
  RankPosition position_of(int rank) const override { return inner_.position_of(rank); }
  std::optional<CommError> hopeless(const std::string& call, const std::vector<int>& missing,
                                    bool late) const override {
    return inner_.hopeless(call, missing, late);
  }

 private:
  template <typename Call>
  void exchange(const char* name, const void* in, int64_t in_bytes, void* out, int64_t out_bytes, const Call& call) {
    if (to_ == nullptr) return call();
    RecordedExchange recorded{name, in == nullptr ? "" : digest_of_bytes(in, in_bytes), {}};
    call();
    const auto* data = static_cast<const std::byte*>(out);
    recorded.received.assign(data, data + out_bytes);
    to_->push_back(std::move(recorded));
  }

  Communicator& inner_;
  std::map<int, int64_t> sizes_, places_;  ///< by group: number of members, this rank's place
  std::vector<RecordedExchange>* to_ = nullptr;
};

/// Gives what was recorded, and notes the first call in which the rank gives something else.
class ReplayedExchange final : public Communicator {
 public:
  ReplayedExchange(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  void replay(const std::vector<RecordedExchange>& exchanges) {
    exchanges_ = &exchanges;
    next_ = 0;
    difference_.clear();
  }
  const std::string& difference() const { return difference_; }

  int rank() const override { return rank_; }
  int num_ranks() const override { return ranks_; }
  int open_group(const std::vector<int>& ranks) override {
    const auto [found, added] = groups_.try_emplace(ranks, static_cast<int>(groups_.size()));
    sizes_[found->second] = static_cast<int64_t>(ranks.size());
    places_[found->second] = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return found->second;
  }
  void register_arena(void*, int64_t) override {}
  void all_reduce(int, const void* in, void* out, int64_t count, DType dtype) override {
    give("all_reduce", in, count * byte_size(dtype), out);
  }
  void all_gather(int, const void* in, void* out, int64_t count, DType dtype) override {
    give("all_gather", in, count * byte_size(dtype), out);
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    give("reduce_scatter", in, sizes_.at(group) * count * byte_size(dtype), out);
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    give("all_to_all", in, sizes_.at(group) * count * byte_size(dtype), out);
  }
  void all_to_all_rows(int group, const void* in, void* out, int64_t count, DType dtype,
                       const CountedRows& rows) override {
    const int64_t p = sizes_.at(group), me = places_.at(group);
    const std::vector<std::byte> sent = packed_rows(in, p, me, count, dtype, rows, true);
    std::vector<std::byte> received = packed_rows(out, p, me, count, dtype, rows, false);
    give("all_to_all_rows", sent.data(), static_cast<int64_t>(sent.size()), received.data());
    int64_t next = 0;
    for_each_block_of_rows(p, me, count, dtype, rows, false, [&](int64_t at, int64_t bytes) {
      std::copy_n(received.data() + next, bytes, static_cast<std::byte*>(out) + at);
      next += bytes;
    });
  }
  void broadcast(int, const void*, void* out, int64_t, DType, int) override { give("broadcast", nullptr, 0, out); }
  void barrier(int) override {}
  int64_t send(int, const void* data, int64_t bytes) override {
    give("send", data, bytes, nullptr);
    return 1;
  }
  void wait_send(int, int64_t) override {}
  void recv(int, void* data, int64_t) override { give("recv", nullptr, 0, data); }
  void recv_sum(int, float* sum, int64_t count) override {
    give("recv_sum", sum, count * static_cast<int64_t>(sizeof(float)), sum);
  }
  void set_position(RankPosition) override {}
  RankPosition position_of(int) const override { return {}; }

 private:
  void give(const char* call, const void* in, int64_t bytes, void* out) {
    check(exchanges_ != nullptr && next_ < exchanges_->size() && (*exchanges_)[next_].call == call,
          "a replayed step makes the calls of the recorded one");
    const RecordedExchange& recorded = (*exchanges_)[next_++];
    if (in != nullptr && difference_.empty() && digest_of_bytes(in, bytes) != recorded.given)
      difference_ = fmt::format("the data that it sends to {}, call {} of the step", call, next_);
    if (out != nullptr && !recorded.received.empty())
      std::memcpy(out, recorded.received.data(), recorded.received.size());
  }

  const int rank_, ranks_;
  std::map<std::vector<int>, int> groups_;
  std::map<int, int64_t> sizes_, places_;
  const std::vector<RecordedExchange>* exchanges_ = nullptr;
  size_t next_ = 0;
  std::string difference_;
};

}  // namespace trainctl
