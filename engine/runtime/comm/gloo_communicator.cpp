// Communicator over Gloo's TCP transport: ranks of several hosts. A sum exchanges slices, adds in group order, and
// gathers the sums: as few bytes on the wire as a ring, fewer steps, and the order of additions that communicator.h
// promises.
#include "engine/runtime/comm/gloo_communicator.h"

#include <fmt/format.h>
#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/types.h>

#include <cstring>
#include <deque>
#include <exception>
#include <numeric>

#include "engine/graph/exchanged_bytes.h"
#include "engine/runtime/comm/combine.h"
#include "engine/runtime/comm/gloo_links.h"
#include "engine/runtime/comm/peers.h"

namespace trainctl {
namespace {

using comm::GlooGroup;

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(KeyValueStore& store, int rank, int num_ranks, const GlooOptions& options)
      : num_ranks_(num_ranks), links_(store, rank, options), peers_(static_cast<size_t>(num_ranks)) {
    std::vector<int> everyone(static_cast<size_t>(num_ranks));
    std::iota(everyone.begin(), everyone.end(), 0);
    world_ = links_.make_group(everyone, "messages");
    // A send must not wait for its receiver to connect, so connect now.
    if (num_ranks > 1)
      links_.connect(world_, "connecting ranks " + comm::format_ranks(everyone), links_.connect_seconds());
  }

  ~GlooCommunicator() override {
    if (broken_ || num_ranks_ == 1) return;
    // This object is destroyed by an exception: this rank has failed, and no rank may wait for it.
    if (std::uncaught_exceptions() > exceptions_before_) return;
    // Closing a socket that still holds unread bytes would cut off what a slower peer has yet to read.
    try {
      gloo::BarrierOptions barrier(world_.context);
      barrier.setTimeout(std::min(links_.timeout(), std::chrono::milliseconds(5000)));
      gloo::barrier(barrier);
    } catch (const std::exception&) {
      // The lost peer reports its own failure.
    }
  }

  int rank() const override { return links_.rank(); }
  int num_ranks() const override { return num_ranks_; }
  void register_arena(void*, int64_t) override {}
  void set_position(RankPosition position) override { links_.set_position(position); }
  RankPosition position_of(int rank) const override { return links_.position_of(rank); }

  int open_group(const std::vector<int>& ranks) override {
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].ranks == ranks) return static_cast<int>(i);
    }
    groups_.push_back(links_.make_group(ranks, "group"));
    return static_cast<int>(groups_.size()) - 1;
  }

  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override;
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override;
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override;
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override;
  void all_to_all_rows(int group, const void* in, void* out, int64_t count, DType dtype,
                       const CountedRows& rows) override;
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override;
  void barrier(int group) override;
  int64_t send(int peer, const void* data, int64_t bytes) override;
  void wait_send(int peer, int64_t sequence) override;
  void recv(int peer, void* data, int64_t bytes) override;
  void recv_sum(int peer, float* sum, int64_t count) override;

 private:
  struct Sending {
    int64_t sequence;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };
  struct Peer {
    int64_t sent = 0, received = 0;
    std::deque<Sending> sending;
  };

  GlooGroup& group(int number) {
    check(number >= 0 && static_cast<size_t>(number) < groups_.size(), "a group must be opened before it is used");
    return groups_[static_cast<size_t>(number)];
  }
  Peer& peer(int rank) {
    check(rank >= 0 && rank < num_ranks_ && rank != links_.rank(), "a message must go to another rank of the job");
    return peers_[static_cast<size_t>(rank)];
  }
  std::byte* scratch(int64_t bytes) {
    if (static_cast<int64_t>(scratch_.size()) < bytes) scratch_.resize(static_cast<size_t>(bytes));
    return scratch_.data();
  }

  /// Connects the group if necessary, then runs call(context, tag); turns Gloo's exceptions into CommErrors.
  template <typename Call>
  void run(GlooGroup& group, const char* name, const Call& call);
  template <typename Call>
  void message(int other, const std::string& name, const std::string& key, const Call& call);
  void gather_and_sum(GlooGroup& group, std::byte* out, const std::byte* in, int64_t count, DType dtype);
  void sum_blocks(std::byte* blocks, int num_blocks, std::byte* out, int64_t count, DType dtype);

  int num_ranks_;
  comm::GlooLinks links_;
  GlooGroup world_;
  std::vector<GlooGroup> groups_;
  std::vector<Peer> peers_;
  std::vector<std::byte> scratch_;
  bool broken_ = false;
  int exceptions_before_ = std::uncaught_exceptions();
};

uint8_t* bytes_of(const void* data) { return static_cast<uint8_t*>(const_cast<void*>(data)); }

void copy(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
}

template <typename Call>
void GlooCommunicator::run(GlooGroup& group, const char* name, const Call& call) {
  const auto title = [&] { return fmt::format("{} over ranks {}", name, comm::format_ranks(group.ranks)); };
  try {
    if (!group.context) links_.connect(group, title(), links_.timeout_seconds());
    ++group.calls;
    call(group.context, group.calls);
  } catch (const EnvError&) {
    broken_ = true;
    throw;
  } catch (const std::exception& error) {
    broken_ = true;
    throw links_.blocked(group, title(), std::to_string(group.calls), error.what(), links_.timeout_seconds());
  }
}

void GlooCommunicator::sum_blocks(std::byte* blocks, int num_blocks, std::byte* out, int64_t count, DType dtype) {
  std::vector<const std::byte*> from;
  for (int i = 0; i < num_blocks; ++i) from.push_back(blocks + i * count * byte_size(dtype));
  comm::combine(from, {&out, 1}, count, dtype);
}

/// An all_reduce of few elements: each member gathers the operands of all members, and adds them itself.
void GlooCommunicator::gather_and_sum(GlooGroup& group, std::byte* out, const std::byte* in, int64_t count,
                                      DType dtype) {
  const int64_t bytes = count * byte_size(dtype);
  const int p = static_cast<int>(group.ranks.size());
  std::byte* blocks = scratch(p * bytes);
  run(group, "all_reduce", [&](const std::shared_ptr<gloo::Context>& context, uint32_t tag) {
    gloo::AllgatherOptions gather(context);
    gather.setInput(bytes_of(in), static_cast<size_t>(bytes));
    gather.setOutput(bytes_of(blocks), static_cast<size_t>(p * bytes));
    gather.setTag(tag);
    gloo::allgather(gather);
  });
  sum_blocks(blocks, p, out, count, dtype);
}

/// Each member receives one slice of all operands, adds it in group order, and sends the sum to all members.
void GlooCommunicator::all_reduce(int number, const void* in, void* out, int64_t count, DType dtype) {
  GlooGroup& members = group(number);
  const auto p = static_cast<int64_t>(members.ranks.size());
  if (p == 1 || count == 0) return copy(out, in, count * byte_size(dtype));
  auto* to = static_cast<std::byte*>(out);
  if (count < p || count * byte_size(dtype) <= kAddedAloneBytes) {
    return gather_and_sum(members, to, static_cast<const std::byte*>(in), count, dtype);
  }
  std::vector<int64_t> slices(static_cast<size_t>(p));  // bytes of each slice
  int64_t mine_at = 0;
  for (int64_t i = 0; i < p; ++i) {
    slices[static_cast<size_t>(i)] = (count / p + (i < count % p)) * byte_size(dtype);
    if (i < members.index) mine_at += slices[static_cast<size_t>(i)];
  }
  const int64_t mine = slices[static_cast<size_t>(members.index)];
  std::byte* blocks = scratch(p * mine);
  run(members, "all_reduce", [&](const std::shared_ptr<gloo::Context>& context, uint32_t tag) {
    gloo::AlltoallvOptions exchange(context);
    exchange.setInput(bytes_of(in), slices);
    exchange.setOutput(bytes_of(blocks), std::vector<int64_t>(static_cast<size_t>(p), mine));
    exchange.setTag(tag);
    gloo::alltoallv(exchange);
    sum_blocks(blocks, static_cast<int>(p), to + mine_at, mine / byte_size(dtype), dtype);
    gloo::AllgathervOptions gather(context);
    gather.setOutput(bytes_of(out), std::vector<size_t>(slices.begin(), slices.end()));
    gather.setTag(tag);
    gloo::allgatherv(gather);
  });
}

void GlooCommunicator::all_gather(int number, const void* in, void* out, int64_t count, DType dtype) {
  GlooGroup& members = group(number);
  const auto p = static_cast<int64_t>(members.ranks.size());
  const int64_t bytes = count * byte_size(dtype);
  copy(bytes_of(out) + members.index * bytes, in, bytes);
  if (p == 1 || count == 0) return;
  run(members, "all_gather", [&](const std::shared_ptr<gloo::Context>& context, uint32_t tag) {
    gloo::AllgatherOptions gather(context);
    gather.setOutput(bytes_of(out), static_cast<size_t>(p * bytes));
    gather.setTag(tag);
    gloo::allgather(gather);
  });
}

void GlooCommunicator::reduce_scatter(int number, const void* in, void* out, int64_t count, DType dtype) {
  GlooGroup& members = group(number);
  const auto p = static_cast<int64_t>(members.ranks.size());
  const int64_t bytes = count * byte_size(dtype);
  if (p == 1 || count == 0) return copy(out, in, bytes);
  std::byte* blocks = scratch(p * bytes);
  run(members, "reduce_scatter", [&](const std::shared_ptr<gloo::Context>& context, uint32_t tag) {
    gloo::AlltoallOptions exchange(context);
    exchange.setInput(bytes_of(in), static_cast<size_t>(p * bytes));
    exchange.setOutput(bytes_of(blocks), static_cast<size_t>(p * bytes));
    exchange.setTag(tag);
    gloo::alltoall(exchange);
  });
  sum_blocks(blocks, static_cast<int>(p), static_cast<std::byte*>(out), count, dtype);
}

void GlooCommunicator::all_to_all(int number, const void* in, void* out, int64_t count, DType dtype) {
  GlooGroup& members = group(number);
  const auto p = static_cast<int64_t>(members.ranks.size());
  const int64_t bytes = count * byte_size(dtype);
  if (p == 1 || count == 0) return copy(out, in, bytes);
  run(members, "all_to_all", [&](const std::shared_ptr<gloo::Context>& context, uint32_t tag) {
    gloo::AlltoallOptions exchange(context);
    exchange.setInput(bytes_of(in), static_cast<size_t>(p * bytes));
    exchange.setOutput(bytes_of(out), static_cast<size_t>(p * bytes));
    exchange.setTag(tag);
    gloo::alltoall(exchange);
  });
}

/// Both ends of a pair know its number of rows, so a pair without rows exchanges no message.
void GlooCommunicator::all_to_all_rows(int number, const void* in, void* out, int64_t count, DType dtype,
                                       const CountedRows& rows) {
  GlooGroup& members = group(number);
  const auto p = static_cast<int64_t>(members.ranks.size());
  const int64_t block = count * byte_size(dtype), me = members.index;
  const auto bytes_between = [&](int64_t from, int64_t to) {
    const int64_t elements = rows.elements(p, from, to);
    check(elements >= 0 && elements <= count, "the rows of a block are inside it");
    return elements * byte_size(dtype);
  };
  copy(bytes_of(out) + me * block, bytes_of(in) + me * block, bytes_between(me, me));
  if (p == 1 || count == 0) return;
  run(members, "all_to_all", [&](const std::shared_ptr<gloo::Context>& context, uint32_t tag) {
    const auto sent = context->createUnboundBuffer(bytes_of(in), static_cast<size_t>(p * block)),
               received = context->createUnboundBuffer(out, static_cast<size_t>(p * block));
    const gloo::Slot slot = gloo::Slot::build(gloo::kAlltoallSlotPrefix, tag);
    int sends = 0, receives = 0;
    for (int64_t i = 1; i < p; ++i) {
      const int64_t from = (me + p - i) % p, to = (me + i) % p;
      const auto arriving = static_cast<size_t>(bytes_between(from, me)),
                 leaving = static_cast<size_t>(bytes_between(me, to));
      if (arriving > 0) {
        received->recv(static_cast<int>(from), slot, static_cast<size_t>(from * block), arriving);
        ++receives;
      }
      if (leaving > 0) {
        sent->send(static_cast<int>(to), slot, static_cast<size_t>(to * block), leaving);
        ++sends;
      }
    }
    for (; receives > 0; --receives) received->waitRecv(links_.timeout());
    for (; sends > 0; --sends) sent->waitSend(links_.timeout());
  });
}

void GlooCommunicator::broadcast(int number, const void* in, void* out, int64_t count, DType dtype, int root) {
  GlooGroup& members = group(number);
  check(root >= 0 && static_cast<size_t>(root) < members.ranks.size(), "the root must be in the group");
  const int64_t bytes = count * byte_size(dtype);
  if (members.index == root) copy(out, in, bytes);
  if (members.ranks.size() == 1 || count == 0) return;
  run(members, "broadcast", [&](const std::shared_ptr<gloo::Context>& context, uint32_t tag) {
    gloo::BroadcastOptions options(context);
    options.setOutput(bytes_of(out), static_cast<size_t>(bytes));
    options.setRoot(root);
    options.setTag(tag);
    gloo::broadcast(options);
  });
}

void GlooCommunicator::barrier(int number) {
  GlooGroup& members = group(number);
  if (members.ranks.size() == 1) return;
  run(members, "barrier", [&](const std::shared_ptr<gloo::Context>& context, uint32_t tag) {
    gloo::BarrierOptions options(context);
    options.setTag(tag);
    gloo::barrier(options);
  });
}

template <typename Call>
void GlooCommunicator::message(int other, const std::string& name, const std::string& key, const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    broken_ = true;
    GlooGroup pair = world_;
    pair.ranks = {links_.rank(), other};
    throw links_.blocked(pair, name, key, error.what(), links_.timeout_seconds());
  }
}

int64_t GlooCommunicator::send(int other, const void* data, int64_t bytes) {
  Peer& to = peer(other);
  const int64_t sequence = ++to.sent;
  if (bytes == 0) return sequence;
  message(other, fmt::format("send {} to rank {}", sequence, other), "send", [&] {
    auto buffer = world_.context->createUnboundBuffer(bytes_of(data), static_cast<size_t>(bytes));
    buffer->send(other, static_cast<uint64_t>(sequence));
    to.sending.push_back({sequence, std::move(buffer)});
  });
  return sequence;
}

void GlooCommunicator::wait_send(int other, int64_t sequence) {
  Peer& to = peer(other);
  check(sequence <= to.sent, "only an issued send can be waited for");
  while (!to.sending.empty() && to.sending.front().sequence <= sequence) {
    message(other, fmt::format("send {} to rank {}", to.sending.front().sequence, other), "send",
            [&] { to.sending.front().buffer->waitSend(links_.timeout()); });
    to.sending.pop_front();
  }
}

void GlooCommunicator::recv(int other, void* data, int64_t bytes) {
  Peer& from = peer(other);
  const int64_t sequence = ++from.received;
  if (bytes == 0) return;
  message(other, fmt::format("recv of {} bytes from rank {}", bytes, other), "recv", [&] {
    const auto buffer = world_.context->createUnboundBuffer(data, static_cast<size_t>(bytes));
    buffer->recv(other, static_cast<uint64_t>(sequence));
    buffer->waitRecv(links_.timeout());
  });
}

void GlooCommunicator::recv_sum(int other, float* sum, int64_t count) {
  const int64_t bytes = count * byte_size(DType::f32);
  std::byte* const message = scratch(bytes);
  recv(other, message, bytes);
  std::byte* const to = reinterpret_cast<std::byte*>(sum);
  const std::byte* const terms[] = {to, message};
  comm::combine(terms, {&to, 1}, count, DType::f32);
}

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(KeyValueStore& store, int rank, int num_ranks,
                                                     const GlooOptions& options) {
  check(rank >= 0 && rank < num_ranks && options.timeout_seconds > 0, "the rank must be one of the job's");
  return std::make_unique<GlooCommunicator>(store, rank, num_ranks, options);
}

}  // namespace trainctl
