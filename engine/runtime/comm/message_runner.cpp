// One rank's sends and receives over the channels of one segment.
#include "engine/runtime/comm/message_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/runtime/comm/combine.h"

namespace trainctl::comm {
namespace {

bool message_arrived(uint32_t count, uint32_t wanted) { return static_cast<int32_t>(count - wanted) >= 0; }

constexpr int64_t kStagedPiece = Segment::kSendStaging / 16;

/// The entry of a peer in a list that is sorted by peer. Allocates memory only to report that there is none.
template <typename End>
End& of_peer(std::vector<End>& channels, int peer, int rank, const char* call) {
  const auto found = std::lower_bound(channels.begin(), channels.end(), peer,
                                      [](const End& end, int wanted) { return end.peer < wanted; });
  if (found == channels.end() || found->peer != peer) {
    check(false, fmt::format("the segment must have a route for each message: rank {} has a {} rank {} without one",
                             rank, call, peer));
  }
  return *found;
}

}  // namespace

MessageRunner::MessageRunner(const SharedMemory& memory, int rank, const Peers& peers, Waiter& waiter)
    : memory_(memory), segment_(memory.segment()), rank_(rank), peers_(peers), waiter_(waiter) {
  const std::vector<Route>& routes = segment_.routes();
  for (size_t i = 0; i < routes.size(); ++i) {
    if (routes[i].to == rank) incoming_.push_back({routes[i].from, &segment_.channel(i)});
    if (routes[i].from != rank) continue;
    // Continue the numbers of an earlier Communicator of this rank: all that it sent has been taken.
    Channel& channel = segment_.channel(i);
    outgoing_.push_back({routes[i].to, &channel, channel.messages_taken.load(std::memory_order_acquire)});
  }
}

MessageRunner::Outgoing& MessageRunner::to(int peer) { return of_peer(outgoing_, peer, rank_, "send to"); }
Channel& MessageRunner::from(int peer) { return *of_peer(incoming_, peer, rank_, "recv from").channel; }

int64_t MessageRunner::send(int peer, const std::byte* data, int64_t bytes) {
  Outgoing& outgoing = to(peer);
  const int64_t offset = segment_.offset_of(data, bytes);
  if (offset >= 0 || bytes == 0) {
    post(peer, {offset, bytes, 1});
  } else {
    for (int64_t done = 0; done < bytes;) {
      const int64_t piece = std::min(bytes - done, kStagedPiece);
      const int64_t at = stage(peer, data + done, piece);
      done += piece;
      post(peer, {at, piece, done == bytes});
    }
  }
  return ++outgoing.sent;
}

void MessageRunner::post(int peer, Piece piece) {
  Channel& channel = *to(peer).channel;
  const uint32_t posted = channel.posted.load();
  wait(
      channel.taken, peer, [&] { return posted - channel.taken.load() < Channel::kPieces; },
      [&] { return fmt::format("send to rank {} (all {} slots of its queue are full)", peer, Channel::kPieces); });
  channel.pieces[posted % Channel::kPieces] = piece;
  channel.posted.publish(posted + 1);
  memory_.status(peer).mail.ring();
}

bool MessageRunner::has_message(int peer) {
  Channel& channel = from(peer);
  return channel.posted.load() != channel.taken.load();
}

void MessageRunner::drop(int peer) {
  Channel& channel = from(peer);
  const uint32_t posted = channel.posted.load();
  for (uint32_t taken = channel.taken.load(); taken != posted; ++taken)
    if (channel.pieces[taken % Channel::kPieces].last != 0)
      channel.messages_taken.fetch_add(1, std::memory_order_release);
  channel.taken.publish(posted);
}

int64_t MessageRunner::stage(int peer, const std::byte* data, int64_t bytes) {
  const std::span<std::byte> area = segment_.send_staging(rank_);
  const auto size = static_cast<int64_t>(area.size());
  int64_t begin = (staging_end_ + 63) / 64 * 64;
  if (begin % size + bytes > size) begin = (begin / size + 1) * size;
  while (!staged_.empty()) {
    const Staged oldest = staged_.front();
    Channel& channel = *to(oldest.peer).channel;
    const auto taken = [&] { return message_arrived(channel.taken.load(), oldest.piece); };
    if (!taken() && begin + bytes - oldest.begin <= size) break;
    wait(channel.taken, oldest.peer, taken, [&] {
      return fmt::format("send to rank {} (waiting for rank {} to free staging memory)", peer, oldest.peer);
    });
    staged_.pop_front();
  }
  std::byte* copy = area.data() + begin % size;
  std::memcpy(copy, data, static_cast<size_t>(bytes));
  staged_.push_back({peer, to(peer).channel->posted.load() + 1, begin});
  staging_end_ = begin + bytes;
  return segment_.offset_of(copy, bytes);
}

void MessageRunner::wait_send(int peer, int64_t sequence) {
  Channel& channel = *to(peer).channel;
  const int64_t sent = to(peer).sent;
  check(sequence <= sent, "only an issued send can be waited for");
  // The channel's counter wraps at 2^32; far fewer messages are in flight.
  const auto taken = [&] {
    return sent -
           static_cast<int64_t>(static_cast<uint32_t>(sent) - channel.messages_taken.load(std::memory_order_acquire));
  };
  wait(
      channel.taken, peer, [&] { return taken() >= sequence; },
      [&] { return fmt::format("send {} to rank {}", sequence, peer); });
}

void MessageRunner::recv(int peer, std::byte* data, int64_t bytes) {
  take(peer, bytes, [&](const std::byte* from, int64_t done, int64_t length) {
    std::memcpy(data + done, from, static_cast<size_t>(length));
  });
}

void MessageRunner::recv_sum(int peer, float* sum, int64_t count) {
  take(peer, count * byte_size(DType::f32), [&](const std::byte* from, int64_t done, int64_t length) {
    std::byte* const to = reinterpret_cast<std::byte*>(sum) + done;
    const std::byte* const terms[] = {to, from};
    combine(terms, {&to, 1}, length / byte_size(DType::f32), DType::f32);
  });
}

template <typename Use>
void MessageRunner::take(int peer, int64_t bytes, const Use& use) {
  Channel& channel = from(peer);
  bool last = false;
  for (int64_t done = 0; !last;) {
    const uint32_t taken = channel.taken.load();
    wait(
        channel.posted, peer, [&] { return channel.posted.load() != taken; },
        [&] { return fmt::format("recv of {} bytes from rank {}", bytes, peer); });
    const Piece piece = channel.pieces[taken % Channel::kPieces];
    last = piece.last != 0;
    check(last ? done + piece.bytes == bytes : done + piece.bytes <= bytes, "a recv must have the size of its send");
    if (piece.bytes > 0) use(segment_.at(piece.offset), done, piece.bytes);
    done += piece.bytes;
    if (last) channel.messages_taken.fetch_add(1, std::memory_order_release);
    channel.taken.publish(taken + 1);
  }
}

template <typename Ready, typename Describe>
void MessageRunner::wait(Event& event, int peer, const Ready& ready, const Describe& describe) {
  waiter_.wait(event, ready, [&](double seconds) {
    const int lost = peers_.lost_rank([&](int rank) { return rank == peer; });
    // The message may have arrived just before its sender ended.
    if ((lost < 0 && !peers_.too_late(seconds)) || ready()) return;
    throw peers_.give_up(describe(), lost, {peer});
  });
}

}  // namespace trainctl::comm
